"""Writes exported programs in the format of schema/graft.fbs. Knows no operator: names and argument order come from
PyTorch's own schemas (`targets.py`)."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.export.graph_signature import InputKind as _In
from torch.export.graph_signature import OutputKind as _Out
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from graft._fb.OutputKind import OutputKind
from graft.exporter.program import (
    UNBOUNDED,
    Blob,
    MethodBuilder,
    ProgramBuilder,
    SerializeError,
    Signature,
    StoredWeight,
    tensor_bytes,
    unheld,
    user_input_names,
)

__all__ = [
    "UNBOUNDED",
    "Blob",
    "SerializeError",
    "Signature",
    "StoredWeight",
    "declared_lower_bounds",
    "serialize",
    "serialize_graph",
    "serialize_op",
    "user_input_names",
    "weight_digests",
]

# Names that ExecuTorch generates for constants: in two programs they can stand for different bytes.
_LIFTED = re.compile(r"_lifted_tensor_constant\d+")


def serialize(
    program: ExportedProgram | Mapping[str, ExportedProgram],
    *,
    strict: bool = True,
    content: bool = True,
    signature: Signature | None = None,
    content_keys: Iterable[str] = (),
    leave_out: Mapping[str, str] | None = None,
    lower_bounds: Mapping[str, int] | None = None,
    quantize: Mapping[str, str] | None = None,
    stored: Mapping[str, StoredWeight] | None = None,
    states: Collection[str] = (),
) -> Blob:
    """One blob for a program (its method is named "forward") or for several by method name.

    strict: raise SerializeError for a node that the format cannot hold; otherwise list it under `problems` and write
    it under a target that no reader accepts. content: hash the weights and hand back their bytes; without it keys and
    hashes say nothing (enough to ask which nodes run). content_keys: names of weights to be keyed by content although
    they have a name, because another method gives the same name to other bytes. quantize: types by names of
    weights that are written as that type (see quantization.py) instead of their own. stored: weights by qualified name that
    are described instead of looked at: their tensors may be without data (FakeTensor). states: names of buffers that
    are states although the program only reads them, because another method writes them.
    """
    methods = {"forward": program} if isinstance(program, ExportedProgram) else dict(program)
    builder = ProgramBuilder(
        strict=strict,
        content=content,
        content_keys=frozenset(content_keys),
        leave_out=leave_out,
        quantize=quantize,
        stored=stored,
    )
    for name, exported in methods.items():
        _method_of_export(builder, name, exported, signature or Signature.of(exported), lower_bounds or {}, states)
    return builder.finish()


def serialize_graph(
    module: torch.fx.GraphModule | torch.fx.Graph, *, strict: bool = True, content: bool = True
) -> Blob:
    """A plain fx graph whose nodes carry `meta["val"]`: placeholders are user inputs, attributes weights. A graph
    without attributes needs no module."""
    builder = ProgramBuilder(strict=strict, content=content)
    builder.methods.append(MethodBuilder(builder, "forward", module, {}).plain())
    return builder.finish()


def serialize_op(
    target: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Mapping[int, Mapping[int, tuple[int, int | None]]] | None = None,
) -> bytes:
    """A program of one call, without torch.export: metadata come from calling `target` on the example.

    User inputs are the tensors among the arguments in order (lists flattened); everything else is constant. `dynamic`
    gives ranges {input position: {dimension: (min, max or None)}}; then `target` is called on symbolic sizes.
    """
    kwargs = dict(kwargs or {})
    graph = torch.fx.Graph()
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    fake_mode = _symbolic_mode() if dynamic else None
    nodes: list[Any] = []
    values: list[Any] = []
    position = 0
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            nodes.append(leaf)
            values.append(leaf)
            continue
        value = leaf if fake_mode is None else _symbolic(fake_mode, leaf, (dynamic or {}).get(position, {}), position)
        node = graph.placeholder(f"input_{position}")
        node.meta["val"] = value
        nodes.append(node)
        values.append(value)
        position += 1
    value_args, value_kwargs = pytree.tree_unflatten(values, spec)
    with torch.no_grad():
        result = target(*value_args, **value_kwargs)
    node_args, node_kwargs = pytree.tree_unflatten(nodes, spec)
    node = graph.call_function(target, node_args, node_kwargs)
    node.meta["val"] = result
    if isinstance(result, (tuple, list)):
        results = []
        for i, item in enumerate(result):
            if item is not None:
                pick = graph.call_function(operator.getitem, (node, i))
                pick.meta["val"] = item
                results.append(pick)
        graph.output(tuple(results))
    else:
        graph.output((node,))
    return serialize_graph(graph).data


def weight_digests(program: ExportedProgram) -> dict[str, bytes]:
    """SHA-256 of every named parameter and persistent buffer, to find names that two methods use differently."""
    return {name: hashlib.sha256(tensor_bytes(tensor, name)).digest() for name, tensor in program.state_dict.items()}


def _symbolic_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def _symbolic(mode: Any, tensor: torch.Tensor, ranges: Mapping[int, tuple[int, int | None]], position: int) -> Any:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if d in ranges else DimDynamic.STATIC for d in range(tensor.dim())]
    fake = mode.from_tensor(
        tensor,
        source=ConstantSource(f"input_{position}"),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
    )
    for d, (low, high) in ranges.items():
        symbol = fake.shape[d].node.expr
        mode.shape_env.var_to_range[symbol] = ValueRanges(max(low, 2), int_oo if high is None else high)
    return fake


def declared_lower_bounds(program: ExportedProgram) -> dict[str, int]:
    """Lower bounds below 2 by symbol, as the model's owner declared them. ExecuTorch's passes turn them into 2."""
    bounds = program.range_constraints.items()
    return {str(expr): int(found.lower) for expr, found in bounds if expr.is_symbol and found.lower in (0, 1)}


def _method_of_export(
    builder: ProgramBuilder,
    name: str,
    program: ExportedProgram,
    signature: Signature,
    lower_bounds: Mapping[str, int],
    written_elsewhere: Collection[str],
) -> None:
    ranges = dict(program.range_constraints)
    for expr, found in ranges.items():
        if found.lower == 2 and str(expr) in lower_bounds:
            ranges[expr] = ValueRanges(lower_bounds[str(expr)], found.upper)
    method = MethodBuilder(builder, name, program.graph_module, ranges)
    specs = program.graph_signature
    mutated = {
        spec.target for spec in specs.output_specs if spec.kind in (_Out.BUFFER_MUTATION, _Out.PARAMETER_MUTATION)
    }
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    positions: dict[str, int] = {}
    states: dict[str, int] = {}
    others: list[torch.fx.Node] = []  # weights and states that the format cannot hold, declared as unused inputs
    for spec in specs.input_specs:
        node = placeholders.get(spec.arg.name)
        if spec.kind == _In.USER_INPUT:
            position = positions[spec.arg.name] = len(positions)
            if node is None:
                raise SerializeError(f"user input '{spec.arg.name}': expected a placeholder, found none")
            if isinstance(spec.arg, ConstantArgument):
                node.meta["val"] = spec.arg.value
            method.user_input(node, position)
        elif spec.kind in (_In.PARAMETER, _In.BUFFER, _In.CONSTANT_TENSOR):
            assert node is not None and spec.target is not None
            tensor = program.state_dict.get(spec.target)
            if tensor is None:
                tensor = program.constants[spec.target]
            persistent = spec.kind != _In.CONSTANT_TENSOR and spec.target in program.state_dict
            persistent = persistent and _LIFTED.fullmatch(spec.target) is None
            if not builder.strict and unheld(tensor):
                others.append(node)
            elif spec.target in mutated or (spec.kind == _In.BUFFER and spec.target in written_elsewhere):
                states[spec.target] = builder.state(spec.target, tensor, persistent=persistent)
                method.state_input(node, states[spec.target])
            elif method.is_live(node):
                method.weight_input(node, builder.weight(spec.target, tensor, named=persistent))
        elif node is not None and method.is_live(node) and builder.strict:
            raise SerializeError(f"input '{spec.arg.name}': expected a tensor or a number, found {spec.kind.name}")
    for position, node in enumerate(others, len(positions)):
        method.user_input(node, position)
    if others:
        names = (*signature.user_input_names, *(node.name for node in others))
        signature = dataclasses.replace(signature, user_input_names=names)
    method.nodes()
    results = method.output_node.args[0]
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    user = 0
    for spec, arg in zip(specs.output_specs, results):
        if spec.kind in (_Out.BUFFER_MUTATION, _Out.PARAMETER_MUTATION):
            if spec.target in states:  # not one of `others`
                method.output(OutputKind.state_mutation, arg, states[spec.target])
        elif spec.kind == _Out.USER_INPUT_MUTATION:
            method.output(OutputKind.input_mutation, arg, positions[spec.target])
        elif spec.kind in (_Out.USER_OUTPUT, _Out.LOSS_OUTPUT):
            method.output(OutputKind.user, arg, user)
            user += 1
        elif spec.kind != _Out.TOKEN:
            raise SerializeError(f"output '{spec.arg.name}': expected an inference program, found {spec.kind.name}")
    builder.methods.append(method.finish(signature))
