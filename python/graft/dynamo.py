"""`torch.compile(model, backend="graft")`: graphs that TorchDynamo captures run on the engine. For inference."""

from __future__ import annotations

import copy
import itertools
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from graft.errors import InvalidArgument, Unsupported
from graft.exporter import torch_export

_MOST_NUMBERS = 16  # models of one graph that are kept, by the values of its numbers
_OPTIONS = ("threads", "device", "seed", "quantize", "whole", "rest")
_RESTS = ("eager", "inductor")

_graphs = itertools.count()  # loaded in this process
_lock = threading.Lock()
_counts = {"graphs": 0, "whole": 0, "parts": 0, "nodes": 0}
_left: Counter[str] = Counter()
_inductor: Counter[str] = Counter()


def _count(
    left: Mapping[str, int] = MappingProxyType({}), inductor: Mapping[str, int] = MappingProxyType({}), **more: int
) -> None:
    with _lock:
        for name, number in more.items():
            _counts[name] += number
        _left.update(left)
        _inductor.update(inductor)


def backend(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What torch.compile calls with a captured graph. Its weights are copied: compile again after changing them.

    options: threads; device, a name of `graft.devices()`; seed, of random numbers; quantize, as `graft.export` takes it;
    whole: True makes a graph with nodes that graft does not run a `graft.ExportError` that lists them. Without it, `rest`
    runs these nodes and graft the parts between them; `graft.dynamo.counters()` counts them, and a RuntimeWarning names
    them. rest: "eager" (default), or "inductor": TorchInductor compiles them, all but those that write buffers or inputs,
    give numbers or are control flow, which stay with eager PyTorch. It needs a C++ compiler where the model runs:
    without one the first call of a graph with such nodes is a `graft.Unsupported`, as is a graph that needs gradients."""
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in example_inputs):
        raise Unsupported(
            "torch.compile(backend='graft'): graft computes no gradients; call the model under torch.no_grad(), or "
            "after requires_grad_(False)"
        )
    options = dict(options or {})
    if unknown := options.keys() - _OPTIONS:
        raise InvalidArgument(
            f"torch.compile(backend='graft'): expected options of {', '.join(_OPTIONS)}, found {', '.join(sorted(unknown))}"
        )
    if options.setdefault("rest", "eager") not in _RESTS:
        raise InvalidArgument(
            f"torch.compile(backend='graft'): expected rest to be one of {', '.join(_RESTS)}, found {options['rest']!r}"
        )
    return _Compiled(_Program(module, example_inputs), options)


def counters() -> dict[str, Any]:
    """Since the process began: graphs, that ran a first time; whole, those of them that graft runs alone; parts that
    graft runs of the others; nodes, of these parts; left, nodes that eager PyTorch runs, by operator; inductor, those
    that TorchInductor runs, by operator."""
    with _lock:
        return {**_counts, "left": dict(_left), "inductor": dict(_inductor)}


class _Compiled:
    """Exports at the first call: dynamo's own trace must be over by then."""

    def __init__(self, program: _Program, options: dict[str, Any], *, part: bool = False) -> None:
        """part: of a graph that graft does not run whole."""
        self._program, self._options, self._part = program, options, part
        self._places = program.places
        self._lock = threading.Lock()
        self._fixed = False  # each value of the graph's numbers has a model of its own
        self._models: dict[tuple[str, ...], Callable[..., Any]] = {}  # the last used at the end

    def __call__(self, *args: Any) -> Any:
        given = [_argument(args[place]) for place in self._places]
        model = self._models.get(self._key(given))
        if model is None:
            with self._lock:
                model = self._models.get(self._key(given))
                if model is None:
                    model = self._load(given)
                    if len(self._models) >= _MOST_NUMBERS:
                        del self._models[next(iter(self._models))]
                    self._models[self._key(given)] = model
                    if not self._fixed:
                        self._program = None
        return model(*given)

    def _key(self, given: Sequence[Any]) -> tuple[str, ...]:
        return tuple(repr(given[i].item()) for i in self._program.numbers) if self._fixed else ()

    def _export(self, examples: Sequence[Any]) -> ExportedProgram:
        program = self._program.with_numbers(examples) if self._fixed else self._program
        shapes = (tuple(program.dynamic_shapes),)
        try:
            return torch_export.export(program, tuple(examples), dynamic_shapes=shapes, strict=False)
        except GuardOnDataDependentSymNode as e:
            if not self._fixed and self._program.numbers:
                self._fixed = True
                return self._export(examples)
            raise Unsupported(
                "torch.compile(backend='graft'): torch.export cannot decide a condition of the graph that depends on data: "
                f"{str(e).splitlines()[0]}"
            ) from e

    def _load(self, examples: Sequence[Any]) -> Callable[..., Any]:
        with torch.no_grad():
            exported = self._export(examples)
            if self._part:
                return self._runnable(exported)
            _count(graphs=1)
            try:
                model = self._runnable(exported)
            except Exception as error:  # ExecuTorch's lowering raises anything for an operator that it does not know
                if self._options.get("whole", False):
                    raise
                return self._split(exported, error)
            _count(whole=1)
            return model

    def _runnable(self, exported: ExportedProgram) -> Callable[..., Any]:
        from graft.exporter.export import export_for_load
        from graft.runtime import load

        with tempfile.TemporaryDirectory() as folder:
            path = export_for_load(exported, Path(folder) / "graph.pte", quantize=self._options.get("quantize"))
            # The file stays mapped after the folder is removed.
            return load(
                path,
                threads=self._options.get("threads", 0),
                device=self._options.get("device", ""),
                # Nodes of two graphs may have one name.
                seed=(self._options.get("seed", 0) + 0x9E3779B97F4A7C15 * next(_graphs)) % 2**64,
            )

    def _split(self, exported: ExportedProgram, error: Exception) -> Callable[..., Any]:
        from graft import partition

        program, refused = partition.refused(exported)
        if not refused:
            raise error  # nothing that PyTorch could run instead
        by_inductor = self._options["rest"] == "inductor"
        if by_inductor:
            _require_compiler()
        found = partition.split(
            program,
            refused,
            lambda graph, values, held: _Compiled(_Program(graph, values, held), self._options, part=True),
            _by_inductor if by_inductor else None,
        )
        _count(found.left, found.compiled, parts=found.parts, nodes=found.nodes)
        listed = "; ".join(
            f"{target} ({count}): {found.reasons[target]}"
            for target, count in sorted((found.left + found.compiled).items())
        )
        inductor = f"TorchInductor runs {found.compiled.total()} nodes of a graph, " if by_inductor else ""
        eager = f"{found.left.total()}{'' if by_inductor else ' nodes of a graph'}"
        warnings.warn(
            f"torch.compile(backend='graft'): {inductor}eager PyTorch runs {eager}, graft "
            f"{found.nodes} in {found.parts} parts around them: {listed}",
            RuntimeWarning,
            stacklevel=2,
        )
        return found.module


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as e:
        raise Unsupported(
            "torch.compile(backend='graft'): rest='inductor' needs a C++ compiler, which TorchInductor does not find "
            f"(the environment's CXX names one); rest='eager' needs none: {e}"
        ) from e


def _by_inductor(part: torch.fx.GraphModule, values: Sequence[Any]) -> torch.nn.Module:
    """values: metadata of the inputs. Sizes that the graph leaves open stay so."""
    is_open = any(isinstance(value, torch.Tensor) and not _is_fixed(value) for value in values)
    return torch.compile(part, backend="inductor", dynamic=is_open)


def _is_fixed(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _argument(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else int(value)


class _Program(torch.nn.Module):
    """The graph with parameters and buffers of its own; sizes of tensors are no arguments."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        held: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        """held: arguments that are weights, besides those that dynamo lifted."""
        super().__init__()
        self.module = module
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.places: list[int] = []  # positions of the arguments that stay arguments
        self.dynamic_shapes: list[Any] = []
        # Indices of arguments that are Python numbers in tensors: with dynamic=True dynamo lifts a model's floats, such as
        # the eps of a norm.
        self.numbers: list[int] = []
        self._held: dict[int, str] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # size argument -> (tensor argument, dimension)
        symbols: dict[Any, tuple[int, int]] = {}
        for place, (node, example) in enumerate(zip(placeholders, example_inputs)):
            value = node.meta.get("example_value", example)
            if not isinstance(value, torch.Tensor):
                continue
            number = value.dim() == 0 and value.dtype == torch.float64 and node.users and all(map(_is_item, node.users))
            # A weight: dynamo lifts parameters and buffers to inputs.
            if place in held or isinstance(example, torch.nn.Parameter) or (_is_buffer(node) and not number):
                name = self._held[place] = f"held_{place}"
                weight = held.get(place, example)
                if isinstance(weight, torch.nn.Parameter):  # those are quantized
                    self.register_parameter(name, torch.nn.Parameter(weight.detach(), requires_grad=False))
                else:
                    self.register_buffer(name, weight.detach())
                continue
            if number:
                self.numbers.append(len(self.places))
            dims: dict[int, Any] = {}
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    dims[dim] = Dim.AUTO
                    symbols.setdefault(size.node.expr, (len(self.places), dim))
            self.places.append(place)
            self.dynamic_shapes.append(dims)
        for place, (node, example) in enumerate(zip(placeholders, example_inputs)):
            value = node.meta.get("example_value", example)
            if isinstance(value, torch.Tensor):
                continue
            if isinstance(value, torch.SymInt) and value.node.expr in symbols:
                self._sizes[place] = symbols[value.node.expr]
            elif isinstance(value, (int, torch.SymInt)):
                self.places.append(place)
                self.dynamic_shapes.append(Dim.AUTO if isinstance(value, torch.SymInt) else None)
            else:
                raise Unsupported(
                    f"torch.compile(backend='graft'): expected tensors and integers as arguments of the graph, found "
                    f"'{node.name}' of type {type(value).__name__}"
                )
        self._count = len(placeholders)

    def with_numbers(self, examples: Sequence[Any]) -> _Program:
        """The same program with these values of its numbers written into the graph."""
        fixed = copy.copy(self)
        fixed._modules = dict(self._modules)
        fixed.module = torch.fx.GraphModule(self.module, copy.deepcopy(self.module.graph))
        placeholders = [node for node in fixed.module.graph.nodes if node.op == "placeholder"]
        for i in self.numbers:
            for item in list(placeholders[self.places[i]].users):
                item.replace_all_uses_with(examples[i].item())
                fixed.module.graph.erase_node(item)
        fixed.module.recompile()
        return fixed

    def forward(self, *args: Any) -> Any:
        by_place = dict(zip(self.places, args))
        whole: list[Any] = []
        for place in range(self._count):
            if place in self._held:
                whole.append(getattr(self, self._held[place]))
            elif place in self._sizes:
                argument, dim = self._sizes[place]
                whole.append(args[argument].shape[dim])
            else:
                whole.append(by_place[place])
        results = self.module(*whole)
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def _is_item(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _is_buffer(node: torch.fx.Node) -> bool:
    """Whether the argument is an attribute of the module that is compiled."""
    source = getattr(node, "_dynamo_source", None)
    return (
        source is not None
        and getattr(source, "guard_source", None) is not None
        and source.guard_source.is_unspecialized_nn_module()
    )


__all__ = ["backend", "counters"]
