"""What ExecuTorch's runners of language models ask of a package: a method of tokens and a position, and constants."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

_aten = torch.ops.aten


def of_one_sequence(program: ExportedProgram) -> ExportedProgram:
    """The program `step` (graft.llm.trace) as ExecuTorch's TextLLMRunner calls a model:

        tokens [1, T], start_pos [1] (position of the first token) -> logits [1, 1, V] of the last token

    The other inputs of `step` become nodes, and its sizes B and K become 1; nothing is traced again.
    """
    graph = copy.deepcopy(program.graph)
    named = {node.name: node for node in graph.nodes}
    tokens, positions, rows, kept = (named[name] for name in program.graph_signature.user_inputs)
    ones = {node.meta["val"].shape[0].node.expr: sympy.Integer(1) for node in (tokens, kept)}
    _substitute(graph, ones)

    fake = tokens.meta["val"].fake_mode
    count = tokens.meta["val"].shape[1]
    with graph.inserting_after(tokens):
        start = graph.placeholder("start_pos")
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with fake, graph.inserting_after(last_input):
        start.meta["val"] = torch.empty(1, dtype=torch.int64)
        size = _call(graph, count, _aten.sym_size.int, tokens, 1)
    with fake, graph.inserting_after(size):
        options = dict(dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
        indices = _call(graph, torch.empty(count, dtype=torch.int64), _aten.arange.default, size, **options)
    with fake, graph.inserting_after(indices):
        moved = _call(graph, indices.meta["val"], _aten.add.Tensor, indices, start)
    with fake, graph.inserting_after(moved):
        sequence = _call(graph, torch.empty(1, count, dtype=torch.int64), _aten.unsqueeze.default, moved, 0)
    with fake, graph.inserting_after(sequence):
        last = _call(graph, torch.empty(1, dtype=torch.int64), _aten.slice.Tensor, indices, 0, -1, 2**63 - 1)
    for old, new in ((positions, sequence), (rows, sequence), (kept, last)):
        old.replace_all_uses_with(new)
        graph.erase_node(old)
    graph.lint()

    specs: list[InputSpec] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            specs.append(spec)
        elif spec.arg.name == tokens.name:
            specs += [spec, InputSpec(InputKind.USER_INPUT, TensorArgument(name=start.name), None)]
    top = program.module_call_graph[0]
    in_spec = pytree.tree_structure(((0, 0), {}))
    signature = dataclasses.replace(top.signature, in_spec=in_spec)
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, list(program.graph_signature.output_specs)),
        state_dict=program.state_dict,
        range_constraints={k: v for k, v in program.range_constraints.items() if k not in ones},
        module_call_graph=[dataclasses.replace(top, signature=signature), *program.module_call_graph[1:]],
        example_inputs=None,
        constants=program.constants,
        verifiers=[program.verifier],
    )


def constants(metadata: Mapping[str, Any], kv_length: int) -> dict[str, bool | int | Sequence[int]]:
    """Values of the methods without inputs that the runner looks for (extension/llm/runner/constants.h), from the
    package's description. kv_length: tokens that the cache takes where nobody sets another number."""
    found = {
        "get_max_seq_len": min(metadata["context_length"], kv_length),
        "get_max_context_len": kv_length,
        "get_vocab_size": metadata["vocab_size"],
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }
    if metadata["bos_token_ids"]:
        found["get_bos_id"] = metadata["bos_token_ids"][0]
    if metadata["eos_token_ids"]:
        found["get_eos_ids"] = list(metadata["eos_token_ids"])
    return found


def _call(graph: torch.fx.Graph, value: Any, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = value
    return node


def _substitute(graph: torch.fx.Graph, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> None:
    """Gives symbols of sizes values, in the metadata of all nodes."""

    def size(value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr.xreplace(sizes)
        if expression.is_Integer:
            return int(expression)
        return value.node.shape_env.create_symintnode(expression, hint=None)

    def substituted(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return size(value)
        if not any(isinstance(n, torch.SymInt) and n.node.expr.free_symbols & sizes.keys() for n in value.shape):
            return value
        with value.fake_mode:
            return torch.empty([size(n) for n in value.shape], dtype=value.dtype)

    for node in graph.nodes:
        if "val" in node.meta:
            node.meta = {**node.meta, "val": pytree.tree_map(substituted, node.meta["val"])}


__all__ = ["constants", "of_one_sequence"]
