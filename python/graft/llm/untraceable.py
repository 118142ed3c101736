"""Why a model could not be traced, in words: where in its code, and what there no program can hold."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch._dynamo.exc import UserError, UserErrorType
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from graft.errors import ExportError

# Packages whose frames say nothing of a model.
_TRACERS = {"torch", "graft", "functools", "contextlib", "inspect"}


class Untraceable(Exception):
    """Ends a trace; its cause says why."""


@contextlib.contextmanager
def no_graph_printed() -> Iterator[None]:
    """For the code that is traced. torch.export prints the graph so far on stderr, often hundreds of lines, where a
    RuntimeError speaks of data: within it, such an error leaves as one of another class."""
    try:
        yield
    except ExportError:  # in words already
        raise
    except RuntimeError as e:
        raise Untraceable from e


def bounds_sizes(error: BaseException) -> bool:
    """Whether the model's code admits some of the sizes alone that were asked for."""
    return any(
        isinstance(e, ConstraintViolationError)
        or (isinstance(e, UserError) and e.error_type is UserErrorType.CONSTRAINT_VIOLATION)
        for e in _chain(error)
    )


def decides_by_values(error: BaseException) -> bool:
    """Whether the model's code asks a tensor for its values."""
    return any(isinstance(e, (DataDependentOutputException, GuardOnDataDependentSymNode)) for e in _chain(error))


def reason(error: BaseException) -> str:
    """One line: the place in the model's code, its text, and what of it cannot be traced."""
    what = _what(error)
    for e in reversed(list(_chain(error))):
        if (place := _place(e)) is not None:
            return f"{place} {what}"
    return f"its code {what}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from, the first of all last."""
    seen: set[int] = set()
    e: BaseException | None = error
    while e is not None and id(e) not in seen:
        seen.add(id(e))
        yield e
        e = e.__cause__ or e.__context__


def _place(error: BaseException) -> str | None:
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").split(".")[0] not in _TRACERS
    ]
    if not frames:
        return None
    frame, line = frames[-1]
    code = frame.f_code
    text = linecache.getline(code.co_filename, line).strip()
    name = getattr(code, "co_qualname", code.co_name)
    return f"{name} ({Path(code.co_filename).name}, line {line}: `{text}`)"


def _what(error: BaseException) -> str:
    for e in _chain(error):
        if isinstance(e, DynamicOutputShapeException):
            return f"makes a tensor whose size depends on values ({_operator(e)})"
        if isinstance(e, (DataDependentOutputException, GuardOnDataDependentSymNode)):
            operator = f" ({_operator(e)})" if isinstance(e, DataDependentOutputException) else ""
            return f"decides by values of a tensor{operator}"
        if isinstance(e, UnsupportedOperatorException):
            return f"calls {_operator(e)}, whose sizes cannot be told beforehand"
    if bounds_sizes(error):
        sizes = next((found[1] for e in _chain(error) if (found := re.search(r"violated \(([\w, ]+)\)", str(e)))), "sizes")
        return f"admits some numbers of {sizes} alone"
    first = next((e for e in reversed(list(_chain(error))) if _place(e) is not None), error)
    if re.search(r"\b(Visible|Unpadded)\b", str(first)):
        return "reads its mask, which is attention's alone here"
    text = next((line.strip() for line in str(first).splitlines() if line.strip()), "")
    return f"raises {type(first).__name__}: {text[:160]}"


def _operator(error: Any) -> str:
    return str(getattr(error, "func", None) or (error.args[0] if error.args else ""))


__all__ = ["Untraceable", "bounds_sizes", "decides_by_values", "no_graph_printed", "reason"]
