"""A call that runs in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graft import _C
from graft.errors import InvalidArgument


class Submitted:
    """A call that `Method.submit` has queued. Dropping it waits until the call has ended."""

    def __init__(self, run: _C.SubmittedRun, of_torch: bool, arranged: Callable[[list[Any]], Any]) -> None:
        self._run = run
        self._of_torch = of_torch
        self._arranged = arranged

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._run.wait(0.0)

    def result(self, timeout: float | None = None) -> Any:
        """What the call returns, arranged as at export, in memory of its own; waits for it. Raises what the call
        raises, and TimeoutError when it has not ended within `timeout` seconds; it then still runs."""
        if timeout is not None and timeout < 0:
            raise InvalidArgument(f"timeout: must be 0 or more seconds, got {timeout}")
        if not self._run.wait(-1.0 if timeout is None else timeout):
            raise TimeoutError(f"the call has not ended within {timeout} seconds")
        return self._arranged(self._run.results(self._of_torch))


__all__ = ["Submitted"]
