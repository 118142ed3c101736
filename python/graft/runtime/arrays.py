"""Arrays of a call: torch tensors or numpy arrays.

A package runs without torch. Whether a program uses it is looked up at each call (`torch`), and nothing here imports it.
A dtype is its number in schema/graft.fbs.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from graft._fb.DType import DType
from graft.errors import InvalidArgument, Unsupported

__all__ = ["NUMPY", "TORCH", "Arrays"]


def torch() -> Any:
    """torch, if this program has imported it (all of it: another thread may be at it), else None."""
    module = sys.modules.get("torch")
    return module if hasattr(module, "nn") else None


_NUMPY_NAMES: dict[int, str] = {
    DType.f32: "float32",
    DType.f16: "float16",
    DType.f64: "float64",
    DType.i8: "int8",
    DType.u8: "uint8",
    DType.i16: "int16",
    DType.i32: "int32",
    DType.i64: "int64",
    DType.bool_: "bool",
}
_NUMPY_OF: dict[int, np.dtype[Any]] = {number: np.dtype(name) for number, name in _NUMPY_NAMES.items()}
_NUMBER_OF = {dtype: number for number, dtype in _NUMPY_OF.items()}
_ALIGNMENT = 64  # as the engine reads and writes without a copy
_PLAIN = frozenset({bool, int, float, str})


def torch_dtypes() -> tuple[Any, ...]:
    """torch's, by number. torch must be imported."""
    return importlib.import_module("graft._dtypes").DTYPES


def torch_number(dtype: Any) -> int | None:
    return importlib.import_module("graft._dtypes").NUMBER_OF.get(dtype)


class Arrays(Protocol):
    """What the engine's binding does with arrays of one library."""

    def holds(self, value: Any) -> bool: ...

    def empty(self, dtype: int, sizes: Sequence[int]) -> Any:
        """New memory on the CPU, aligned as the engine wants it."""
        ...

    def address(self, array: Any) -> int: ...

    def fits(self, array: Any, dtype: int, sizes: Sequence[int] | None) -> bool:
        """Whether the engine may write there: contiguous, on the CPU, with this dtype and these sizes (None: any)."""
        ...

    def dtype_name(self, dtype: int) -> str: ...

    def shown(self, array: Any) -> str: ...


class _Numpy:
    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def dtype(self, number: int) -> np.dtype[Any]:
        if number != DType.bf16:
            return _NUMPY_OF[number]
        try:
            return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ModuleNotFoundError as e:
            raise Unsupported(
                "a result is bfloat16, which numpy does not have: pip install ml_dtypes, or pass torch tensors"
            ) from e

    def number(self, dtype: np.dtype[Any]) -> int | None:
        if dtype.name == "bfloat16":  # of ml_dtypes
            return DType.bf16
        return _NUMBER_OF.get(dtype)

    def empty(self, dtype: int, sizes: Sequence[int]) -> Any:
        of = self.dtype(dtype)
        count = math.prod(sizes) * of.itemsize
        memory = np.empty(count + _ALIGNMENT, np.uint8)
        start = -self.address(memory) % _ALIGNMENT
        return memory[start : start + count].view(of).reshape(sizes)

    def address(self, array: Any) -> int:
        return array.__array_interface__["data"][0]

    def fits(self, array: Any, dtype: int, sizes: Sequence[int] | None) -> bool:
        right = self.holds(array) and self.number(array.dtype) == dtype and (sizes is None or array.shape == tuple(sizes))
        return right and array.flags.c_contiguous and array.flags.writeable

    def dtype_name(self, dtype: int) -> str:
        return _NUMPY_NAMES.get(dtype, "bfloat16")

    def shown(self, array: Any) -> str:
        return f"{array.dtype}{list(array.shape)}" + ("" if array.flags.writeable else ", read-only")


class _Torch:
    def holds(self, value: Any) -> bool:
        module = torch()
        return module is not None and isinstance(value, module.Tensor)

    def empty(self, dtype: int, sizes: Sequence[int]) -> Any:
        return torch().empty(sizes, dtype=torch_dtypes()[dtype], device="cpu")

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def fits(self, array: Any, dtype: int, sizes: Sequence[int] | None) -> bool:
        right = self.holds(array) and array.dtype == torch_dtypes()[dtype]
        right = right and (sizes is None or tuple(array.shape) == tuple(sizes))
        return right and array.is_contiguous() and array.device.type == "cpu"

    def dtype_name(self, dtype: int) -> str:
        return str(torch_dtypes()[dtype])

    def shown(self, array: Any) -> str:
        return f"{array.dtype}{list(array.shape)} on {array.device}"


NUMPY = _Numpy()
TORCH = _Torch()


def default() -> Arrays:
    """For what no argument decides: torch's where the program has imported torch."""
    return NUMPY if torch() is None else TORCH


def kind_of(arrays: Iterable[Any]) -> Arrays:
    """Of a call's results, by the arrays among its arguments: torch's if one of these is a tensor, numpy's if all of them
    are numpy arrays, the default for none."""
    kinds = [TORCH if TORCH.holds(array) else NUMPY for array in arrays]
    return default() if not kinds else TORCH if TORCH in kinds else NUMPY


def leaf_types() -> frozenset[type]:
    """Types that are never containers."""
    module = torch()
    return _WITHOUT_TORCH if module is None else _WITHOUT_TORCH | {module.Tensor, module.nn.Parameter}


_WITHOUT_TORCH = _PLAIN | {np.ndarray}


def as_numpy(value: Any, where: str) -> Any:
    """A scalar of numpy, or an array of any library with DLPack, as a numpy array on the same memory; else None."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        return None
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise InvalidArgument(f"{where}: {type(value).__name__} cannot be read through DLPack: {e}") from e


def matmul_precision() -> str:
    """What torch.set_float32_matmul_precision was given; torch's default without torch."""
    module = torch()
    return "highest" if module is None else module.get_float32_matmul_precision()
