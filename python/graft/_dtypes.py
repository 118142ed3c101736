"""The numbers of schema/graft.fbs for torch dtypes."""

from __future__ import annotations

import torch

from graft._fb.DType import DType

NUMBER_OF: dict[torch.dtype, int] = {
    torch.float32: DType.f32,
    torch.float16: DType.f16,
    torch.bfloat16: DType.bf16,
    torch.float64: DType.f64,
    torch.int8: DType.i8,
    torch.uint8: DType.u8,
    torch.int16: DType.i16,
    torch.int32: DType.i32,
    torch.int64: DType.i64,
    torch.bool: DType.bool_,
}
DTYPES: tuple[torch.dtype, ...] = tuple(sorted(NUMBER_OF, key=NUMBER_OF.__getitem__))  # by number
