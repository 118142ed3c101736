"""The numbers of schema/graft.fbs for torch dtypes."""

from __future__ import annotations

import torch

# In the order of graft::DType.
DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
NUMBER_OF: dict[torch.dtype, int] = {dtype: i for i, dtype in enumerate(DTYPES)}
