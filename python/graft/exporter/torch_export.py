"""torch.export and what it needs around it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Around torch.export and run_decompositions."""
    with _one_precision(), _collector_paused():
        yield


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A trace makes many objects and drops few in cycles: Python's collector would look through all modules of PyTorch
    again and again, a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _one_precision() -> Iterator[None]:
    """PyTorch asks whether cuDNN may use TF32, and answers itself with an error where its operators were told apart, as
    `transformers.utils.enable_tf32` and `cudnn.conv.fp32_precision` do."""
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
    with tracing():
        return torch.export.export(*args, **kwargs)
