"""Graphs of torch.cond and torch.while_loop that write buffers or inputs become functional: they return what they wrote."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from graft.errors import ExportError

_COND, _LOOP = torch.ops.higher_order.cond, torch.ops.higher_order.while_loop
_aten = torch.ops.aten


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """The program with writes of such graphs to their operands made outside of them, where lowering understands them:
    a branch writes a copy, which is a result of it, and the operand takes this result behind the node. The program that is
    given stays as it is; one in which nothing is written is given back."""
    if not any(_written_by(node, program.graph_module) for node in _calls(program.graph_module)):
        return program
    module = copy.deepcopy(program.graph_module)
    _rewrite(module)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and node.target in (_COND, _LOOP)]


def _graphs(node: torch.fx.Node, module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """Those that the node calls: of a condition both branches, of a loop its condition and its body."""
    return [module.get_submodule(str(arg.target)) for arg in node.args[1 if node.target is _COND else 0 :][:2]]


def _operands(node: torch.fx.Node) -> list[Any]:
    return list(node.args[3]) if node.target is _COND else [*node.args[2], *node.args[3]]


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _written_by(node: torch.fx.Node, module: torch.fx.GraphModule) -> list[int]:
    """Which operands the node's graphs, and those that they call, write."""
    return sorted(set().union(*(_written(graph) for graph in _graphs(node, module))))


def _written(module: torch.fx.GraphModule) -> set[int]:
    """Which inputs of a graph are written: first arguments of operators like `add_`, and views of them."""
    root = {node: i for i, node in enumerate(_placeholders(module))}
    written: set[int] = set()
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in (_COND, _LOOP):
            operands = _operands(node)
            written |= {root[operands[i]] for i in _written_by(node, module) if operands[i] in root}
        schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
        for argument, value in zip(schema.arguments if schema else (), node.args):
            if argument.alias_info is None or not isinstance(value, torch.fx.Node) or value not in root:
                continue
            if argument.alias_info.is_write:
                written.add(root[value])
            root.setdefault(node, root[value])
    return written


def _rewrite(module: torch.fx.GraphModule) -> None:
    for node in _calls(module):
        graphs = _graphs(node, module)
        for graph in graphs:
            _rewrite(graph)
        written = _written_by(node, module)
        if not written:
            continue
        operands = _operands(node)
        (_cond if node.target is _COND else _loop)(node, graphs, operands, written)
        _store(module, node, [operands[i] for i in written])
        module.recompile()


def _cond(
    node: torch.fx.Node, graphs: list[torch.fx.GraphModule], operands: Sequence[torch.fx.Node], written: Sequence[int]
) -> None:
    for graph in graphs:
        _return_copies(graph, written)


def _loop(
    node: torch.fx.Node, graphs: list[torch.fx.GraphModule], operands: Sequence[torch.fx.Node], written: Sequence[int]
) -> None:
    """What the body writes is carried from round to round."""
    carried = len(node.args[2])
    if _written(graphs[0]):
        raise ExportError(f"node '{node.name}': the condition of torch.while_loop writes a tensor; expected only its body to")
    if any(i < carried for i in written):
        raise ExportError(
            f"node '{node.name}': the body of torch.while_loop writes what the loop carries; expected it to return that"
        )
    for graph in graphs:
        inputs = _placeholders(graph)
        behind = inputs[carried - 1]
        for i in written:
            behind.append(inputs[i])
            behind = inputs[i]
    _return_copies(graphs[1], range(carried, carried + len(written)))
    graphs[0].recompile()
    others = [operand for i, operand in enumerate(operands) if i >= carried and i not in written]
    node.args = (*node.args[:2], (*operands[:carried], *(operands[i] for i in written)), tuple(others))
    node.kwargs = {}


def _return_copies(graph: torch.fx.GraphModule, written: Sequence[int]) -> None:
    inputs = _placeholders(graph)
    output = graph.graph.output_node()
    results = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    for i in written:
        with graph.graph.inserting_after(inputs[-1]):
            own = graph.graph.call_function(_aten.clone.default, (inputs[i],))
        own.meta["val"] = inputs[i].meta.get("val")
        inputs[i].replace_all_uses_with(own, delete_user_cb=lambda user, own=own: user is not own)
        results.append(own)
    output.args = (tuple(results),)
    graph.recompile()


def _store(module: torch.fx.GraphModule, node: torch.fx.Node, operands: Sequence[torch.fx.Node]) -> None:
    """The operands take the node's last results; what reads them behind it reads these."""
    values = list(node.meta["val"])
    at = node
    for i, operand in enumerate(operands):
        for target, args in ((operator.getitem, (node, len(values) + i)), (_aten.copy_.default, (operand, None))):
            with module.graph.inserting_after(at):
                at = module.graph.call_function(target, tuple(at if arg is None else arg for arg in args))
            at.meta["val"] = operand.meta.get("val")
    node.meta["val"] = tuple([*values, *(operand.meta.get("val") for operand in operands)])


__all__ = ["without_writes"]
