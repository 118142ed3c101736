"""Arguments and results of a model, caches of any class among them, as a list of tensors and a structure without them.

A structure is nested tuples, so that calls of the same kind have equal ones. Objects keep their identity: a cache that a
model changes and gives back is one object of the result, and the caller's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import ModelOutput

from graft.hf.known_values import Known

_PLAIN = (type(None), bool, float, str, bytes, torch.dtype, torch.device, torch.layout, type, slice, range)
# What is read of an object, beside which attributes can say nothing more of it.
_WHOLE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.nn.Module)

Node = tuple[Any, ...]


@dataclass
class Flat:
    """structure: of one value. tensors, numbers: its leaves. objects: those of it that can change, in order."""

    structure: Node = ()
    tensors: list[torch.Tensor] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of the tensors
    counted: set[tuple[type, str]] = field(default_factory=set)  # attributes that hold numbers of the trace
    valued: bool = False  # the structure has values of tensors


class _Same:
    """Compared by identity, and alive as long as the structure."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Values:
    """A tensor that is compared by its values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._key = (tensor.dtype, tuple(tensor.shape), tuple(tensor.flatten().tolist()))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Values) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def flatten(
    value: Any,
    counters: frozenset[tuple[type, str]] = frozenset(),
    origins: Mapping[int, int] = types.MappingProxyType({}),
    valued: frozenset[str] = frozenset(),
) -> Flat:
    """counters: attributes (class, name) whose integers, or those of lists and dicts there, are numbers of the call, not
    of its structure: those of 2 and more, since code is written for 0 and 1 in particular. origins: places among the
    objects of another flat value, by id. valued: paths of tensors whose values belong to the structure."""
    flat = Flat()
    flat.structure = _Flattener(flat, counters, origins, valued)(value, "", None)
    return flat


class _Flattener:
    def __init__(
        self, flat: Flat, counters: frozenset[tuple[type, str]], origins: Mapping[int, int], valued: frozenset[str]
    ) -> None:
        self._flat, self._counters, self._origins, self._valued = flat, counters, origins, valued
        self._tensors: dict[int, int] = {}
        self._objects: dict[int, int] = {}

    def __call__(self, value: Any, path: str, attribute: tuple[type, str] | None) -> Node:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, torch.SymInt) or (type(value) is int and attribute in self._counters and value > 1):
            if isinstance(value, torch.SymInt) and (fixed := value.node.maybe_as_int()) is not None:
                return ("is", int, fixed)
            if isinstance(value, torch.SymInt) and attribute is not None:
                self._flat.counted.add(attribute)
            self._flat.numbers.append(value)
            return ("number", len(self._flat.numbers) - 1)
        if isinstance(value, int) or isinstance(value, _PLAIN):
            return ("is", type(value), repr(value) if isinstance(value, float) else value)
        if isinstance(value, _WHOLE):
            return ("same", _Same(value))
        if isinstance(value, types.MethodType):
            return ("method", value.__func__, self(value.__self__, f"{path}.__self__", None))
        if isinstance(value, functools.partial):
            return ("partial", self([value.func, value.args, value.keywords], path, None))
        if isinstance(value, (set, frozenset)):
            return ("is", type(value), frozenset(value))
        if (place := self._objects.get(id(value))) is not None:
            return ("again", place)
        return self._object(value, path, attribute)

    def _tensor(self, value: torch.Tensor, path: str) -> Node:
        if isinstance(value, Known):
            return ("values", _Values(value.plain()))
        if path in self._valued:
            self._flat.valued = True
            return ("values", _Values(value.detach().clone()))
        place = self._tensors.get(id(value))
        if place is None:
            place = self._tensors[id(value)] = len(self._flat.tensors)
            self._flat.tensors.append(value)
            self._flat.paths.append(path)
        return ("tensor", place, value.dtype, value.dim())

    def _object(self, value: Any, path: str, attribute: tuple[type, str] | None) -> Node:
        kind = type(value)
        fixed = isinstance(value, tuple)  # cannot change, and may be shared by chance
        if not fixed:
            self._objects[id(value)] = len(self._flat.objects)
            self._flat.objects.append(value)
        origin = None if fixed else self._origins.get(id(value))
        if isinstance(value, (list, tuple)):
            return ("list", kind, origin, tuple(self(one, f"{path}[{i}]", attribute) for i, one in enumerate(value)))
        if isinstance(value, dict):
            parts = tuple((self._key(key), self(one, f"{path}.{key}", attribute)) for key, one in value.items())
            return ("dict", kind, origin, parts)
        if not hasattr(value, "__dict__"):
            return ("same", _Same(value))
        parts = tuple((name, self(one, f"{path}.{name}", (kind, name))) for name, one in vars(value).items())
        return ("object", kind, origin, parts)

    def _key(self, key: Any) -> Any:
        return key if isinstance(key, (str, int, tuple)) else _Same(key)


def build(
    structure: Node,
    tensors: Sequence[Any],
    numbers: Sequence[Any],
    into: Sequence[Any] = (),
    made: list[Any] | None = None,
    values: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> Any:
    """The value. into: objects by their places as `origins`, which are changed to be as the structure says; the others
    are made. made: gets all objects in order. values: makes tensors whose values belong to the structure."""
    return _Builder(tensors, numbers, into, [] if made is None else made, values)(structure)


class _Builder:
    def __init__(
        self, tensors: Sequence[Any], numbers: Sequence[Any], into: Sequence[Any], made: list[Any], values: Any
    ) -> None:
        self._tensors, self._numbers, self._into, self._made, self._values = tensors, numbers, into, made, values

    def __call__(self, node: Node) -> Any:
        what = node[0]
        if what == "tensor":
            return self._tensors[node[1]]
        if what == "number":
            return self._numbers[node[1]]
        if what == "values":
            return self._values(node[1].tensor)
        if what == "is":
            return float(node[2]) if node[1] is float else set(node[2]) if node[1] is set else node[2]
        if what == "same":
            return node[1].value
        if what == "again":
            return self._made[node[1]]
        if what == "method":
            return types.MethodType(node[1], self(node[2]))
        if what == "partial":
            function, args, keywords = self(node[1])
            return functools.partial(function, *args, **keywords)
        return self._object(node)

    def _object(self, node: Node) -> Any:
        what, kind, origin, parts = node
        if what == "list" and issubclass(kind, tuple):
            values = [self(part) for part in parts]
            return kind(*values) if hasattr(kind, "_fields") else kind(values)
        place = len(self._made)
        found = None if origin is None or not self._into else self._into[origin]
        if what == "list":
            made = kind() if found is None else found
            self._made.append(made)
            made[:] = [self(part) for part in parts]
        elif what == "dict" and issubclass(kind, ModelOutput):
            self._made.append(None)
            made = self._made[place] = kind(**{key: self(part) for key, part in parts})
        elif what == "dict":
            made = kind() if found is None else found
            self._made.append(made)
            values = {_plain(key): self(part) for key, part in parts}
            made.clear()
            made.update(values)
        else:
            made = kind.__new__(kind) if found is None else found
            self._made.append(made)
            values = {name: self(part) for name, part in parts}
            vars(made).clear()
            vars(made).update(values)
        return made


def _plain(key: Any) -> Any:
    return key.value if isinstance(key, _Same) else key


__all__ = ["Flat", "Node", "build", "flatten"]
