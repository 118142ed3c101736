"""Keeps what libraries say about each other off the user's terminal. Each filter names one message and its cause."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

# Logger and how its message begins.
_IMPORT_MESSAGES = {
    # torchao loads every extension in its wheel, those for GPUs and for other versions of Python too.
    "torchao": "Failed to load",
    # torchao registers enumerations with pytree, which torch no longer wants.
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
