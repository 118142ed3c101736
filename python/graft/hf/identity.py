"""What the trace of a model depends on beside the values of its weights, as a digest: the key of exported programs on disk.

Class and configuration do not say it all: hooks, patched methods, activations, `eps`, scalings and functions of the
module's file are read while the model is traced. Each is described here by its content, functions by their code. What
cannot be described makes the whole model `Unknown`: it is traced each time.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from graft.hf.store import digest_of_tensors
from graft.llm.trace import records_outputs

# Attributes of modules that no trace reads, or that are described otherwise.
UNREAD = {
    "_parameters", "_modules", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks",
    "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_non_persistent_buffers_set", "generation_config", "warnings_issued", "name_or_path",
    "graft", "_graft_dtype", "_graft_windows", "_graft_guard", "_graft_options", "_compiled_call", "_last_compile_config",
    "all_tied_weights_keys", "_output_capturing_hooks_installed", "_previous_max_cache_length", "_cache",
    "_tied_weights_keys", "_tp_plan", "_ep_plan", "_pp_plan", "model_tags",
    "_keys_to_ignore_on_load_missing", "_keys_to_ignore_on_load_unexpected", "_keys_to_ignore_on_save",
}  # fmt: skip
# Settings that say nothing of the computation: names, tokens of generate(), what is given back, and what graft sets itself.
UNREAD_SETTINGS = {
    "_name_or_path", "name_or_path", "transformers_version", "architectures", "_commit_hash", "dtype", "torch_dtype",
    "_attn_implementation_internal", "_experts_implementation_internal", "_attn_implementation", "use_cache",
    "return_dict", "_output_attentions", "output_attentions", "output_hidden_states", "bos_token_id", "eos_token_id",
    "id2label", "label2id", "_auto_class", "problem_type", "_attn_implementation_autoset", "base_model_tp_plan",
    "base_model_pp_plan", "base_model_ep_plan", "_generation_config",
}  # fmt: skip
_LIBRARIES = {"torch", "transformers", "graft", "numpy", *sys.stdlib_module_names}  # known by their versions


class Unknown(Exception):
    """Something whose content cannot be seen."""


def digest_of_model(model: torch.nn.Module) -> str:
    """Raises Unknown."""
    say = _Describer(model)
    for path, module in model.named_modules(remove_duplicate=False):
        say(path)
        say.module(module, hooks=module is not model)
    say.hooks_of_all()
    return say.digest()


def known(model: torch.nn.Module) -> str | None:
    """The digest, None for a model that cannot be described."""
    try:
        return digest_of_model(model)
    except (Unknown, RecursionError):
        return None


def inner_hooks(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        for hook in getattr(module, kind).values():
            if not records_outputs(hook):
                yield kind, hook


class _Describer:
    """Feeds a digest with whatever it is called with."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._hash = hashlib.sha256()
        self._tree = {id(m): path for path, m in model.named_modules()}
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # alive, so that no id is used again
        self._codes: dict[int, bytes] = {}
        self._trusted = 0

    def digest(self) -> str:
        return self._hash.hexdigest()

    def _write(self, *parts: Any) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            self._hash.update(b"%d:" % len(data) + data)

    def hooks_of_all(self) -> None:
        shared = torch.nn.modules.module
        self(list(shared._global_forward_pre_hooks.values()))
        self(list(shared._global_forward_hooks.values()))

    def module(self, module: torch.nn.Module, hooks: bool = True) -> None:
        self._write("module")
        self._class(type(module), whole=True)
        for name, child in module._modules.items():
            self._write(name, self._tree.get(id(child), type(child).__qualname__))
        for name, parameter in module._parameters.items():
            self._write(name, None if parameter is None else f"{parameter.dtype} {list(parameter.shape)}")
        buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
        self._write(digest_of_tensors(buffers) if buffers else "")
        for name, value in sorted(vars(module).items()):
            if name not in UNREAD:
                self._write(name)
                self(value)
        if hooks:
            for kind, hook in inner_hooks(module):
                self._write(kind)
                self(hook)

    def __call__(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return self._write(type(value).__name__, repr(value))
        if isinstance(value, (torch.dtype, torch.device, torch.Size, torch.layout, enum.Enum, range, slice)):
            return self._write(type(value).__name__, repr(value))
        if (place := self._seen.get(id(value))) is not None:
            return self._write("again", place)
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if isinstance(value, (list, tuple, set, frozenset)) or _is_view(value):
            values = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
            self._write(type(value).__name__, len(values))
            for one in values:
                self(one)
        elif isinstance(value, Mapping):
            self._write(type(value).__name__, len(value))
            for key, one in value.items():
                self(key)
                self(one)
        elif isinstance(value, torch.Tensor):
            if value.is_meta:
                raise Unknown(f"a tensor of {list(value.shape)} without values")
            self._write("tensor", digest_of_tensors({"": value}))
        elif isinstance(value, torch.nn.Module):
            self._captured(value)
        elif isinstance(value, type):
            self._class(value, whole=False)
        elif callable(value) and self._function(value):
            pass
        else:
            self._object(value)

    def _captured(self, module: torch.nn.Module) -> None:
        """Of a module that something holds beside the tree, the weights become constants of the program."""
        self._write("captured", self._tree.get(id(module), ""))
        for path, part in module.named_modules():
            self._write(path)
            self.module(part)
        tensors = dict(module.named_parameters())
        if any(tensor.is_meta for tensor in tensors.values()):
            raise Unknown("weights without values")
        self._write(digest_of_tensors(tensors))

    def _function(self, value: Any) -> bool:
        if isinstance(value, functools.partial):
            self._write("partial")
            self([value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            owner = value.__self__
            self._write("method")
            self(value.__func__)
            if id(owner) in self._tree:  # whose own state is described
                self._write(self._tree[id(owner)])
            else:
                self(owner)
        elif isinstance(value, types.FunctionType):
            self._write("function", value.__module__, value.__qualname__, self._code(value.__code__))
            library = _of_library(value.__module__)
            self._trusted += library  # decorators of libraries hold generators, locks and the like
            self([value.__defaults__, value.__kwdefaults__])
            for cell in value.__closure__ or ():
                try:
                    self(cell.cell_contents)
                except ValueError:
                    self._write("empty cell")
            self._trusted -= library
            if not library:
                self._globals(value)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            owner = getattr(value, "__self__", None)
            self._write("builtin", value.__qualname__)
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                self(owner)
        elif isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            self._write("operator", str(value))
        else:
            return False
        return True

    def _globals(self, function: types.FunctionType) -> None:
        """What a function of no known library reads of its module."""
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                self._write(name)
                if isinstance(value, types.ModuleType):
                    self._write("module", value.__name__)
                else:
                    self(value)

    def _class(self, kind: type, whole: bool) -> None:
        """whole: with the functions that it has now, and those of its file. Otherwise a class of a library is its name."""
        for base in kind.__mro__:
            self._write("class", base.__module__, base.__qualname__)
            if base in (object, torch.nn.Module) or base.__module__ in ("builtins", "abc", "typing"):
                continue
            if (not whole and _of_library(base.__module__)) or id(base) in self._seen:
                continue
            self._seen[id(base)] = len(self._seen)
            self._kept.append(base)
            for name, value in sorted(vars(base).items()):
                function = _plain(value)
                if isinstance(function, types.FunctionType):
                    self._write(name)
                    self(function)
                elif isinstance(value, (bool, int, float, str, tuple)):
                    self._write(name)
                    self(value)
            if whole and (file := sys.modules.get(base.__module__)) is not None and id(file) not in self._seen:
                self._seen[id(file)] = len(self._seen)
                for name, value in sorted(vars(file).items()):
                    if isinstance(value, types.FunctionType):
                        self._write(name)
                        self(value)

    def _object(self, value: Any) -> None:
        if isinstance(value, weakref.ref):
            return self(value())
        if isinstance(value, logging.Logger):
            return self._write("logger", value.name)
        kind = type(value)
        self._write("object")
        self._class(kind, whole=False)
        unread = UNREAD_SETTINGS if isinstance(value, PretrainedConfig) else ()
        slots = [name for base in kind.__mro__ for name in _slots(base)]
        if not hasattr(value, "__dict__") and not slots:
            if self._trusted:
                return
            raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")
        if hasattr(value, "__dict__"):
            for name, one in sorted(vars(value).items()):
                if name not in unread:
                    self._write(name)
                    self(one)
        for name in slots:
            if hasattr(value, name):
                self._write(name)
                self(getattr(value, name))

    def _code(self, code: types.CodeType) -> bytes:
        found = self._codes.get(id(code))
        if found is None:
            inner = _Describer.__new__(_Describer)
            inner._hash, inner._tree, inner._seen, inner._kept, inner._codes = hashlib.sha256(), {}, {}, [], self._codes
            inner._write(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
            for constant in code.co_consts:
                if isinstance(constant, types.CodeType):
                    inner._write(inner._code(constant))
                else:  # a set's order differs from process to process
                    inner._write(sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant))
            found = self._codes[id(code)] = inner._hash.digest()
            self._kept.append(code)
        return found


def _is_view(value: Any) -> bool:
    return isinstance(value, (type({}.keys()), type({}.values()), type({}.items())))


def _of_library(module: str | None) -> bool:
    if (top := (module or "").split(".")[0]) in _LIBRARIES:
        return True
    return "site-packages" in (getattr(sys.modules.get(top), "__file__", None) or "")


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(_names(c) for c in inner))


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _plain(value: Any) -> Any:
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


__all__ = ["UNREAD", "UNREAD_SETTINGS", "Unknown", "digest_of_model", "inner_hooks", "known"]
