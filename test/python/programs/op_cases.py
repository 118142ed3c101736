"""Random arguments for differential tests of operators, and the comparison with eager PyTorch.

A case is a number that seeds everything: `@given(seeds)` and `Cases(seed)`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import graft
import pytest
import torch
from graft import testing
from graft.exporter.serialize import _symbolic, _symbolic_mode, serialize_graph
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

SIZES = (0, 1, 2, 3, 5, 31, 32, 33, 257)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool)

#: The cases of one operator, each a seed.
many = settings(
    max_examples=int(os.environ.get("GRAFT_CASES", "200")),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

class _Seeds(st.SearchStrategy):
    """Drawn bit by bit: for integers hypothesis also tries constants of the modules that happen to be imported, and the
    same test would see other cases in another selection of tests. One draw for hypothesis: parts of a seed mean nothing,
    and it would spend as long on trying to repeat them as a case takes."""

    def do_draw(self, data: Any) -> int:
        return sum(data.draw_boolean(0.5) << i for i in range(24))


def cases(test: Callable[..., None]) -> Callable[..., None]:
    """Decorator: runs `test(..., case=Cases(seed))` on 200 seeds that eager accepts some call of."""

    @functools.wraps(test)
    def counted(*args: Any, case: "Cases", **kwargs: Any) -> None:
        test(*args, case=case, **kwargs)
        if case.refused and not case.compared:
            reject()

    return many(given(case=_Seeds().map(Cases))(counted))


class Cases:
    """Draws arguments. Same seed, same arguments."""

    def __init__(self, seed: int) -> None:
        self.compared, self.refused = 0, 0
        self.random = random.Random(seed)
        self._seed = seed
        self._torch = torch.Generator().manual_seed(seed)

    def __repr__(self) -> str:
        return f"Cases({self._seed})"

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def shape(self, low: int = 0, high: int = 8, most: int = 6000, empty: bool = True) -> list[int]:
        rank = self.random.randint(low, high)
        sizes: list[int] = []
        count = 1
        for _ in range(rank):
            fitting = [s for s in SIZES if s * count <= most and (s > 0 or (empty and self.chance(0.2)))]
            size = self.pick(fitting or [1])
            sizes.append(size)
            count *= max(size, 1)
        self.random.shuffle(sizes)
        return sizes

    def tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, special: bool = True) -> torch.Tensor:
        """Random values; with `special`, some NaN, infinities, -0 and the extremes of integers among them."""
        if dtype == torch.bool:
            return torch.rand(tuple(shape), generator=self._torch) < self.pick([0.0, 0.3, 0.7, 1.0])
        if not dtype.is_floating_point:
            low = 0 if dtype == torch.uint8 else -20
            result = torch.randint(low, 20, tuple(shape), generator=self._torch).to(dtype)
            values = [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
        else:
            result = torch.randn(tuple(shape), generator=self._torch).to(dtype)
            values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
            if os.environ.get("GRAFT_DEVICE", "cpu") != "cpu":
                values = values[1:]  # devices' clamps make a number of NaN (docs/devices.md)
        if special and self.chance(0.4) and result.numel():
            flat = result.view(-1)
            for _ in range(self.random.randint(1, 4)):
                flat[self.random.randrange(flat.numel())] = self.pick(values)
        return result

    def dim(self, rank: int) -> int:
        return self.random.randint(-max(rank, 1), max(rank, 1) - 1)

    def dims(self, rank: int, at_least: int = 0) -> list[int]:
        count = self.random.randint(min(at_least, rank), rank)
        return [d - rank if self.chance(0.5) else d for d in self.random.sample(range(rank), count)]

    def permutation(self, rank: int) -> list[int]:
        return self.random.sample(range(rank), rank)

    def factors(self, count: int, most: int = 6) -> list[int]:
        """Sizes that multiply to `count`, with ones among them."""
        sizes: list[int] = []
        while count > 1 and len(sizes) < most - 2:
            factor = self.pick([f for f in range(2, count + 1) if count % f == 0])
            sizes.append(factor)
            count //= factor
        if count != 1:
            sizes.append(count)
        while len(sizes) < most and self.chance(0.4):
            sizes.insert(self.random.randint(0, len(sizes)), 1)
        return sizes

    def indices(self, shape: Sequence[int], size: int, negative: bool = False) -> torch.Tensor:
        """In range for `size`, which must be positive unless `shape` is empty."""
        low = -size if negative and self.chance(0.5) else 0
        high = max(size, low + 1)
        return torch.randint(low, high, tuple(shape), generator=self._torch).to(self.pick([torch.int64, torch.int32]))

    def check(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        reference: Callable[..., Any] | None = None,
        **limits: Any,
    ) -> None:
        """Against eager, on contiguous operands and on strided ones; where eager fails, graft must fail too. The rest
        is that of `graft.testing.check_op`."""
        kwargs = dict(kwargs or {})
        testing.check_op(target, args, kwargs, threads=self.pick([1, 2]), reference=reference, **limits)
        self.compared += 1
        if self.chance(0.5):
            self.check_strided(target, args, kwargs, reference, **limits)

    def check_strided(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reference: Callable[..., Any] | None = None,
        **limits: Any,
    ) -> None:
        """The same call where every tensor is a view of a larger one, made inside the program."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        graph = torch.fx.Graph()
        inputs: list[torch.Tensor] = []
        nodes: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                nodes.append(leaf)
                continue
            base, steps = self._disguised(leaf)
            node = graph.placeholder(f"input_{len(inputs)}")
            node.meta["val"] = base
            inputs.append(base)
            value = base
            for step_target, step_args in steps:
                node = graph.call_function(step_target, (node, *step_args))
                value = step_target(value, *step_args)
                node.meta["val"] = value
            assert value.shape == leaf.shape
            nodes.append(node)
        with torch.no_grad():
            meta = target(*args, **kwargs)
            expected = meta if reference is None else reference(*args, **kwargs)
        node_args, node_kwargs = pytree.tree_unflatten(nodes, spec)
        call = _call(graph, target, node_args, node_kwargs, meta)
        blob = serialize_graph(graph).data
        actual = testing.run_blob(blob, inputs, threads=self.pick([1, 2]), target=target, node=call.name)
        testing.check_results(target, args, kwargs, actual, expected, strided=True, note="on views", **limits)

    def check_computed(self, target: Any, make: Callable[[Any, Any], tuple[Any, ...]], **kwargs: Any) -> None:
        """With numbers that the program computes: one program, made for an input of unknown size [n, 3, 2], against
        eager at three sizes. `make(x, n)` gives the arguments, by plain arithmetic on n."""
        graph = torch.fx.Graph()
        tracer = torch.fx.proxy.GraphAppendingTracer(graph)
        carrier = graph.placeholder("carrier")
        mode = _symbolic_mode()
        carrier.meta["val"] = _symbolic(mode, torch.empty(7, 3, 2), {0: (0, None)}, 0)
        size = graph.call_function(torch.ops.aten.sym_size.int, (carrier, 0))
        args = make(torch.fx.Proxy(carrier, tracer), torch.fx.Proxy(size, tracer))
        args = pytree.tree_map_only(torch.fx.Proxy, lambda proxy: proxy.node, args)
        for node in graph.nodes:
            if node is not carrier:
                node.meta["val"] = node.target(*torch.fx.map_arg(node.args, _meta))
        with torch.no_grad(), mode:
            symbol = size.meta["val"].node.expr
            admitted = mode.shape_env.var_to_range[symbol]
            meta = target(*torch.fx.map_arg(args, _meta), **kwargs)
            # Guards may have narrowed the range; sizes beyond are compared too, where eager accepts them.
            mode.shape_env.var_to_range[symbol] = admitted
        call = _call(graph, target, args, kwargs, meta)
        blob = serialize_graph(graph).data
        for n in self.random.sample([0, 1, 2, 5, 31, 32, 33, 257], 3):
            x = self.tensor([n, 3, 2])
            args = make(x, n)
            try:
                expected = target(*args, **kwargs)
            except (RuntimeError, IndexError):
                self.refused += 1
                continue
            actual = testing.run_blob(blob, [x], target=target, node=call.name)
            testing.check_results(target, args, kwargs, actual, expected, note=f"with computed numbers, n = {n}")
            self.compared += 1

    def _disguised(self, tensor: torch.Tensor) -> tuple[torch.Tensor, list[tuple[Any, tuple[Any, ...]]]]:
        """A contiguous tensor, and the views that make `tensor` of it."""
        aten = torch.ops.aten
        steps: list[tuple[Any, tuple[Any, ...]]] = []
        base = tensor
        for kind in self.random.sample(["permute", "slice", "flip"], 2):
            if tensor.dim() == 0:
                break
            if kind == "permute":
                order = self.permutation(tensor.dim())
                base = base.permute(order)
                steps.append((aten.permute.default, ([order.index(d) for d in range(tensor.dim())],)))
            elif kind == "slice":
                dim = self.random.randrange(tensor.dim())
                grown = list(base.shape)
                grown[dim] = 2 * grown[dim] + 1
                filler = torch.zeros(grown, dtype=base.dtype)
                filler.narrow(dim, 1, grown[dim] - 1)[(slice(None),) * dim + (slice(None, None, 2),)] = base
                base = filler
                steps.append((aten.slice.Tensor, (dim, 1, None, 2)))
            else:
                dim = self.random.randrange(tensor.dim())
                base = base.flip(dim)
                steps.append((aten.flip.default, ([dim],)))
        return base.contiguous(), steps[::-1]

    def check_or_fail(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, **limits: Any
    ) -> None:
        """Like `check` where eager gives a result; nothing to compare where eager refuses the arguments."""
        try:
            with torch.no_grad():
                target(*args, **dict(kwargs or {}))
        except (RuntimeError, IndexError, ValueError):
            self.refused += 1
            return
        self.check(target, args, kwargs, **limits)


def _meta(node: torch.fx.Node) -> Any:
    return node.meta["val"]


def _call(graph: torch.fx.Graph, target: Any, args: Any, kwargs: Any, meta: Any) -> torch.fx.Node:
    """The node of a call that gives `meta`, and its results as those of the graph."""
    call = graph.call_function(target, args, kwargs)
    call.meta["val"] = meta
    if isinstance(meta, torch.Tensor):
        graph.output((call,))
        return call
    picks = []
    for i, item in enumerate(meta):
        pick = graph.call_function(operator.getitem, (call, i))
        pick.meta["val"] = item
        picks.append(pick)
    graph.output(tuple(picks))
    return call


def fails(message: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> None:
    """The run on graft must fail with that text, where eager on in-range data would work."""
    with pytest.raises(graft.Error, match=message):
        testing.run_op(target, args, kwargs)


def product(*options: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*options))
