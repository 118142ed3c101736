"""Writes a package whose methods are each one call of graft's delegate.

`graft.export` goes through ExecuTorch's lowering, which retraces the program several times: minutes for a model of many
layers, and it wants weights in memory. Here the graph is serialized as it was traced, and the container around it is
written with ExecuTorch's own schema and serializer; data goes from file to file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
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

from graft.exporter.backend import BACKEND_ID, METHOD_SPEC, SESSION_KEY, WEIGHT_ALIGNMENT, signature_spec
from graft.exporter.serialize import Blob, Signature

_SCALAR_TYPES = {torch.int64: ScalarType.LONG, torch.float32: ScalarType.FLOAT}
_LARGEST_SIZE = 2**31 - 1


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
    method: str,
    program: ExportedProgram,
    blob: Blob,
    data: Mapping[str, bytes | FileBackedData],
    others: Mapping[str, tuple[ExportedProgram, Blob]] | None = None,
) -> None:
    """The package, whole or not at all. data: named data besides the blobs' weights. others: further methods."""
    methods = {method: (program, blob), **(others or {})}
    named: dict[str, bytes | FileBackedData] = {SESSION_KEY: b"graft"}
    for _, one in methods.values():
        named.update({key: value.tobytes() for key, value in one.weights.items()})
    named.update(data)
    entries = {key: DataEntry(i, WEIGHT_ALIGNMENT, None) for i, key in enumerate(named)}
    pte = serialize_pte_binary(
        PTEFile(
            program=_program(methods),
            named_data=NamedDataStoreOutput(buffers=list(named.values()), pte_data=entries, external_data={}),
        ),
        extract_delegate_segments=True,
    )
    replace(path, pte)


def replace(path: Path, content: Cord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        made = Path(folder) / path.name
        with open(made, "wb") as file:
            content.write_to_file(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)


def _program(methods: Mapping[str, tuple[ExportedProgram, Blob]]) -> schema.Program:
    return schema.Program(
        version=0,
        execution_plan=[_plan(i, name, program) for i, (name, (program, _)) in enumerate(methods.items())],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(blob.data) for _, blob in methods.values()],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )


def _plan(index: int, method: str, program: ExportedProgram) -> schema.ExecutionPlan:
    signature = Signature.of(program)
    by_name = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [by_name[name] for name in program.graph_signature.user_inputs]
    outputs = [by_name[name] for name in program.graph_signature.user_outputs]
    values = [schema.EValue(_tensor(value)) for value in (*inputs, *outputs)]
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
                compile_specs=[signature_spec(signature), CompileSpec(METHOD_SPEC, method.encode())],
            )
        ],
        non_const_buffer_sizes=[0],
    )


def _tensor(value: torch.Tensor) -> schema.Tensor:
    """No memory is planned: the callers of ExecuTorch's runtime hand theirs in."""
    return schema.Tensor(
        scalar_type=_SCALAR_TYPES[value.dtype],
        storage_offset=0,
        sizes=[_most(size) for size in value.shape],
        dim_order=list(range(value.dim())),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism.DYNAMIC_BOUND,
    )


def _most(size: Any) -> int:
    """The upper bound, or what the example had where there is none that ExecuTorch's files can hold."""
    if isinstance(size, int):
        return size
    expression, env = size.node.expr, size.node.shape_env
    upper = env.bound_sympy(expression).upper
    return int(upper) if upper.is_finite is not False and upper <= _LARGEST_SIZE else int(size.node.hint)
