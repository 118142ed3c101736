"""Exceptions of graft. Each names the thing, what was expected and what was found."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


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


class OutOfMemory(SystemError, MemoryError):
    """There is not enough memory."""


class Unavailable(Error):
    """A process or host that does a part of the work cannot be reached, or is gone: the same call may succeed once it is
    back."""


class Busy(Error):
    """In use by somebody else, or full, at this moment: the same call may succeed later."""


class ExecutionError(Error):
    """A kernel met data it must not act on, such as an index out of range. The session stays usable."""


class Cancelled(Error):
    """The run was cancelled or its deadline passed. The session stays usable."""


class InternalError(Error):
    """A bug in graft; the object that was called stays usable. Please report it."""


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


# Packages whose failed assertions are no mistake of the user: graft's own, and those that it calls with what it made.
_OURS = frozenset({"graft", "executorch", "torchao"})


def typed(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A public function: an AssertionError of graft, or of a library that it uses, becomes an InternalError. One that the
    user's own code raises within the call stays what it is."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except AssertionError as e:
            raised = e.__traceback__
            while raised is not None and raised.tb_next is not None:
                raised = raised.tb_next
            module = raised.tb_frame.f_globals.get("__name__", "") if raised else ""
            if module.partition(".")[0] not in _OURS:
                raise
            message = str(e) or "an assertion failed"
            raise InternalError(f"internal error of graft, please report it: {module}: {message}") from e

    return call
