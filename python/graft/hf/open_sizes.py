"""Sizes that stay open where a model's code rounds them: int() of an open size would fix it (ProphetNet's positions)."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv


class _Kind(type):
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, builtins.int)

    def __subclasscheck__(cls, kind: Any) -> bool:
        return issubclass(kind, builtins.int)


class _Int(builtins.int, metaclass=_Kind):
    """int, of which an open size is one."""

    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return value
        return torch.sym_int(value) if isinstance(value, torch.SymFloat) else builtins.int(value, *base)


@contextlib.contextmanager
def rounded(model: torch.nn.Module) -> Iterator[None]:
    """Within it, int() of an open size is the size in the files of the model's classes."""
    spaces = [vars(sys.modules[name]) for name in {type(module).__module__ for module in model.modules()}]
    spaces = [space for space in spaces if "int" not in space]
    for space in spaces:
        space["int"] = _Int
    try:
        yield
    finally:
        for space in spaces:
            del space["int"]


def fixed(environment: ShapeEnv) -> bool:
    """Whether a trace holds for one value of a size alone: a condition that one value of its symbol meets."""
    return any(isinstance(guard.expr, sympy.Eq) and _meets_once(guard.expr) for guard in environment.guards)


def _meets_once(equation: sympy.Eq) -> bool:
    difference = equation.lhs - equation.rhs
    if len(difference.free_symbols) != 1:
        return False
    [symbol] = difference.free_symbols
    return bool(difference.is_polynomial(symbol)) and sympy.degree(difference, symbol) == 1


__all__ = ["fixed", "rounded"]
