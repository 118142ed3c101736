"""graft: any torch.export program, compiled in C++ onto ggml.

Names are imported when first used: loading a package must not cost the import of the exporting side.
"""

from __future__ import annotations

import importlib
from typing import Any

_ERRORS = (
    "Cancelled",
    "Error",
    "ExecutionError",
    "ExportError",
    "InvalidArgument",
    "InvalidProgram",
    "NotFound",
    "SystemError",
    "Unsupported",
)
_WHERE = {
    "load": "graft.runtime",
    "CancelToken": "graft.runtime",
    "Method": "graft.runtime",
    "Model": "graft.runtime",
    "devices": "graft._C",
    "version": "graft._C",
    "export": "graft._export",
    "GraftPartitioner": "graft.partitioner",
    "GraftBackend": "graft.backend",
    **dict.fromkeys(_ERRORS, "graft.errors"),
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'graft' has no attribute '{name}'")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
