"""Tensors whose values a model's code may read while it is traced: sizes of pictures (`image_grid_thw`), by which it cuts,
loops and makes positions. A program is for these values alone."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only
from transformers import vision_utils


@contextlib.contextmanager
def real() -> Iterator[None]:
    """Within it, PyTorch computes, whatever is traced around it."""
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        yield


class Known(torch.Tensor):
    """What is computed of such tensors alone is computed at once and has known values too; beside other tensors they are
    constants of the program."""

    @staticmethod
    def of(values: torch.Tensor) -> Known:
        with real():
            return values.detach().clone().as_subclass(Known)

    def plain(self) -> torch.Tensor:
        with real():
            return self.as_subclass(torch.Tensor)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _all_known(args, kwargs):
            return _at_once(function, args, kwargs)
        args, kwargs = tree_map_only(Known, _constant, (args, kwargs))
        return function(*args, **kwargs)


def _all_known(args: Any, kwargs: Any) -> bool:
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    return bool(tensors) and all(isinstance(one, Known) for one in tensors)


def _at_once(function: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(Known, Known.plain, (args, kwargs))
    with real():
        return tree_map_only(torch.Tensor, lambda one: one.as_subclass(Known), function(*args, **kwargs))


class Numbers(TorchFunctionMode):
    """Within it, known sizes of tensors that are made, or seen in another shape, are numbers, and copies of known tensors
    are known: PyTorch asks no subclass there. Quotients of sizes, of which torch.div makes tensors, are numbers too."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FACTORIES:
            args, kwargs = tree_map_only(Known, _number, (args, kwargs))
        if function in _VIEWS:
            args = (args[0], *tree_map_only(Known, _number, args[1:]))
            kwargs = tree_map_only(Known, _number, kwargs)
        if function in _COPIES and _all_known(args, kwargs):
            return _at_once(function, args, kwargs)
        if function is torch.div and kwargs.get("rounding_mode") and all(isinstance(one, (int, torch.SymInt)) for one in args):
            return args[0] // args[1]
        return function(*args, **kwargs)


@contextlib.contextmanager
def helpers(model: torch.nn.Module) -> Iterator[None]:
    """Within it, transformers' functions of the sizes of pictures, which loop over their values and make tensors of them,
    are computed at once where the sizes are known."""
    held = []
    for name in {type(module).__module__ for module in model.modules()}:
        space = vars(sys.modules[name])
        for key, value in list(space.items()):
            if isinstance(value, FunctionType) and value.__module__ == vision_utils.__name__:
                held.append((space, key, value))
                space[key] = functools.partial(_helped, value)
    try:
        yield
    finally:
        for space, key, value in held:
            space[key] = value


def _helped(function: Any, *args: Any, **kwargs: Any) -> Any:
    return _at_once(function, args, kwargs) if _all_known(args, kwargs) else function(*args, **kwargs)


_FACTORIES = {torch.arange, torch.empty, torch.full, torch.linspace, torch.ones, torch.zeros}
_VIEWS = {torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.expand, torch.Tensor.repeat, torch.Tensor.split, torch.split}

_COPIES = {torch.as_tensor, torch.asarray, torch.tensor}


def _number(known: Known) -> Any:
    with real():
        return known.item()


def _constant(known: Known) -> torch.Tensor:
    with real():
        values, dtype, shape = known.tolist(), known.dtype, known.shape
    return torch.tensor(values, dtype=dtype).reshape(shape)


__all__ = ["Known", "Numbers", "helpers", "real"]
