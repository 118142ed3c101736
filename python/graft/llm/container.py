"""Writes a package whose methods are each one call of graft's delegate.

`graft.export` goes through ExecuTorch's lowering, which retraces the program several times: minutes for a model of many
layers, and it wants weights in memory. Here the graph is serialized as it was traced, and the container around it is
written with ExecuTorch's own schema and serializer; data goes from file to file.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from graft.exporter import exir  # noqa: F401  isort: skip  (before executorch.exir)
from executorch.exir import schema
from executorch.exir._serialize._cord import Cord, FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.scalar_type import ScalarType
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from graft._files import unfinished
from graft.exporter.backend import (
    BACKEND_ID,
    METHOD_SPEC,
    SESSION_KEY,
    WEIGHT_ALIGNMENT,
    option_specs,
    signature_spec,
)
from graft.exporter.serialize import Blob, Signature

_SCALAR_TYPES = {
    torch.int64: ScalarType.LONG,
    torch.int32: ScalarType.INT,
    torch.int16: ScalarType.SHORT,
    torch.int8: ScalarType.CHAR,
    torch.uint8: ScalarType.BYTE,
    torch.bool: ScalarType.BOOL,
    torch.float64: ScalarType.DOUBLE,
    torch.float32: ScalarType.FLOAT,
    torch.float16: ScalarType.HALF,
    torch.bfloat16: ScalarType.BFLOAT16,
}
_ITEM_SIZES = {kind: dtype.itemsize for dtype, kind in _SCALAR_TYPES.items()}
_LARGEST_SIZE = 2**31 - 1
# Bytes of an output that the method has memory for: the logits of one token for a million words.
_MOST_PLANNED = 2**22
# Of a batch, which programs do not bound and ExecuTorch's files must.
_MOST_ROWS = 1024


class LazyData(FileBackedData):
    """Bytes that are made when they are written: `chunks` yields them, `size` in all."""

    def __init__(self, size: int, chunks: Callable[[], Any], done: Callable[[int], None] = lambda _: None) -> None:
        self._length = size
        self._chunks = chunks
        self._done = done
        self._digest: bytes | None = None

    def __len__(self) -> int:
        return self._length

    def to_bytes(self) -> bytes:
        return b"".join(self._chunks())

    def sha256(self) -> bytes:
        if self._digest is None:
            digest = hashlib.sha256()
            for chunk in self._chunks():
                digest.update(chunk)
            self._digest = digest.digest()
        return self._digest

    def write_to_file(self, outfile: BinaryIO) -> None:
        for chunk in self._chunks():
            outfile.write(chunk)
            self._done(len(chunk))

    def close(self) -> None:
        pass


def write(
    path: Path,
    methods: Mapping[str, tuple[ExportedProgram, Blob]],
    data: Mapping[str, bytes | FileBackedData],
    constants: Mapping[str, Any] | None = None,
    options: Mapping[str, int | str] | None = None,
) -> None:
    """The package, whole or not at all. data: named data besides the blobs' weights. constants: what methods without
    inputs return, by name. options: how ExecuTorch's delegate runs, where its caller says nothing."""
    named: dict[str, bytes | FileBackedData] = {SESSION_KEY: b"graft"}
    for _, one in methods.values():
        named.update({key: value.tobytes() for key, value in one.weights.items()})
    named.update(data)
    entries = {key: DataEntry(i, WEIGHT_ALIGNMENT, None) for i, key in enumerate(named)}
    pte = serialize_pte_binary(
        PTEFile(
            program=_program(methods, constants or {}, option_specs(options or {})),
            named_data=NamedDataStoreOutput(buffers=list(named.values()), pte_data=entries, external_data={}),
        ),
        extract_delegate_segments=True,
    )
    replace(path, pte)


def replace(path: Path, content: Cord) -> None:
    with unfinished(path.parent, path.name) as folder:
        made = folder / path.name
        with open(made, "wb") as file:
            content.write_to_file(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)


def _program(
    methods: Mapping[str, tuple[ExportedProgram, Blob]], constants: Mapping[str, Any], specs: list[CompileSpec]
) -> schema.Program:
    plans = [_plan(i, name, program, specs) for i, (name, (program, _)) in enumerate(methods.items())]
    return schema.Program(
        version=0,
        execution_plan=[*plans, *(_constant(name, value) for name, value in constants.items())],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(blob.data) for _, blob in methods.values()],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )


def _constant(method: str, value: Any) -> schema.ExecutionPlan:
    leaves, spec = pytree.tree_flatten(value)
    kinds = {bool: schema.Bool, int: schema.Int}
    return schema.ExecutionPlan(
        name=method,
        container_meta_type=schema.ContainerMetadata("", spec.to_str()),
        values=[schema.EValue(kinds[type(leaf)](leaf)) for leaf in leaves],
        inputs=[],
        outputs=list(range(len(leaves))),
        chains=[schema.Chain(inputs=[], outputs=[], instructions=[], stacktrace=None)],
        operators=[],
        delegates=[],
        non_const_buffer_sizes=[0],
    )


def _plan(index: int, method: str, program: ExportedProgram, specs: list[CompileSpec]) -> schema.ExecutionPlan:
    signature = Signature.of(program)
    by_name = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [_value(by_name.get(name, name)) for name in program.graph_signature.user_inputs]
    outputs = [_value(by_name[name]) for name in program.graph_signature.user_outputs]
    planned = _plan_memory([output for output in outputs if isinstance(output, schema.Tensor)])
    values = [schema.EValue(value) for value in (*inputs, *outputs)]
    indices = list(range(len(values)))
    call = schema.Instruction(schema.DelegateCall(delegate_index=0, args=indices))
    return schema.ExecutionPlan(
        name=method,
        container_meta_type=schema.ContainerMetadata(signature.in_spec, signature.out_spec),
        values=values,
        inputs=indices[: len(inputs)],
        outputs=indices[len(inputs) :],
        chains=[schema.Chain(inputs=[], outputs=[], instructions=[call], stacktrace=None)],
        operators=[],
        delegates=[
            schema.BackendDelegate(
                id=BACKEND_ID,
                processed=schema.BackendDelegateDataReference(schema.DataLocation.INLINE, index),
                compile_specs=[signature_spec(signature), CompileSpec(METHOD_SPEC, method.encode()), *specs],
            )
        ],
        non_const_buffer_sizes=[0, planned] if planned else [0],
    )


def _plan_memory(outputs: list[schema.Tensor]) -> int:
    """Gives outputs memory of the method's, which a caller of ExecuTorch's Module then need not set, where their upper
    bounds are small. Returns its bytes."""
    total = 0
    for tensor in outputs:
        size = _bytes(tensor.sizes, tensor.scalar_type)
        if size > _MOST_PLANNED:
            continue
        tensor.allocation_info = schema.AllocationDetails(
            memory_id=1, memory_offset_low=total, memory_offset_high=0
        )
        total += -(-size // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return total


def _bytes(sizes: list[int], kind: ScalarType) -> int:
    return math.prod(sizes) * _ITEM_SIZES[kind]


def _value(value: Any) -> schema.Tensor | schema.Int:
    return _tensor(value) if isinstance(value, torch.Tensor) else schema.Int(_most(value))


def _tensor(value: torch.Tensor) -> schema.Tensor:
    kind = _SCALAR_TYPES[value.dtype]
    sizes = [_most(size) for size in value.shape]
    if value.dim() and not isinstance(value.shape[0], int) and sizes[0] < _MOST_ROWS:
        wider = [_MOST_ROWS, *sizes[1:]]
        sizes = wider if _bytes(wider, kind) <= _MOST_PLANNED else sizes
    return schema.Tensor(
        scalar_type=kind,
        storage_offset=0,
        sizes=sizes,
        dim_order=list(range(value.dim())),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism.DYNAMIC_BOUND,
    )


def _most(size: Any) -> int:
    """The upper bound, or what the example had where there is none that ExecuTorch's files can hold; 1 where the size
    depends on data."""
    if isinstance(size, int):
        return size
    expression, env = size.node.expr, size.node.shape_env
    upper = env.bound_sympy(expression).upper
    if upper.is_finite is not False and upper <= _LARGEST_SIZE:
        return int(upper)
    return 1 if size.node.hint is None else int(size.node.hint)
