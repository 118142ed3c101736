"""GGUF files, read by ggml's own reader."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graft import _C
from graft.errors import ExportError
from graft.llm.stored import Stored, file_range

# gguf_type -> how a number of that type is read; strings and arrays have their own numbers.
_NUMBERS: dict[int, Any] = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    6: ctypes.c_float,
    7: ctypes.c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
    12: ctypes.c_double,
}
_STRING, _ARRAY = 8, 9
_PLAIN = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}
_DIMS = 4


class _Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


@functools.cache
def _library() -> ctypes.CDLL:
    from graft import _C  # noqa: F401  (brings the ggml that graft was built with into the process)

    lib = ctypes.CDLL("libggml-base.so.0")
    context, index = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gguf_init_from_file", context, [ctypes.c_char_p, _Params]),
        ("gguf_init_empty", context, []),
        ("gguf_set_kv", None, [context, context]),
        ("gguf_get_meta_size", ctypes.c_size_t, [context]),
        ("gguf_get_meta_data", None, [context, ctypes.c_void_p]),
        ("gguf_free", None, [context]),
        ("gguf_get_data_offset", ctypes.c_size_t, [context]),
        ("gguf_get_n_kv", ctypes.c_int64, [context]),
        ("gguf_get_key", ctypes.c_char_p, [context, index]),
        ("gguf_get_kv_type", ctypes.c_int, [context, index]),
        ("gguf_get_arr_type", ctypes.c_int, [context, index]),
        ("gguf_get_arr_n", ctypes.c_size_t, [context, index]),
        ("gguf_get_arr_data", ctypes.c_void_p, [context, index]),
        ("gguf_get_arr_str", ctypes.c_char_p, [context, index, ctypes.c_size_t]),
        ("gguf_get_val_data", ctypes.c_void_p, [context, index]),
        ("gguf_get_val_str", ctypes.c_char_p, [context, index]),
        ("gguf_get_n_tensors", ctypes.c_int64, [context]),
        ("gguf_get_tensor_name", ctypes.c_char_p, [context, index]),
        ("gguf_get_tensor_offset", ctypes.c_size_t, [context, index]),
        ("gguf_get_tensor_size", ctypes.c_size_t, [context, index]),
        ("gguf_get_tensor_type", ctypes.c_int, [context, index]),
        ("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64 * _DIMS), [context, index]),
        ("ggml_type_name", ctypes.c_char_p, [ctypes.c_int]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class File:
    """values: the file's key-value pairs. tensors: by name. vocabulary: the pairs as a GGUF file without tensors."""

    def __init__(self, path: Path) -> None:
        lib = _library()
        context = lib.gguf_init_from_file(str(path).encode(), _Params(True, None))
        if not context:
            raise ExportError(f"export_llm: '{path}' cannot be read as GGUF")
        try:
            pairs = range(lib.gguf_get_n_kv(context))
            self.values = {self._key(lib, context, i): self._value(lib, context, i) for i in pairs}
            tensors = (self._tensor(lib, context, i, path) for i in range(lib.gguf_get_n_tensors(context)))
            self.tensors = {tensor.name: tensor for tensor in tensors}
            self.vocabulary = self._pairs(lib, context)
        finally:
            lib.gguf_free(context)

    @staticmethod
    def _key(lib: Any, context: Any, i: int) -> str:
        return lib.gguf_get_key(context, i).decode(errors="replace")

    @staticmethod
    def _value(lib: Any, context: Any, i: int) -> Any:
        kind = lib.gguf_get_kv_type(context, i)
        if kind == _STRING:
            return lib.gguf_get_val_str(context, i).decode(errors="replace")
        if kind != _ARRAY:
            return _NUMBERS[kind].from_address(lib.gguf_get_val_data(context, i)).value
        count, of = lib.gguf_get_arr_n(context, i), lib.gguf_get_arr_type(context, i)
        if of == _STRING:
            return _Texts(count)  # a vocabulary: the tokenizer reads it from `vocabulary`
        return list((_NUMBERS[of] * count).from_address(lib.gguf_get_arr_data(context, i))) if count else []

    @staticmethod
    def _tensor(lib: Any, context: Any, i: int, path: Path) -> Stored:
        name = lib.gguf_get_tensor_name(context, i).decode(errors="replace")
        sizes = list(lib.gguf_get_tensor_ne(context, i).contents)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        kind = lib.ggml_type_name(lib.gguf_get_tensor_type(context, i)).decode()
        size = lib.gguf_get_tensor_size(context, i)
        offset = lib.gguf_get_data_offset(context) + lib.gguf_get_tensor_offset(context, i)
        return Stored(
            name=name,
            sizes=tuple(reversed(sizes)),
            dtype=_PLAIN.get(kind, torch.float32),
            byte_size=size,
            chunks=file_range(path, offset, size),
            block_type="" if kind in _PLAIN else kind,
            file=path,
        )

    @staticmethod
    def _pairs(lib: Any, context: Any) -> bytes:
        alone = lib.gguf_init_empty()
        try:
            lib.gguf_set_kv(alone, context)
            data = ctypes.create_string_buffer(lib.gguf_get_meta_size(alone))
            lib.gguf_get_meta_data(alone, data)
            return data.raw
        finally:
            lib.gguf_free(alone)


class _Texts:
    """How many texts an array has."""

    def __init__(self, count: int) -> None:
        self.count = count


def changed(stored: Stored, change: Callable[[bytes], bytes]) -> Stored:
    """Other bytes of the same type and size, made when they are asked for."""

    def chunks() -> Any:
        yield change(b"".join(stored.chunks()))

    return dataclasses.replace(stored, chunks=chunks, file=None)


def packed(stored: Stored) -> Stored:
    """The same in the layout that graft's kernels read, where there is one for its type and shape."""
    size = _C.packed_byte_count(stored.block_type, stored.sizes) if stored.block_type else 0
    if size == 0:
        return stored

    def chunks() -> Any:
        out = np.empty(size, np.uint8)
        _C.pack_blocks(b"".join(stored.chunks()), stored.block_type, stored.sizes, out.ctypes.data, out.nbytes)
        yield out.data

    return dataclasses.replace(stored, byte_size=size, chunks=chunks, packed=True, file=None)
