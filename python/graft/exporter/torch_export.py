"""torch.export and what it needs around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram


@contextlib.contextmanager
def one_precision() -> Iterator[None]:
    """Around torch.export and run_decompositions: they ask whether cuDNN may use TF32, which torch answers with an error
    where its operators were told apart, as `transformers.utils.enable_tf32` and `cudnn.conv.fp32_precision` do."""
    cudnn = torch.backends.cudnn
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:
        before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        cudnn.allow_tf32 = False  # of all operators
        try:
            yield
        finally:
            cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before
    else:
        yield


def export(*args: Any, **kwargs: Any) -> ExportedProgram:
    """torch.export.export."""
    with one_precision():
        return torch.export.export(*args, **kwargs)
