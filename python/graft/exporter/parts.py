"""Operators that graft runs as what they are made of, put in their place in a traced graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx


def _antialiased(reach: int, weight: Any) -> Any:
    """Resizing whose filter grows with what a pixel stands for: a product with a matrix for each of the two dimensions.
    weight: of a distance, in pixels of the smaller side; reach: where it ends."""

    def matrix(x: torch.Tensor, held: Any, made: Any, factor: float | None) -> torch.Tensor:
        step = 1 / factor if factor else held / made
        centers = (torch.arange(made, dtype=x.dtype) + 0.5) * step
        away = ((torch.arange(held, dtype=x.dtype) + 0.5).unsqueeze(0) - centers.unsqueeze(1)).abs() / torch.sym_max(step, 1.0)
        weights = torch.where(away < reach, weight(away), 0.0)
        return weights / weights.sum(1, keepdim=True)

    def rule(x: torch.Tensor, size: Any, align_corners: bool, by_rows: float | None = None, by_columns: float | None = None) -> Any:
        if align_corners:
            raise NotImplementedError
        rows = matrix(x, x.shape[-2], size[0], by_rows)
        return rows @ x @ matrix(x, x.shape[-1], size[1], by_columns).t()

    return rule


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Keys' kernel with a = -0.5, as Pillow has it."""
    return torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


def _by_size_or_factors(rule: Any) -> Any:
    """The same with sizes or factors, as torch.nn.functional.interpolate gives them."""

    def by_either(x: torch.Tensor, size: Any, align_corners: bool, factors: Any) -> Any:
        if size is None:
            size = [torch.sym_int(held * factor) for held, factor in zip(x.shape[-2:], factors)]
        return rule(x, size, align_corners, *(factors or ()))

    return by_either


_BILINEAR, _BICUBIC = _antialiased(1, lambda x: 1 - x), _antialiased(2, _cubic)
# For which PyTorch has no decomposition.
ANTIALIASED = {
    torch.ops.aten._upsample_bilinear2d_aa.default: _BILINEAR,
    torch.ops.aten._upsample_bilinear2d_aa.vec: _by_size_or_factors(_BILINEAR),
    torch.ops.aten._upsample_bicubic2d_aa.default: _BICUBIC,
    torch.ops.aten._upsample_bicubic2d_aa.vec: _by_size_or_factors(_BICUBIC),
}


def without_antialiased(program: ExportedProgram) -> ExportedProgram:
    """The program that is given stays as it is; one without resizing with antialiasing is given back."""
    if not any(node.target in ANTIALIASED for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    made = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )
    nodes = [node for node in made.graph.nodes if node.target in ANTIALIASED]
    return made if take_apart(made, nodes, ANTIALIASED.get) else program


def take_apart(program: ExportedProgram, nodes: Iterable[torch.fx.Node], rule_of: Callable[[Any], Any]) -> bool:
    """Puts what the nodes are made of in their place; leaves those that mutate, or give several results, or for which
    rule_of(target) is None. Whether it changed any."""
    changed = False
    for node in nodes:
        rule = rule_of(node.target)
        if rule is None or node.target._schema.is_mutable or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        parts = _parts(node, rule)
        if parts is None:
            continue
        node.replace_all_uses_with(parts)
        program.graph_signature.replace_all_uses(node.name, parts.name)
        program.graph.erase_node(node)
        changed = True
    if changed:
        program.graph.lint()
        program.graph_module.recompile()
    return changed


def _parts(node: torch.fx.Node, rule: Any) -> torch.fx.Node | None:
    """The node that gives what it gives, behind new ones before it."""
    given = list(node.all_input_nodes)
    values = [one.meta.get("val") for one in given]
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    if mode is None or any(v is None for v in values):
        return None

    def call(*values: Any) -> Any:
        by_node = dict(zip(given, values))
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), by_node.__getitem__)
        return rule(*args, **kwargs)

    try:
        with mode, enable_python_dispatcher():
            made = make_fx(call)(*values)
    except Exception:  # whatever the rule raises: the node stays
        return None
    (output,) = made.graph.find_nodes(op="output")
    if not isinstance(output.args[0], torch.fx.Node) or made.graph.find_nodes(op="get_attr"):
        return None
    placed = dict(zip(made.graph.find_nodes(op="placeholder"), given))
    about = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta", "eager_input_vals")}
    with node.graph.inserting_before(node):
        for part in made.graph.nodes:
            if part.op == "call_function":
                placed[part] = node.graph.node_copy(part, placed.__getitem__)
                val = {"val": part.meta["val"]} if "val" in part.meta else {}  # assertions give nothing
                placed[part].meta = {**about, **val}
    return placed[output.args[0]]


__all__ = ["ANTIALIASED", "take_apart", "without_antialiased"]
