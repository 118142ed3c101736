"""Matrices written as another type than they are stored in: quantized while the package is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from graft.errors import ExportError, InvalidArgument
from graft.exporter import quantization
from graft.llm import ops  # noqa: F401  (defines graft::expert_linear)
from graft.llm.stored import Stored

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Operators that read matrix rows in their stored type, and the position of that argument.
_READERS = {
    torch.ops.aten.linear.default: 1,
    torch.ops.aten.embedding.default: 0,
    torch.ops.graft.expert_linear.default: 2,
}
_ELEMENTS = 1 << 22  # quantized at once


def quantized(
    program: ExportedProgram,
    weights: Mapping[str, Stored],
    names: Mapping[str, list[str]],
    rules: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Stored]:
    """Those of `weights` that the rules (graft.exporter.quantization) give another type: matrices that linear layers,
    experts and embeddings alone read. names: of each, all the names it has."""
    matrices = _matrices(program)
    used: set[str] = set()
    result = {}
    for name, stored in weights.items():
        if len(stored.sizes) not in (2, 3) or stored.block_type or stored.dtype not in _FLOATS:
            continue
        if not all(matrices.get(alias, False) for alias in names[name] if alias in matrices):
            continue
        wanted = quantization.type_of(rules, names[name])
        if wanted is None:
            continue
        used.add(wanted)
        try:
            kind = quantization.storable_type(wanted, stored.sizes)
        except InvalidArgument as e:
            raise ExportError(f"{e}") from e
        if kind.lower() != wanted.lower():
            say(f"{name}: rows of {stored.sizes[-1]} elements do not divide into blocks of {wanted}; stored as {kind}")
        result[name] = _as(stored, kind)
    for kind in set(rules.values()) - used:
        say(f"no weight is stored as {kind}")
    return result


def _matrices(program: ExportedProgram) -> dict[str, bool]:
    """By name, whether rows are all that is read of a parameter."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    reads: dict[str, bool] = defaultdict(lambda: True)
    for spec in program.graph_signature.input_specs:
        if spec.target is not None:
            node = placeholders[spec.arg.name]
            reads[spec.target] &= all(_reads_rows(user, node) for user in node.users)
    return reads


def _reads_rows(user: torch.fx.Node, weight: torch.fx.Node) -> bool:
    position = _READERS.get(user.target)
    return position is not None and [i for i, arg in enumerate(user.args) if arg is weight] == [position]


def _as(stored: Stored, kind: str) -> Stored:
    columns = stored.sizes[-1]
    step = max(1, _ELEMENTS // columns)
    half = quantization.HALVES.get(kind)

    def chunks() -> Iterator[Any]:
        row = columns * stored.dtype.itemsize
        for chunk in _regrouped(stored.chunks(), step * row):
            yield quantization.quantize(torch.frombuffer(chunk, dtype=stored.dtype).reshape(-1, columns), kind).data

    from graft import _C

    return Stored(
        name=stored.name,
        sizes=stored.sizes,
        dtype=half or torch.float32,
        byte_size=_C.stored_byte_count(kind, list(stored.sizes)),
        chunks=chunks,
        block_type="" if half else kind,
    )


def _regrouped(chunks: Iterator[Any], size: int) -> Iterator[bytearray]:
    """The same bytes in chunks of that size; the last may be smaller."""
    group = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            taken = view[: size - len(group)]
            group += taken
            view = view[len(taken) :]
            if len(group) == size:
                yield group
                group = bytearray()
    if group:
        yield group
