# Of the binding, what `graft` hands on as it is; the rest is for the modules of this package alone.
from typing import Any

class CancelToken:
    """Stops runs from another thread or a signal handler."""
    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    def reset(self) -> None: ...
    @property
    def cancelled(self) -> bool: ...

class Arena:
    """Memory for the intermediate tensors of models that never run at the same time."""
    def __init__(self) -> None: ...
    @property
    def bytes(self) -> int: ...

class States:
    """Memory for the mutable buffers that models share by name."""
    def __init__(self) -> None: ...

def devices() -> list[tuple[str, str, int, int]]:
    """Name, description, bytes of memory, and bytes that are free, of each device."""

def version() -> str:
    """"major.minor.patch"."""

def __getattr__(name: str) -> Any: ...
