"""Exceptions of graft. Each names the thing, what was expected and what was found."""

import contextlib
from collections.abc import Callable, Iterator


class Error(RuntimeError):
    """Every error that a user or a file can cause."""


class InvalidArgument(Error, ValueError):
    """A call that breaks the contract: wrong dtype, rank, size, count, option."""


class InvalidProgram(Error):
    """A file that is not a valid graft program or package."""


class Unsupported(Error):
    """Valid, but this build or device cannot do it."""


class NotFound(Error, LookupError):
    """A file, weight, method or device that is not there."""


class SystemError(Error, OSError):
    """The operating system refused: memory, descriptors, a file that cannot be read."""


class Busy(Error):
    """In use by somebody else, or full, at this moment: the same call may succeed later."""


class ExecutionError(Error):
    """A kernel met data it must not act on, such as an index out of range. The session stays usable."""


class Cancelled(Error):
    """The run was cancelled or its deadline passed. The session stays usable."""


class ExportError(Error):
    """A program that graft cannot take whole; the message lists the nodes and the reasons."""


@contextlib.contextmanager
def raised_by(call: str, advice: Callable[[], str] = str) -> Iterator[None]:
    """Within it, an ExportError becomes one that begins with the name of the public call that the user made: what is
    raised inside does not know who called. advice: what to add at the end."""
    try:
        yield
    except ExportError as e:
        raise ExportError(f"{call}: {e}{advice()}") from e
