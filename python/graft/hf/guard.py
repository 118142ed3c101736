"""What has changed in a model since it was compiled, seen at each call.

The engine runs the program that was traced, with the weights as they were then. Dictionaries that Python objects keep
anyway (attributes, parameters, submodules, hooks, functions of classes, settings) are compared with shallow copies, which
takes 0.1 us each while nothing has changed; of weights, place and version of each tensor are compared.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PretrainedConfig

from graft.errors import Unsupported
from graft.hf.identity import UNREAD, UNREAD_SETTINGS

_AGAIN = "; compile the model again (graft.compile)"
_SAMPLED = 8  # elements of each weight
_KEPT = {"rope_deltas"}  # what transformers' code keeps from call to call beside a cache, ahead of a program


class _Held:
    """Dictionaries, and what they held."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str]] = []
        self._live: list[Any] = []
        self._held: list[dict[str, Any]] = []

    def keep(self, live: Any, path: str, what: str) -> None:
        """what: its entries are."""
        self._names.append((path, what))
        self._live.append(live)
        self._held.append(dict(live))

    def check(self) -> None:
        try:
            if all(map(operator.eq, self._live, self._held)):
                return
        except (RuntimeError, ValueError):  # tensors and arrays that are not the same
            pass
        for (path, what), live, held in zip(self._names, self._live, self._held):
            if (name := _other(held, live)) is not None:
                where = f"{path}: " if path else ""
                raise Unsupported(f"{where}{what} '{name}' was changed after graft.compile{_AGAIN}")


def _other(held: Any, now: Any) -> str | None:
    """The first entry that is another one."""
    for name in (*now, *held):
        a, b = held.get(name, _MISSING), now.get(name, _MISSING)
        if a is not b and name not in _KEPT:
            try:
                if a == b:
                    continue
            except (RuntimeError, ValueError):
                pass
            return str(name)
    return None


_MISSING = object()


class Guard:
    """Of one compiled model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._structure = _Held()
        self._attributes = _Held()
        for path, module in model.named_modules():
            self._structure.keep(module._modules, path, "submodule")
            if module is not model:  # hooks of the model itself run around graft's forward
                self._structure.keep(module._forward_hooks, path, "hook")
                self._structure.keep(module._forward_pre_hooks, path, "pre-hook")
                self._attributes.keep(vars(module), path, "attribute")
        for base in {base for module in model.modules() for base in _bases(type(module))}:
            self._attributes.keep(vars(base), f"class {base.__qualname__}", "attribute")
        self._root = _of_root(model)
        self._configs = [(path, config, _settings(config)) for path, config in _configs(model)]
        self.take_weights(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Trusted:
        return Trusted()  # another model has dictionaries of its own

    def take_weights(self, model: torch.nn.Module) -> None:
        """The weights as they are now."""
        self._places = [
            (f"{path}.{name}" if path else name, tensors, name)
            for path, module in model.named_modules()
            for tensors in (module._parameters, module._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._counts = [len(module._parameters) + len(module._buffers) for module in model.modules()]
        self._tensors = [tensors[name] for _, tensors, name in self._places]
        self._state = list(map(_state, self._tensors))
        self._values = _sample(self._tensors)

    def check(self, model: torch.nn.Module, thorough: bool) -> str | None:
        """Raises Unsupported when the program would be another one now. Otherwise the name of a weight whose values are
        others, or None. thorough: looks at attributes, settings and values too, not at modules, hooks and the places of
        weights alone."""
        self._structure.check()
        if thorough:
            self._attributes.check()
            self._check_root(model)
        return self._changed_weight(model, thorough)

    def _check_root(self, model: torch.nn.Module) -> None:
        now = {name: value for name, value in _of_root(model).items() if name in self._root or name[0] != "_"}
        if (name := _other(self._root, now)) is not None:  # generate() keeps things of its own there, all private
            raise Unsupported(f"attribute '{name}' was changed after graft.compile{_AGAIN}")
        for path, config, held in self._configs:
            now = _settings(config)
            if now != held:
                name = _other(held, now)
                raise Unsupported(
                    f"{path}.{name} was {held.get(name)!r} when graft.compile was called and is {now.get(name)!r} now"
                    f"{_AGAIN}"
                )

    def _changed_weight(self, model: torch.nn.Module, thorough: bool) -> str | None:
        for (path, tensors, name), was, state in zip(self._places, self._tensors, self._state):
            now = tensors.get(name)
            if now is was and _state(now) == state:
                continue
            if now is None or now.shape != was.shape or now.dtype != was.dtype or now.device != was.device:
                found = "nothing" if now is None else f"{now.dtype} {list(now.shape)} on {now.device}"
                held = f"{was.dtype} {list(was.shape)} on {was.device}"
                raise Unsupported(f"{path}: {held} when graft.compile was called, {found} now{_AGAIN}")
            if tensors.get(name) is not None and not isinstance(was, torch.nn.Parameter):
                raise Unsupported(f"buffer {path} was changed after graft.compile{_AGAIN}")
            return path
        if thorough:
            if [len(module._parameters) + len(module._buffers) for module in model.modules()] != self._counts:
                raise Unsupported(f"a parameter or buffer was added after graft.compile{_AGAIN}")
            if (index := _difference(self._values, _sample(self._tensors))) is not None:
                return self._places[index][0]
        return None


class Outdated:
    """Guards the copy of a model that had changed since it was compiled."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def check(self, model: torch.nn.Module, thorough: bool) -> str | None:
        raise Unsupported(self._problem)


class Trusted:
    """Finds nothing."""

    def check(self, model: torch.nn.Module, thorough: bool) -> str | None:
        return None


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _sample(tensors: list[torch.Tensor]) -> list[bytes]:
    """Some elements of each: writes through `.data` leave no other trace."""
    return [_elements(tensor) for tensor in tensors]


def _elements(tensor: torch.Tensor) -> bytes:
    if tensor.is_meta or tensor.numel() == 0 or not tensor.is_contiguous():
        return b""
    flat = tensor.detach().view(-1)
    few = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED]
    return few.contiguous().view(torch.uint8).numpy().tobytes()


def _difference(held: list[bytes], now: list[bytes]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(held, now)) if a != b), None) if held != now else None


def _of_root(model: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name not in UNREAD and name not in _OF_ROOT}


_OF_ROOT = {"config", "training"}  # looked at otherwise


def _bases(kind: type) -> Iterator[type]:
    for base in kind.__mro__:
        if base in (torch.nn.Module, object) or base.__module__.split(".")[0] == "graft":
            continue
        if "_uncompiled" not in vars(base):  # made by graft.compile
            yield base


def _configs(model: torch.nn.Module) -> Iterator[tuple[str, PretrainedConfig]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and id(config) not in seen:
            seen.add(id(config))
            yield f"{path}.config" if path else "config", config


def _settings(value: Any) -> Any:
    """Settings in plain containers of their own."""
    if isinstance(value, PretrainedConfig):
        return {name: _settings(one) for name, one in vars(value).items() if name not in _IGNORED}
    if isinstance(value, dict):
        return {name: _settings(one) for name, one in value.items()}
    return list(value) if isinstance(value, (list, tuple)) else value


# pad_token_id is read when a model is made, not when it runs.
_IGNORED = UNREAD_SETTINGS | {"pad_token_id"}


__all__ = ["Guard", "Outdated", "Trusted"]
