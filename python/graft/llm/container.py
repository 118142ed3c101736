"""Writes a package whose methods are each one call of graft's delegate.

`graft.export` goes through ExecuTorch's lowering, which retraces the program several times: minutes for a model of many
layers, and it wants weights in memory. Here the graph is serialized as it was traced; data goes from file to file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from graft._fb.executorch.AllocationDetails import AllocationDetailsT
from graft._fb.executorch.BackendDelegate import BackendDelegateT
from graft._fb.executorch.BackendDelegateDataReference import BackendDelegateDataReferenceT
from graft._fb.executorch.Bool import BoolT
from graft._fb.executorch.Chain import ChainT
from graft._fb.executorch.CompileSpec import CompileSpecT
from graft._fb.executorch.ContainerMetadata import ContainerMetadataT
from graft._fb.executorch.DataLocation import DataLocation
from graft._fb.executorch.DelegateCall import DelegateCallT
from graft._fb.executorch.EValue import EValueT
from graft._fb.executorch.ExecutionPlan import ExecutionPlanT
from graft._fb.executorch.Instruction import InstructionT
from graft._fb.executorch.InstructionArguments import InstructionArguments
from graft._fb.executorch.Int import IntT
from graft._fb.executorch.KernelTypes import KernelTypes
from graft._fb.executorch.NamedData import NamedDataT
from graft._fb.executorch.Program import ProgramT
from graft._fb.executorch.ScalarType import ScalarType
from graft._fb.executorch.SubsegmentOffsets import SubsegmentOffsetsT
from graft._fb.executorch.Tensor import TensorT
from graft._fb.executorch.TensorShapeDynamism import TensorShapeDynamism
from graft._files import unfinished
from graft.exporter import pte, specs
from graft.exporter.pte import table
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


def write(
    path: Path,
    methods: Mapping[str, tuple[ExportedProgram, Blob]],
    data: Mapping[str, pte.Data],
    constants: Mapping[str, Any] | None = None,
    options: Mapping[str, int | str] | None = None,
) -> None:
    """The package, whole or not at all. data: named data besides the blobs' weights. constants: what methods without
    inputs return, by name. options: how ExecuTorch's delegate runs, where its caller says nothing."""
    named: dict[str, pte.Data] = {specs.SESSION_KEY: b"graft"}
    for _, one in methods.values():
        named.update({key: value.tobytes() for key, value in one.weights.items()})
    named.update(data)
    given = specs.option_specs(options or {})
    plans = [_plan(1 + i, name, program, given) for i, (name, (program, _)) in enumerate(methods.items())]
    # The first segment is that of ExecuTorch's own constants, of which there are none.
    segments: list[pte.Data] = [b"", *(blob.data for _, blob in methods.values()), *named.values()]
    first = len(segments) - len(named)
    program = table(
        ProgramT,
        executionPlan=[*plans, *(_constant(name, value) for name, value in (constants or {}).items())],
        constantBuffer=[],
        backendDelegateData=[],
        constantSegment=table(SubsegmentOffsetsT, segmentIndex=0, offsets=[0]),
        namedData=[table(NamedDataT, key=key, segmentIndex=first + i) for i, key in enumerate(named)],
    )
    replace(path, lambda file: pte.write(file, program, segments))


def replace(path: Path, content: Callable[[BinaryIO], None]) -> None:
    """content: writes it."""
    with unfinished(path.parent, path.name) as folder:
        made = folder / path.name
        with open(made, "wb") as file:
            content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)


def _constant(method: str, value: Any) -> ExecutionPlanT:
    leaves, spec = pytree.tree_flatten(value)
    return table(
        ExecutionPlanT,
        name=method,
        containerMetaType=table(ContainerMetadataT, encodedInpStr="", encodedOutStr=pytree.treespec_dumps(spec)),
        values=[_number(leaf) for leaf in leaves],
        inputs=[],
        outputs=list(range(len(leaves))),
        chains=[table(ChainT, inputs=[], outputs=[], instructions=[])],
        operators=[],
        delegates=[],
        nonConstBufferSizes=[0],
    )


def _number(value: bool | int) -> EValueT:
    if isinstance(value, bool):
        return table(EValueT, valType=KernelTypes.Bool, val=table(BoolT, boolVal=value))
    return table(EValueT, valType=KernelTypes.Int, val=table(IntT, intVal=value))


def _plan(segment: int, method: str, program: ExportedProgram, given: list[specs.Spec]) -> ExecutionPlanT:
    """segment: of the blob."""
    signature = Signature.of(program)
    by_name = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [_value(by_name.get(name, name)) for name in program.graph_signature.user_inputs]
    outputs = [_value(by_name[name]) for name in program.graph_signature.user_outputs]
    planned = _plan_memory([value.val for value in outputs if value.valType == KernelTypes.Tensor])
    indices = list(range(len(inputs) + len(outputs)))
    call = table(
        InstructionT,
        instrArgsType=InstructionArguments.DelegateCall,
        instrArgs=table(DelegateCallT, delegateIndex=0, args=indices),
    )
    own = [specs.signature_spec(signature), specs.Spec(specs.METHOD, method.encode())]
    return table(
        ExecutionPlanT,
        name=method,
        containerMetaType=table(ContainerMetadataT, encodedInpStr=signature.in_spec, encodedOutStr=signature.out_spec),
        values=[*inputs, *outputs],
        inputs=indices[: len(inputs)],
        outputs=indices[len(inputs) :],
        chains=[table(ChainT, inputs=[], outputs=[], instructions=[call])],
        operators=[],
        delegates=[
            table(
                BackendDelegateT,
                id=specs.BACKEND_ID,
                processed=table(BackendDelegateDataReferenceT, location=DataLocation.SEGMENT, index=segment),
                compileSpecs=[
                    table(CompileSpecT, key=spec.key, value=np.frombuffer(spec.value, np.uint8)) for spec in (*own, *given)
                ],
            )
        ],
        nonConstBufferSizes=[0, planned] if planned else [0],
    )


def _plan_memory(outputs: list[TensorT]) -> int:
    """Gives outputs memory of the method's, which a caller of ExecuTorch's Module then need not set, where their upper
    bounds are small. Returns its bytes."""
    total = 0
    for tensor in outputs:
        size = _bytes(tensor.sizes, tensor.scalarType)
        if size > _MOST_PLANNED:
            continue
        tensor.allocationInfo = table(AllocationDetailsT, memoryId=1, memoryOffsetLow=total, memoryOffsetHigh=0)
        total += pte.aligned(size, specs.WEIGHT_ALIGNMENT)
    return total


def _bytes(sizes: list[int], kind: int) -> int:
    return math.prod(sizes) * _ITEM_SIZES[kind]


def _value(value: Any) -> EValueT:
    if not isinstance(value, torch.Tensor):
        return _number(_most(value))
    return table(EValueT, valType=KernelTypes.Tensor, val=_tensor(value))


def _tensor(value: torch.Tensor) -> TensorT:
    kind = _SCALAR_TYPES[value.dtype]
    sizes = [_most(size) for size in value.shape]
    if value.dim() and not isinstance(value.shape[0], int) and sizes[0] < _MOST_ROWS:
        wider = [_MOST_ROWS, *sizes[1:]]
        sizes = wider if _bytes(wider, kind) <= _MOST_PLANNED else sizes
    return table(
        TensorT,
        scalarType=kind,
        sizes=sizes,
        dimOrder=list(range(value.dim())),
        shapeDynamism=TensorShapeDynamism.DYNAMIC_BOUND,
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


__all__ = ["replace", "write"]
