"""Cuts a graph that graft does not run whole into parts that it runs, and what is left to PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree


@dataclass
class Split:
    """A module that calls the parts, and what is in neither of them."""

    module: torch.fx.GraphModule
    parts: int = 0
    nodes: int = 0  # of the parts
    # Of what is left to eager PyTorch, and to another compiler: how many nodes by operator, and why.
    left: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)


def refused(program: ExportedProgram) -> tuple[ExportedProgram, dict[str, tuple[str, str]]]:
    """The program decomposed as far as graft needs it, and its nodes that graft does not run: (target, reason) by name."""
    from graft.exporter import quiet, targets, torch_export
    from graft.exporter.predicate import engine, refused_nodes
    from graft.exporter.serialize import serialize

    whole = set(engine().preserved_targets())
    table = {op: how for op, how in torch.export.default_decompositions().items() if targets.op_name(op) not in whole}
    with quiet.lowering(), torch_export.tracing():
        program = program.run_decompositions(table)
    return program, refused_nodes(engine(), serialize(program, strict=False, content=False))


def split(
    program: ExportedProgram,
    nodes: dict[str, tuple[str, str]],
    compile_part: Callable[[torch.fx.GraphModule, Sequence[Any], dict[int, torch.Tensor]], Callable[..., Any]],
    compile_rest: Callable[[torch.fx.GraphModule, Sequence[Any]], torch.nn.Module] | None = None,
) -> Split:
    """A module that runs the program, of the nodes that `refused` gave. compile_part(graph, values, held): the callable
    for a part, from the metadata of its inputs, and those that are weights, by position. compile_rest(graph, values): for
    what lies between parts; None leaves all of it to eager PyTorch."""
    module = program.module(check_guards=False)
    partitions = CapabilityBasedPartitioner(module, _Supported(nodes), allows_single_node_partition=True)
    proposed = [part for part in partitions.propose_partitions() if any(map(_computes, part.nodes))]
    found = Split(module)
    for part in proposed:
        found.nodes += sum(node.op == "call_function" for node in part.nodes)
    inside = {node for part in proposed for node in part.nodes}
    names: dict[str, str] = {}  # of the nodes that are left: their operators
    for node in module.graph.nodes:
        if node.op == "call_function" and node not in inside and (node.name in nodes or _computes(node)):
            target, reason = nodes.get(node.name, (str(node.target), "on its own between nodes that graft does not run"))
            names[node.name] = target
            found.reasons.setdefault(target, reason)
    fused = partitions.fuse_partitions(proposed, prefix="graft_part_")
    written = {str(node.args[0].target) for node in fused.graph.nodes if _writes_an_attribute(node)}
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith("graft_part_"):
            continue
        part = fused.get_submodule(node.target)
        weights = {i: arg for i, arg in enumerate(node.args) if arg.op == "get_attr" and str(arg.target) not in written}
        held = {i: _attribute(fused, arg) for i, arg in weights.items()}
        values = [arg.meta["val"] if "val" in arg.meta else _attribute(fused, arg) for arg in node.args]
        setattr(fused, node.target, _Called(compile_part(part, values, held)))
        found.parts += 1
    found.module = fused if compile_rest is None else _compile_rest(fused, compile_rest, found, names)
    found.left.update(names.values())
    found.module.recompile()
    return found


def _compile_rest(
    module: torch.fx.GraphModule, compile_rest: Callable[..., Any], found: Split, names: dict[str, str]
) -> torch.fx.GraphModule:
    """Takes what it compiles out of `names`."""
    partitions = CapabilityBasedPartitioner(module, _Supported({}), allows_single_node_partition=True)
    proposed = [part for part in partitions.propose_partitions() if any(map(_computes, part.nodes))]
    for part in proposed:
        found.compiled.update(names.pop(node.name) for node in part.nodes if node.name in names)
    fused = partitions.fuse_partitions(proposed, prefix="rest_part_")
    for node in fused.graph.nodes:
        if node.op == "call_module" and str(node.target).startswith("rest_part_"):
            values = [arg.meta["val"] if "val" in arg.meta else _attribute(fused, arg) for arg in node.args]
            setattr(fused, node.target, compile_rest(fused.get_submodule(node.target), values))
    return fused


class _Supported(OperatorSupportBase):
    def __init__(self, refused: dict[str, tuple[str, str]]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        """Operators on tensors. Numbers, writes to buffers and inputs, and control flow stay with PyTorch."""
        if node.op != "call_function" or node.name in self._refused:
            return False
        if getattr(node.target, "__name__", "") == "getitem":
            return self.is_node_supported(submodules, node.args[0])
        if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
            return False
        leaves = pytree.tree_leaves(node.meta.get("val"))
        return bool(leaves) and all(isinstance(leaf, torch.Tensor) for leaf in leaves)


class _Called(torch.nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def forward(self, *args: Any) -> Any:
        results = self._call(*args)
        return results[0] if len(results) == 1 else results


def _computes(node: torch.fx.Node) -> bool:
    """Whether a node does more than describe a tensor anew."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return all(result.alias_info is None for result in node.target._schema.returns) and any(
        isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(node.meta.get("val"))
    )


def _writes_an_attribute(node: torch.fx.Node) -> bool:
    """Such as the `copy_` at the end of a program that writes a buffer."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return False
    return isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "get_attr"


def _attribute(module: torch.nn.Module, node: torch.fx.Node) -> torch.Tensor:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


__all__ = ["Split", "refused", "split"]
