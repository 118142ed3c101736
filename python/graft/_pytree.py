"""How arguments and results nest: pytree specs as packages hold them.

A package is a file from anybody. torch's own reader imports whatever module the file names (enumerations, factories of
defaultdicts), and so does what transformers registers for its caches; the reader here makes specs of a fixed set of
containers and of classes that the program registered before, and imports nothing.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

_FACTORIES = {f.__name__: f for f in (bool, dict, float, int, list, set, str, tuple)}
_KEY_TYPES = (bool, int, float, str, type(None))
_ADVICE = "register the class before loading (torch.export.register_dataclass, torch.utils._pytree)"


def _name_return_types() -> None:
    """PyTorch registers the classes that its operators return (torch.max, torch.sort, ...), but without the name that
    writing a spec to a file needs."""
    for cls in torch.return_types.all_return_types:
        known = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
        if known is None or known.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            continue
        name = f"torch.return_types.{cls.__name__}"
        pytree.SUPPORTED_SERIALIZED_TYPES[cls] = known._replace(serialized_type_name=name)
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls


_name_return_types()


def loads(text: str) -> pytree.TreeSpec:
    """The spec that `torch.utils._pytree.treespec_dumps` wrote. Raises ValueError, which names what is wrong."""
    try:
        protocol, spec = json.loads(text)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"expected a list of a protocol and a spec: {e}") from e
    if protocol != 1:
        raise ValueError(f"expected protocol 1, found {protocol!r}")
    return _spec(spec)


def keyword_names(text: str) -> list[str]:
    """Names of the keyword arguments of a spec of arguments. Nothing else in the spec is looked at."""
    try:
        names = json.loads(json.loads(text)[1]["children_spec"][1]["context"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"expected a spec of arguments and keyword arguments: {e}") from e
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected names of keyword arguments, found {names!r}")
    return names


def _spec(node: Any) -> pytree.TreeSpec:
    if not isinstance(node, dict) or node.keys() != {"type", "context", "children_spec"}:
        raise ValueError(f"expected type, context and children_spec, found {_shown(node)}")
    name, context, children = node["type"], node["context"], node["children_spec"]
    if not isinstance(children, list):
        raise ValueError(f"'{name}': expected a list of children, found {_shown(children)}")
    if name is None:
        if context is not None or children:
            raise ValueError("a leaf: expected no context and no children")
        return pytree.tree_structure(0)
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a class, found {_shown(name)}")
    cls, read = _CONTAINERS.get(name) or _registered(name)
    try:
        context = read(context, len(children))
    except (TypeError, ValueError, KeyError, RecursionError) as e:
        raise ValueError(f"'{name}': {e}") from e
    return pytree.TreeSpec(cls, context, [_spec(child) for child in children])


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
    cls = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(context) if isinstance(context, str) else None
    if cls is None or not pytree.is_namedtuple_class(cls):
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
    "collections.namedtuple": (pytree.namedtuple, _namedtuple),
    "torch.Size": (torch.Size, _nothing),
    "torch.fx.immutable_collections.immutable_list": (immutable_list, _nothing),
    "torch.fx.immutable_collections.immutable_dict": (immutable_dict, _keys),
}


def _registered(name: str) -> tuple[type, _Reader]:
    """A class outside the standard containers: one that the program registered, a result of an operator of PyTorch, or
    an output of a model of transformers."""
    cls = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    known = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    if cls is None or known is None:
        raise ValueError(f"the class {_shown(name)} is not known; {_ADVICE}")
    if cls in torch.return_types.all_return_types:
        return cls, _nothing
    if _is_model_output(cls):
        return cls, _keys
    # transformers' pytree functions for caches import the modules that a context names.
    owner = getattr(pytree.SUPPORTED_NODES[cls].unflatten_fn, "__module__", None) or ""
    if owner.split(".")[0] == "transformers":
        raise ValueError(f"expected containers of tensors, found {_shown(name)}")
    if pytree.is_namedtuple_class(cls):
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
