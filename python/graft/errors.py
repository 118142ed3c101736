"""Exceptions of graft. Each names the thing, what was expected and what was found."""


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
