"""Keeps what libraries say about each other off the user's terminal. Each filter names one message and its cause."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

# Logger -> beginning of its message.
_IMPORT_MESSAGES = {
    # torchao tries to load every extension in its wheel, also those for GPUs and other Python versions.
    "torchao": "Failed to load",
    # torchao registers enumerations with pytree, which torch deprecates.
    "torch.utils._pytree": "%s is an Enum subclass",
}


@contextlib.contextmanager
def importing_executorch() -> Iterator[None]:
    """Around imports of executorch.exir, which imports torchao."""

    def keep(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_IMPORT_MESSAGES[record.name])

    loggers = [logging.getLogger(name) for name in _IMPORT_MESSAGES]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


@contextlib.contextmanager
def lowering() -> Iterator[None]:
    """Around ExecuTorch's lowering: it copies programs, and copying a leaf of a pytree spec makes an object of a class
    that torch calls deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
        yield
