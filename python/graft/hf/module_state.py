"""What a model keeps in attributes of its modules from one call to the next, instead of in a cache: RecurrentGemma's states.

The engine of the general route keeps it beside the model: its values are arguments and results of every call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

#: Among the arguments of a call.
NAME = "module state"

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


class Attributes:
    """Of all modules, as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._held = {path: dict(vars(module)) for path, module in model.named_modules()}

    def changed(self, model: torch.nn.Module) -> dict[str, Any]:
        """What they were, by path and name, of those that hold something else now."""
        found = {}
        for path, module in model.named_modules():
            held = self._held.get(path, {})
            for name, value in vars(module).items():
                before = held.get(name, _MISSING)
                if before is not value and _kept(value) and _kept(before) and not same(before, value):
                    found[f"{path}.{name}" if path else name] = before
        return found


def _kept(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, *_PLAIN)) and not isinstance(value, torch.nn.Parameter)


def same(before: Any, now: Any) -> bool:
    """Equal plain values."""
    return _is_plain(before) and _is_plain(now) and before == now and type(before) is type(now)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN)


def of(model: torch.nn.Module, names: Any) -> dict[str, Any]:
    return {name: getattr(*_place(model, name)) for name in names}


def put(model: torch.nn.Module, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(*_place(model, name), value)


@contextlib.contextmanager
def as_argument(model: torch.nn.Module, arguments: dict[str, Any]) -> Iterator[None]:
    """Within it, the state among the arguments is the model's, and not among them; behind it, it is there as the model
    left it, and the model has its own again."""
    held = arguments.pop(NAME, None)
    if held is None:
        yield
        return
    own = of(model, held)
    put(model, held)
    try:
        yield
        held.update(of(model, held))
    finally:
        put(model, own)
    arguments[NAME] = held


def _place(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute
