"""Weights in ggml's block formats: which of a program, and their bytes."""

from __future__ import annotations

import fnmatch
import os
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from graft import _C
from graft._dtypes import NUMBER_OF

# Operators that read matrix rows in their stored type, and the position of that argument.
_READERS = {torch.ops.aten.linear.default: 1, torch.ops.aten.embedding.default: 0}


# Types without blocks.
HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}


def storable_type(wanted: str, sizes: Sequence[int]) -> str:
    """The type to store a tensor as when `wanted` is asked for: `wanted` where its rows divide into blocks, else the
    nearest that they do divide into ("q4_0", "q8_0", "f16"). Raises `graft.InvalidArgument` for an unknown type."""
    return _C.storable_type(wanted, [int(n) for n in sizes])


def quantize(tensor: torch.Tensor, kind: str) -> np.ndarray:
    """The bytes (u8) of a tensor of f32, f16 or bf16 stored as that type: "f16", "bf16" or a block format of ggml."""
    tensor = tensor.detach().cpu().contiguous()
    sizes = tuple(int(n) for n in tensor.shape)
    out = np.empty(_C.stored_byte_count(kind, list(sizes)), np.uint8)
    view = (tensor.data_ptr(), NUMBER_OF[tensor.dtype], sizes)
    _C.quantize(view, kind, out.ctypes.data, out.nbytes, os.cpu_count() or 1)
    return out


def type_of(rules: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The type that the last rule that fits one of a weight's names gives it. A rule's pattern fits a whole name or the
    last parts of one, with or without its ".weight"."""
    found = None
    for pattern, kind in rules.items():
        if any(
            fnmatch.fnmatchcase(name, p)
            for name in names
            for p in (pattern, f"{pattern}.weight", f"*.{pattern}", f"*.{pattern}.weight")
        ):
            found = kind
    return found


def stored_types(program: ExportedProgram, quantize: str | Mapping[str, str]) -> dict[str, str]:
    """By qualified name, the types that the rules give the matrices of f32 that only linear layers and embeddings read.
    Tied weights have one type. Warns of those whose rows do not divide into blocks."""
    rules = {"*": quantize} if isinstance(quantize, str) else dict(quantize)
    names: dict[Any, list[str]] = defaultdict(list)  # by memory
    for name, tensor in program.state_dict.items():
        names[_memory(tensor)].append(name)
    readable: dict[Any, bool] = {}
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    tensors = {}
    for spec in program.graph_signature.input_specs:
        node = placeholders.get(spec.arg.name)
        if spec.kind != InputKind.PARAMETER or node is None or spec.target is None or not node.users:
            continue
        tensor = program.state_dict[spec.target]
        memory = _memory(tensor)
        tensors[memory] = tensor
        fits = tensor.dtype == torch.float32 and tensor.dim() == 2 and all(_reads(user, node) for user in node.users)
        readable[memory] = fits and readable.get(memory, True)
    types = {}
    for memory, fits in readable.items():
        wanted = type_of(rules, names[memory]) if fits else None
        if wanted is None:
            continue
        kind = storable_type(wanted, tensors[memory].shape)
        if kind.lower() != wanted.lower():
            warnings.warn(
                f"weight '{names[memory][0]}': rows of {tensors[memory].shape[-1]} elements do not divide into blocks of "
                f"{wanted}; stored as {kind}",
                RuntimeWarning,
                stacklevel=3,
            )
        types.update(dict.fromkeys(names[memory], kind))
    return types


def _memory(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _reads(user: torch.fx.Node, weight: torch.fx.Node) -> bool:
    position = _READERS.get(user.target)
    return position is not None and [i for i, arg in enumerate(user.args) if arg is weight] == [position]
