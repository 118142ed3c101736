"""How arguments and results nest: pytree specs as packages hold them.

A package is a file from anybody. torch's own reader imports whatever module the file names (enumerations, factories of
defaultdicts), and so does what transformers registers for its caches; the reader here makes specs of a fixed set of
containers and of classes that the program registered before, and imports nothing.

torch is not needed. Where the program has not imported it, torch's own containers are the ones that they derive from,
results of its operators are tuples; where transformers is not imported, outputs of its models are dicts.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_FACTORIES = {f.__name__: f for f in (bool, dict, float, int, list, set, str, tuple)}
_KEY_TYPES = (bool, int, float, str, type(None))
_ADVICE = "register the class before loading (torch.export.register_dataclass, torch.utils._pytree)"


class TreeSpec:
    """One container and what is in it, or a leaf (type None). context: what its kind needs beside the children: keys of a
    dict, the class of a namedtuple."""

    __slots__ = ("children", "context", "num_leaves", "type")

    def __init__(self, type: Any, context: Any, children: Sequence[TreeSpec]) -> None:
        self.type = type
        self.context = context
        self.children = tuple(children)
        self.num_leaves: int = 1 if type is None else sum(child.num_leaves for child in self.children)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self.context, self.children) == (other.type, other.context, other.children)

    def __repr__(self) -> str:
        if self.type is None:
            return "*"
        children = ", ".join(map(repr, self.children))
        return f"{self.type.__name__}({'' if self.context is None else f'{self.context}, '}[{children}])"


LEAF = TreeSpec(None, None, ())


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of nested containers, in order, and their spec."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> TreeSpec:
    cls = type(tree)
    taken_apart = _KINDS.get(cls)
    if taken_apart is not None:
        children, context = taken_apart.children(tree)
    elif _is_namedtuple(cls):
        cls, children, context = collections.namedtuple, list(tree), cls
    else:
        torch = _torch()
        registered = None if torch is None else torch.SUPPORTED_NODES.get(cls)
        if registered is None:
            leaves.append(tree)
            return LEAF
        children, context = registered.flatten_fn(tree)
    return TreeSpec(cls, context, [_flatten(child, leaves) for child in children])


def unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """The containers of a spec around its leaves. Raises ValueError for another number of them."""
    if len(leaves) != spec.num_leaves:
        raise ValueError(f"expected {spec.num_leaves} leaves, found {len(leaves)}")
    return _unflatten(iter(leaves), spec)


def _unflatten(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    children = [_unflatten(leaves, child) for child in spec.children]
    kind = _KINDS.get(spec.type)
    if kind is not None:
        return kind.made(children, spec.context)
    if spec.type is collections.namedtuple:
        return spec.context(*children)
    return _torch().SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)


def _torch() -> Any:
    """torch's registry of containers, if the program has imported torch."""
    return sys.modules.get("torch.utils._pytree")


def _is_namedtuple(cls: type) -> bool:
    fields = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    return isinstance(fields, tuple) and all(type(field) is str for field in fields) and hasattr(cls, "_make")


class _Kind(NamedTuple):
    children: Callable[[Any], tuple[Sequence[Any], Any]]  # with the context
    made: Callable[[list[Any], Any], Any]


def _of_keys(cls: type) -> _Kind:
    return _Kind(
        lambda tree: (list(tree.values()), list(tree)), lambda items, keys: cls(zip(keys, items, strict=True))
    )


_KINDS: Mapping[type, _Kind] = {
    tuple: _Kind(lambda tree: (tree, None), lambda items, _: tuple(items)),
    list: _Kind(lambda tree: (tree, None), lambda items, _: items),
    dict: _of_keys(dict),
    collections.OrderedDict: _of_keys(collections.OrderedDict),
    collections.defaultdict: _Kind(
        lambda tree: (list(tree.values()), [tree.default_factory, list(tree)]),
        lambda items, context: collections.defaultdict(context[0], zip(context[1], items, strict=True)),
    ),
    collections.deque: _Kind(
        lambda tree: (list(tree), tree.maxlen), lambda items, length: collections.deque(items, maxlen=length)
    ),
}


def loads(text: str) -> TreeSpec:
    """The spec that `torch.utils._pytree.treespec_dumps` wrote. Raises ValueError, which names what is wrong."""
    try:
        protocol, spec = json.loads(text)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"expected a list of a protocol and a spec: {e}") from e
    if protocol != 1:
        raise ValueError(f"expected protocol 1, found {protocol!r}")
    try:
        return _spec(spec)
    except RecursionError as e:
        raise ValueError("the spec is nested too deeply") from e


def keyword_names(text: str) -> list[str]:
    """Names of the keyword arguments of a spec of arguments. Nothing else in the spec is looked at."""
    try:
        names = json.loads(json.loads(text)[1]["children_spec"][1]["context"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"expected a spec of arguments and keyword arguments: {e}") from e
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected names of keyword arguments, found {names!r}")
    return names


def _spec(node: Any) -> TreeSpec:
    if not isinstance(node, dict) or node.keys() != {"type", "context", "children_spec"}:
        raise ValueError(f"expected type, context and children_spec, found {_shown(node)}")
    name, context, children = node["type"], node["context"], node["children_spec"]
    if not isinstance(children, list):
        raise ValueError(f"'{name}': expected a list of children, found {_shown(children)}")
    if name is None:
        if context is not None or children:
            raise ValueError("a leaf: expected no context and no children")
        return LEAF
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a class, found {_shown(name)}")
    cls, read = _CONTAINERS.get(name) or _of_torch(name) or _registered(name)
    try:
        context = read(context, len(children))
    except (TypeError, ValueError, KeyError, RecursionError) as e:
        raise ValueError(f"'{name}': {e}") from e
    return TreeSpec(cls, context, [_spec(child) for child in children])


def _nothing(context: Any, _: int) -> None:
    if _plain(context) is not None:
        raise ValueError(f"expected no context, found {_shown(context)}")


def _keys(context: Any, count: int) -> list[Any]:
    return _as_keys(_plain(context), count)


def _as_keys(keys: Any, count: int) -> list[Any]:
    if not isinstance(keys, list) or not all(isinstance(key, _KEY_TYPES) for key in keys) or len(keys) != count:
        raise ValueError(f"expected {count} keys, found {_shown(keys)}")
    if len(set(keys)) != count:
        raise ValueError(f"expected different keys, found {_shown(keys)}")
    return keys


def _defaultdict(context: Any, count: int) -> list[Any]:
    expected = {"default_factory_module", "default_factory_name", "dict_context"}
    if not isinstance(context, dict) or context.keys() != expected:
        raise ValueError(f"expected {', '.join(sorted(expected))}, found {_shown(context)}")
    module, name = context["default_factory_module"], context["default_factory_name"]
    factory = _FACTORIES.get(name) if module == "builtins" and isinstance(name, str) else None
    if factory is None:
        known = ", ".join(_FACTORIES)
        raise ValueError(f"expected one of the factories {known} of builtins, found {_shown(f'{module}.{name}')}")
    return [factory, _as_keys(context["dict_context"], count)]


def _length(context: Any, _: int) -> int | None:
    length = _plain(context)
    if length is not None and (type(length) is not int or length < 0):
        raise ValueError(f"expected a length or null, found {_shown(context)}")
    return length


def _namedtuple(context: Any, count: int) -> type:
    torch = _torch()
    known = torch is not None and isinstance(context, str)
    cls = torch.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(context) if known else None
    if cls is None or not _is_namedtuple(cls):
        raise ValueError(f"no namedtuple {_shown(context)} is known; {_ADVICE}")
    if len(cls._fields) != count:
        raise ValueError(f"expected the {len(cls._fields)} fields of {context}, found {count}")
    return cls


_Reader = Callable[[Any, int], Any]
_CONTAINERS: Mapping[str, tuple[Any, _Reader]] = {
    "builtins.tuple": (tuple, _nothing),
    "builtins.list": (list, _nothing),
    "builtins.dict": (dict, _keys),
    "collections.OrderedDict": (collections.OrderedDict, _keys),
    "collections.defaultdict": (collections.defaultdict, _defaultdict),
    "collections.deque": (collections.deque, _length),
    "collections.namedtuple": (collections.namedtuple, _namedtuple),
}


def _of_torch(name: str) -> tuple[type, _Reader] | None:
    """A container of torch, or a result of one of its operators."""
    read = {
        "torch.Size": (tuple, _nothing),
        "torch.fx.immutable_collections.immutable_list": (list, _nothing),
        "torch.fx.immutable_collections.immutable_dict": (dict, _keys),
    }.get(name)
    prefix, _, result = name.rpartition(".")
    if read is None and prefix != "torch.return_types":
        return None
    torch = sys.modules.get("torch")
    if torch is None:
        return read or (tuple, _nothing)
    if read is not None:
        classes = sys.modules["torch.fx.immutable_collections"]
        return torch.Size if name == "torch.Size" else getattr(classes, name.rpartition(".")[2]), read[1]
    for cls in torch.return_types.all_return_types:
        if cls.__name__ == result:
            return cls, _nothing
    return None


def _registered(name: str) -> tuple[type, _Reader]:
    """A class outside the standard containers: one that the program registered, or an output of a model of
    transformers."""
    if name.startswith("transformers.") and "transformers" not in sys.modules:
        return dict, _keys
    torch = _torch()
    cls = None if torch is None else torch.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    known = None if torch is None else torch.SUPPORTED_SERIALIZED_TYPES.get(cls)
    if cls is None or known is None:
        raise ValueError(f"the class {_shown(name)} is not known; {_ADVICE}")
    if _is_model_output(cls):
        return cls, _keys
    # transformers' pytree functions for caches import the modules that a context names.
    owner = getattr(torch.SUPPORTED_NODES[cls].unflatten_fn, "__module__", None) or ""
    if owner.split(".")[0] == "transformers":
        raise ValueError(f"expected containers of tensors, found {_shown(name)}")
    if _is_namedtuple(cls):
        return cls, _namedtuple
    if known.from_dumpable_context is not None:  # the program's own
        return cls, lambda context, _: known.from_dumpable_context(context)
    return cls, lambda context, _: _plain(context)


def _is_model_output(cls: type) -> bool:
    """Whether the class is one of transformers' outputs. transformers registers those when it is imported; none of them
    can be known before."""
    generic = sys.modules.get("transformers.utils.generic")
    return generic is not None and issubclass(cls, generic.ModelOutput)


def _plain(context: Any) -> Any:
    """A context that is JSON inside JSON. Enumerations in it stay refused: reading one imports its module."""
    if not isinstance(context, str):
        raise ValueError(f"expected a text, found {_shown(context)}")
    value = json.loads(context)
    if "__enum__" in context:
        raise ValueError(f"expected no enumeration, found {_shown(context)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
