"""`torch.compile(model, backend="graft")`: graphs that TorchDynamo captures run on the engine. For inference."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from graft.errors import Unsupported

_graphs = itertools.count()  # loaded in this process


def backend(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What torch.compile calls with a captured graph. Its weights are copied: compile again after changing them.

    options: threads; device, a name of `graft.devices()`; seed, of random numbers; quantize, as `graft.export` takes it. A
    graph with nodes that graft does not run is an error; so is one that needs gradients."""
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in example_inputs):
        raise Unsupported(
            "torch.compile(backend='graft'): graft computes no gradients; call the model under torch.no_grad(), or "
            "after requires_grad_(False)"
        )
    return _Compiled(_Program(module, example_inputs), dict(options or {}))


class _Compiled:
    """Exports at the first call: dynamo's own trace must be over by then."""

    def __init__(self, program: _Program, options: dict[str, Any]) -> None:
        self._program, self._options = program, options
        self._places = program.places
        self._lock = threading.Lock()
        self._model: Any = None

    def __call__(self, *args: Any) -> Any:
        given = [_argument(args[place]) for place in self._places]
        if self._model is None:
            with self._lock:
                if self._model is None:
                    self._model = self._load(given)
                    self._program = None
        return self._model(*given)

    def _load(self, examples: Sequence[Any]) -> Any:
        from graft.exporter.export import export
        from graft.runtime import load

        shapes = (tuple(self._program.dynamic_shapes),)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            exported = torch.export.export(self._program, tuple(examples), dynamic_shapes=shapes, strict=False)
            path = export(exported, path=Path(folder) / "graph.pte", quantize=self._options.get("quantize"))
            # The file stays mapped after the folder is removed.
            return load(
                path,
                threads=self._options.get("threads", 0),
                device=self._options.get("device", ""),
                # Nodes of two graphs may have one name.
                seed=(self._options.get("seed", 0) + 0x9E3779B97F4A7C15 * next(_graphs)) % 2**64,
            )


def _argument(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else int(value)


class _Program(torch.nn.Module):
    """The graph with parameters and buffers of its own; sizes of tensors are no arguments."""

    def __init__(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        super().__init__()
        self.module = module
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.places: list[int] = []  # positions of the arguments that stay arguments
        self.dynamic_shapes: list[Any] = []
        self._held: dict[int, str] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # size argument -> (tensor argument, dimension)
        symbols: dict[Any, tuple[int, int]] = {}
        for place, (node, example) in enumerate(zip(placeholders, example_inputs)):
            value = node.meta.get("example_value", example)
            if not isinstance(value, torch.Tensor):
                continue
            # A weight: dynamo lifts parameters and buffers to inputs.
            if isinstance(example, torch.nn.Parameter) or _is_buffer(node):
                self._held[place] = f"held_{place}"
                self.register_buffer(f"held_{place}", example.detach())
                continue
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
        return tuple(self.module(*whole))


def _is_buffer(node: torch.fx.Node) -> bool:
    """Whether the argument is an attribute of the module that is compiled."""
    source = getattr(node, "_dynamo_source", None)
    return (
        source is not None
        and getattr(source, "guard_source", None) is not None
        and source.guard_source.is_unspecialized_nn_module()
    )


__all__ = ["backend"]
