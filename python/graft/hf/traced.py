"""The program of one kind of call: traced with the model's own cache, and the sizes that it is right for.

Sizes of batches, prompts and caches are open. What the model's code decides by them while it is traced (a window that is
full, the number of blocks of a scan) bounds the program; another call then has a program of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from torch.utils._sympy.printers import PythonPrinter
from transformers import masking_utils

from graft.errors import ExportError
from graft.exporter import quiet, torch_export
from graft.hf import module_state, open_sizes
from graft.hf.decisions import Decisions
from graft.hf.known_values import Known, Numbers, helpers
from graft.hf.structure import Flat, Node, build, flatten
from graft.llm import interface, kernels, ops
from graft.llm.trace import traceable_hooks
from graft.llm.untraceable import decides_by_values, no_graph_printed, reason

_PREFIX = "model."  # of weights: the attribute of _Call


@dataclass
class Traced:
    structure: Node  # of the arguments
    sizes: list[tuple[Any, ...]]  # of each tensor: numbers, and names of open sizes
    numbers: list[Any]  # the same of the numbers
    ones: frozenset[str]  # the open sizes that may be 1 too: of the batch, and of what a cache holds
    admits: Callable[[Mapping[str, int]], bool]
    bounds: str
    final: Node  # of the arguments after the call and the result
    leaves: list[tuple[str, int]]  # its tensors: ("given" or "made", place)
    results: list[Callable[[Mapping[str, int]], int]]  # its numbers
    keys: list[str]  # weights by name
    package: Path
    folder: Any = field(repr=False, default=None)
    decided: Sequence[torch.Tensor] | None = None  # of a trace with values: what the last tensors that are made must be

    def sizes_of(self, flat: Flat) -> dict[str, int] | None:
        """The open sizes in a call, or None where the program is not right for it."""
        if flat.structure != self.structure:
            return None
        found: dict[str, int] = {}
        for tensor, sizes in zip(flat.tensors, self.sizes):
            for size, expected in zip(tensor.shape, sizes):
                if not self._is(size, expected, found):
                    return None
        for number, expected in zip(flat.numbers, self.numbers):
            if not self._is(number, expected, found):
                return None
        return found if self.admits(found) else None

    def _is(self, size: int, expected: Any, found: dict[str, int]) -> bool:
        if not isinstance(expected, str):
            return size == expected
        if size < 2 and not (expected in self.ones and size == 1):
            return False  # code is written for these in particular
        return found.setdefault(expected, size) == size


class _Seen:
    """What a trace leaves beside its graph. Not in the module: torch.export puts its attributes back."""

    final = Flat()
    leaves: list[tuple[str, int]] = []
    decided: Sequence[torch.Tensor] = ()


class _Call(torch.nn.Module):
    """What is traced: the model on the arguments of a structure."""

    def __init__(self, model: torch.nn.Module, forward: Callable[..., Any], structure: Node) -> None:
        super().__init__()
        self.model = model
        self._forward, self._structure = forward, structure
        self.seen = _Seen()

    def forward(self, tensors: list[torch.Tensor], numbers: list[Any]) -> list[torch.Tensor]:
        own = [tensor.clone() for tensor in tensors]  # which the model may change
        before = [tensor._version for tensor in own]
        objects: list[Any] = []
        arguments = build(self._structure, own, numbers, made=objects, values=Known.of)
        decisions = Decisions()
        with no_graph_printed(), module_state.as_argument(self.model, arguments), Numbers(), decisions:
            output = self._forward(self.model, **arguments)
        places = {id(one): place for place, one in enumerate(objects)}
        final = flatten((arguments, output), origins=places)
        given = {id(one): place for place, one in enumerate(own)}
        made: list[torch.Tensor] = []
        leaves: list[tuple[str, int]] = []
        for tensor in final.tensors:
            place = given.get(id(tensor))
            if place is not None and tensor._version == before[place]:
                leaves.append(("given", place))
            else:
                leaves.append(("made", len(made)))
                made.append(tensor)
        self.seen.final, self.seen.leaves, self.seen.decided = final, leaves, decisions.values
        return [*made, *decisions.tensors]


def trace(
    model: torch.nn.Module,
    weights: dict[int, Any],
    flat: Flat,
    example: Sequence[tuple[int, ...]],
    opened: Sequence[Sequence[int]],
    rows: int | None,
    method: str = "forward",
    values: Sequence[torch.Tensor] | None = None,
) -> Traced:
    """model: whose method is traced; it stays as it is. weights: its tensors by id, which the trace shares. flat: of the
    arguments by name. example: sizes to trace with, instead of those of its tensors. opened: their open dimensions. rows:
    the size in `example` that is the batch. values: those of the arguments, where the model's code may decide by them."""
    tensors = [torch.zeros(sizes, dtype=tensor.dtype) for sizes, tensor in zip(example, flat.tensors)]
    if values is not None:
        tensors = [value.detach().clone() for value in values]
    numbers = [int(number) for number in flat.numbers]
    open_dims = [[dim for dim in places if sizes[dim] > 1] for places, sizes in zip(opened, example)]
    dims = ([dict.fromkeys(places, Dim.AUTO) for places in open_dims], [Dim.AUTO] * len(numbers))
    kind = type(model)
    call = _Call(copy.deepcopy(model, dict(weights)).eval(), getattr(kind, method), flat.structure)
    spaces = _spaces_of_two_ways(call.model)
    try:
        try:
            program = _exported(call, (tensors, numbers), dims, values is not None)
        except Exception as e:
            if not spaces or decides_by_values(e):
                raise
            with _eager_ways(spaces):
                program = _exported(call, (tensors, numbers), dims, values is not None)
        program = _with_open_sizes(program, call, (tensors, numbers), dims, values is not None)
    except ExportError:
        raise
    except Exception as e:  # whatever the model's code or the tracer raises
        raise ExportError(f"{kind.__name__} cannot be traced: {reason(e)}") from e
    final, leaves = call.seen.final, call.seen.leaves
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values[name] if isinstance(name, str) else name for name in program.graph_signature.user_inputs]
    sizes = [tuple(_named(size) for size in value.shape) for value in inputs[: len(tensors)]]
    admits, bounds = _guard(inputs)
    results = [_formula(number) for number in final.numbers]
    found = [(p, s, name) for p, tensor, names in zip(flat.paths, tensors, sizes) for s, name in zip(tensor.shape, names)]
    ones = frozenset(name for p, s, name in found if isinstance(name, str) and (s == rows or "[" in p or module_state.NAME in p))
    folder = tempfile.TemporaryDirectory(prefix="graft-")
    package = Path(folder.name) / "call.pte"
    keys = _write(program, package, call.model)
    named = [_named(number) for number in inputs[len(tensors) :]]
    structure, ending = flat.structure, final.structure
    decided = None if values is None else call.seen.decided
    return Traced(structure, sizes, named, ones, admits, bounds, ending, leaves, results, keys, package, folder, decided)


def _exported(call: _Call, arguments: Any, dims: Any, values: bool) -> torch.export.ExportedProgram:
    with contextlib.ExitStack() as stack:
        for one in (traceable_hooks, _experts, kernels.in_place, helpers):
            stack.enter_context(one(call.model))
        for other in (broadcast_masks(), _settings(values), torch.no_grad()):
            stack.enter_context(other)
        return torch_export.export(call, arguments, dynamic_shapes=dims, strict=False)


def _with_open_sizes(
    program: torch.export.ExportedProgram, call: _Call, arguments: Any, dims: Any, values: bool
) -> torch.export.ExportedProgram:
    """The trace for more sizes, where one of them was fixed and the code can be followed without that."""
    values_of = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    sizes = (size for value in values_of for size in (value.shape if isinstance(value, torch.Tensor) else [value]))
    symbolic = next((size for size in sizes if isinstance(size, torch.SymInt)), None)
    if symbolic is None or not open_sizes.fixed(symbolic.node.shape_env):
        return program
    seen, call.seen = call.seen, _Seen()
    try:
        with open_sizes.rounded(call.model):
            return _exported(call, arguments, dims, values)
    except Exception:  # whatever code raises that wants a number
        call.seen = seen
        return program


_COMPILING = "is_torchdynamo_compiling"


def _spaces_of_two_ways(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Of the files of the model's classes, those that ask whether they are traced."""
    spaces = [vars(sys.modules[name]) for name in {type(module).__module__ for module in model.modules()}]
    return [space for space in spaces if _COMPILING in space]


@contextlib.contextmanager
def _eager_ways(spaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Within it, their code goes the way that it goes in eager PyTorch. For torch.compile some makes no mask that it reads
    later (LongT5)."""
    held = [space[_COMPILING] for space in spaces]
    for space in spaces:
        space[_COMPILING] = lambda: False
    try:
        yield
    finally:
        for space, function in zip(spaces, held):
            space[_COMPILING] = function


def _write(program: torch.export.ExportedProgram, package: Path, model: torch.nn.Module) -> list[str]:
    """The names of the parameters that it reads, which are not in it."""
    from graft.exporter.serialize import StoredWeight
    from graft.llm import container
    from graft.llm.export import _used_weights
    from graft.llm.lower import lower

    first: dict[int, str] = {}
    described = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        key = first.setdefault(id(tensor), name)
        described[_PREFIX + name] = StoredWeight(key, tensor.nbytes, tensor.dtype)
    try:
        with quiet.lowering():
            program, blob = lower(program, described)
    except ExportError as e:
        raise ExportError(f"{type(model).__name__}: {e}") from e
    container.write(package, {"forward": (program, blob)}, {})
    return sorted({described[name].key for name in _used_weights(program) if name in described})


@contextlib.contextmanager
def _settings(values: bool) -> Iterator[None]:
    """Results of operators on symbolic sizes are made anew: to look them up takes longer. values: are computed too."""
    from torch._dynamo import config
    from torch._functorch import config as functorch

    with config.patch(fake_tensor_cache_enabled=False), functorch.patch(fake_tensor_propagate_real_tensors=values):
        yield


@contextlib.contextmanager
def broadcast_masks() -> Iterator[None]:
    """Within it, masks of any rule are made by broadcasting: a program holds no vmap."""
    before = masking_utils._vmap_expansion_sdpa

    def broadcast(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def mask(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            made = rule(*masking_utils._non_vmap_expansion_sdpa(batch, head, q, kv))
            return made.expand(batch.shape[0], -1, q.shape[0], kv.shape[0])

        return mask

    masking_utils._vmap_expansion_sdpa = broadcast
    try:
        yield
    finally:
        masking_utils._vmap_expansion_sdpa = before


@contextlib.contextmanager
def _experts(model: torch.nn.Module) -> Iterator[None]:
    """Within it, experts are graft's operator; attention is what PyTorch computes on the CPU, cut by unfold where the model
    has code for that beside strides."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for config in configs.values():  # of a copy that nobody else has
        if getattr(config, "_experts_implementation_internal", None) is not None:
            config._experts_implementation_internal = interface.NAME
        config.onnx_export = True
    for module in model.modules():
        if hasattr(module, "zero_expert_num") and hasattr(module, "identity_expert"):
            module.forward = functools.partial(_routed, module)
    yield


def _routed(module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
    """Experts of LongCat, which its code loops over: those beyond the matrices give their token back."""
    experts = module.down_proj.shape[0]
    chosen, rows = top_k_index.clamp(max=experts - 1), hidden_states.unsqueeze(1)
    gate, up = ops.expert_linear(rows, chosen, module.gate_up_proj).chunk(2, dim=-1)
    made = ops.expert_linear(module.act_fn(gate) * up, chosen, module.down_proj)
    made = torch.where((top_k_index < experts).unsqueeze(-1), made, rows)
    return (made * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)


def _named(size: Any) -> Any:
    if isinstance(size, torch.SymInt):
        symbol = size.node._expr
        return str(symbol) if symbol.is_Symbol else int(symbol)
    return int(size)


def _guard(inputs: Sequence[Any]) -> tuple[Callable[[Mapping[str, int]], bool], str]:
    """What the trace assumed of the open sizes."""
    sizes = [size for value in inputs for size in (value.shape if isinstance(value, torch.Tensor) else [value])]
    symbolic = next((size for size in sizes if isinstance(size, torch.SymInt)), None)
    if symbolic is None:
        return lambda _: True, ""
    environment = symbolic.node.shape_env
    known = {str(size.node._expr) for size in sizes if isinstance(size, torch.SymInt)}
    conditions = []
    for guard in environment.guards:
        if {str(symbol) for symbol in guard.expr.free_symbols} <= known:
            conditions.append(_printed(guard.expr))
    text = " and ".join(f"({condition})" for condition in dict.fromkeys(conditions))
    if not text:
        return lambda _: True, ""
    holds = _function(text)
    return lambda found: bool(holds(found)), text


_BUILTINS = {"min": min, "max": max, "abs": abs, "round": round, "int": int, "float": float}


class _Printer(PythonPrinter):
    _SIGNS = {"Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">="}  # fmt: skip

    def _print_Relational(self, expression: Any) -> str:
        sign = self._SIGNS[type(expression).__name__]
        return f"({self._print(expression.lhs)}) {sign} ({self._print(expression.rhs)})"

    _print_Equality = _print_Unequality = _print_StrictLessThan = _print_LessThan = _print_Relational
    _print_StrictGreaterThan = _print_GreaterThan = _print_Relational


def _printed(expression: Any) -> str:
    return _Printer().doprint(expression)


def _formula(number: Any) -> Callable[[Mapping[str, int]], int]:
    if not isinstance(number, torch.SymInt):
        return lambda _: number
    formula = _function(_printed(number.node.expr))
    return lambda found: int(formula(found))


def _function(text: str) -> Callable[[Mapping[str, int]], Any]:
    """Of the open sizes. PyTorch prints some functions as its own (torch.sym_float)."""
    code = compile(text, "<sizes>", "eval")
    return lambda found: eval(code, {"math": math, "torch": torch, "__builtins__": _BUILTINS}, dict(found))


__all__ = ["Traced", "broadcast_masks", "trace"]
