"""From the traced program to the blob of the package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from graft.errors import ExportError
from graft.exporter import parts, targets, torch_export
from graft.exporter.complex_pairs import without_complex
from graft.exporter.predicate import Predicate, engine, refused_nodes
from graft.exporter.serialize import Blob, SerializeError, StoredWeight, serialize

_CASTS = {
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
    torch.ops.aten.to.device,
    torch.ops.aten._to_copy.default,
}


def _bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> torch.Tensor:
    """The first boundary at or beyond (with right: beyond) each element; boundaries are sorted. NaN is beyond all."""
    reached = boundaries > x.unsqueeze(-1) if right else boundaries >= x.unsqueeze(-1)
    return reached.logical_not().sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


# Operators that PyTorch would keep, and that graft runs decomposed or under another name.
_PARTS = {
    torch.ops.aten.conv1d.default: lambda x, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), groups=1: (
        torch.convolution(x, weight, bias, stride, padding, dilation, False, (0,), groups)
    ),
    torch.ops.aten.bucketize.Tensor: _bucketize,
    torch.ops.aten._is_all_true.default: torch.all,
    torch.ops.aten._is_any_true.default: torch.any,
    torch.ops.aten.min.other: torch.minimum,
    torch.ops.aten.max.other: torch.maximum,
    **parts.ANTIALIASED,
}
_SAME = {torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten.lift_fresh_copy.default}


def lower(
    program: ExportedProgram,
    stored: Mapping[str, StoredWeight],
    predicate: Predicate | None = None,
    method: str = "forward",
) -> tuple[ExportedProgram, Blob]:
    """The program as it is written, and its blob. Raises ExportError for nodes that graft does not run."""
    program = without_complex(program)
    _drop_no_ops(program)
    _make_functional(program)
    # What graft runs only decomposed is taken apart where it stands. Decomposing the program retraces it, which takes longer
    # than the trace: that is for operators that mutate an argument.
    refused, blob = _checked(program, stored, predicate, method)
    if refused and _take_apart(program, refused):
        _drop_no_ops(program)
        refused, blob = _checked(program, stored, predicate, method)
    table: dict[Any, Any] = {}
    while refused:
        more = _decompositions(program, refused)
        if table and more.keys() <= table.keys():
            break
        table = {**_PARTS, **table, **more}
        try:
            program.graph_module.recompile()
            with torch_export.tracing():
                program = program.run_decompositions(table)
        except Exception:  # of a graph that PyTorch itself cannot run again: the nodes are named then
            break
        _drop_no_ops(program)
        refused, blob = _checked(program, stored, predicate, method)
    if refused:
        raise ExportError(_message(refused))
    program.graph_module.recompile()
    return program, blob


def blob_of(
    program: ExportedProgram, stored: Mapping[str, StoredWeight], predicate: Predicate | None, method: str
) -> Blob:
    """The blob of a part of a lowered program. Raises ExportError for nodes that graft does not run."""
    refused, blob = _checked(program, stored, predicate, method)
    if refused:
        raise ExportError(_message(refused))
    return blob


def _checked(
    program: ExportedProgram, stored: Mapping[str, StoredWeight], predicate: Predicate | None, method: str
) -> tuple[dict[str, tuple[str, str]], Blob]:
    """What is refused, and the blob, which is good where nothing is. Raises SerializeError for a weight or an input that the
    format cannot hold, and no node is refused for."""
    try:
        blob = serialize({method: program}, stored=stored)
    except SerializeError:
        blob = serialize(program, strict=False, content=False)
        refused = refused_nodes(predicate or engine(), blob)
        if not refused:
            raise
        return refused, blob
    return refused_nodes(predicate or engine(), blob), blob


def _decompositions(program: ExportedProgram, refused: Mapping[str, tuple[str, str]]) -> dict[Any, Any]:
    """Those that PyTorch has for the operators of refused nodes: other names of operators (aten.multiply is aten.mul),
    and compositions."""
    known = torch.export.default_decompositions()
    kinds = {node.target for node in program.graph.nodes if node.name in refused}
    return {kind: known[kind] for kind in kinds if kind in known and kind not in _PARTS}


def _take_apart(program: ExportedProgram, refused: Mapping[str, tuple[str, str]]) -> bool:
    """Puts what refused nodes are made of in their place."""
    known = torch.export.default_decompositions()

    def rule(target: Any) -> Any:
        found = _PARTS.get(target) or known.get(target)
        composite = found is None and isinstance(target, torch._ops.OpOverload) and _is_composite(target)
        return target if composite else found

    return parts.take_apart(program, [node for node in program.graph.nodes if node.name in refused], rule)


def _is_composite(target: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")


def _drop_no_ops(program: ExportedProgram) -> None:
    """Casts to the dtype that is there already, multiplication by 1, assertions."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        target = targets.resolve(node.target)
        if target is not None and target.is_assertion:
            graph.erase_node(node)
            continue
        same = node.target in _SAME
        if node.target in _CASTS:
            same = node.args[0].meta["val"].dtype == node.meta["val"].dtype
        elif node.target is torch.ops.aten.mul.Tensor and isinstance(node.args[1], (int, float)):
            same = node.args[1] == 1 and node.args[0].meta["val"].dtype == node.meta["val"].dtype
        if same and node.args[0].op == "call_function":  # an output that is an input stays a node of its own
            node.replace_all_uses_with(node.args[0])
            program.graph_signature.replace_all_uses(node.name, node.args[0].name)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _make_functional(program: ExportedProgram) -> None:
    """Operators that change their first argument become those that do not, where that is all there is to it: the
    argument is a value of its own that nobody has a view of. (Routers divide the chosen weights by their sum so.)"""
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    for node in order:
        twin = _functional_twin(node)
        if twin is None:
            continue
        changed = node.args[0]
        if not _is_own(changed) or any(_may_view(user) for user in changed.users if user is not node):
            continue
        changed.replace_all_uses_with(node, delete_user_cb=lambda user, at=order[node]: order[user] > at)
        node.target = twin


def _functional_twin(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """`aten.div.Tensor` for `aten.div_.Tensor`, when it gives the same dtype and sizes."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return None
    name = node.target._schema.name.removeprefix("aten::")
    if node.target.namespace != "aten" or not name.endswith("_") or name.startswith("_"):
        return None
    twin = getattr(getattr(torch.ops.aten, name[:-1], None), node.target._overloadname, None)
    tensors = [arg.meta["val"] for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)]
    same = all(t.dtype == tensors[0].dtype and t.is_floating_point() for t in tensors)
    if twin is None or twin._schema.is_mutable or not same or tensors[0].shape != node.meta["val"].shape:
        return None
    return twin if [a.name for a in twin._schema.arguments] == [a.name for a in node.target._schema.arguments] else None


def _is_own(node: torch.fx.Node) -> bool:
    """Whether the value is new memory, made by its node."""
    maker = node.args[0] if targets.is_getitem(node) else node
    return maker.op == "call_function" and isinstance(maker.target, torch._ops.OpOverload) and not _may_view(maker)


def _may_view(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    schema = node.target._schema
    # `reshape`, `to` and `contiguous` may return their input, and their schemas do not say so.
    return _is_composite(node.target) or schema.is_mutable or any(result.alias_info is not None for result in schema.returns)


def _message(refused: Mapping[str, tuple[str, str]]) -> str:
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, why in refused.items():
        by_reason[why].append(name)
    lines = [
        f"  {target} (node '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "") + f"): {reason}"
        for (target, reason), names in by_reason.items()
    ]
    return "expected a model that graft runs whole, found\n" + "\n".join(lines)
