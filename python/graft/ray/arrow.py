"""Columns of Arrow tables as numpy arrays and back, on the same memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graft.errors import InvalidArgument
from graft.ray._needs import package

Array = np.ndarray[Any, Any]


def slices(table: Any, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    """(first row, arrays of these columns) for rows that lie together in memory in each of them: a table that was
    put together of several stays in its parts, since joining them would copy."""
    names = table.column_names
    for column in columns:
        if column not in names:
            raise InvalidArgument(f"the table has no column '{column}': it has {names}")
    chunks = [table.column(column).chunks for column in columns]
    ends = sorted({0, table.num_rows, *(end for parts in chunks for end in np.cumsum([len(part) for part in parts]))})
    for begin, end in zip(ends, ends[1:], strict=False):
        yield int(begin), [table.column(column).slice(begin, end - begin).chunk(0) for column in columns]


def to_numpy(array: Any, column: str) -> Array:
    """The numbers of a column [n, ...] where they lie: a view, read-only. Takes numbers, lists of a fixed size, and
    tensors of one shape, Arrow's or Ray's."""
    pa = package("pyarrow", "a column of an Arrow table")
    if array.null_count:
        raise InvalidArgument(f"column '{column}': must have no nulls, has {array.null_count}")
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return array.to_numpy_ndarray()
    if isinstance(kind, pa.BaseExtensionType) and hasattr(kind, "shape"):  # Ray's own
        return array.to_numpy(zero_copy_only=True)
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        array, kind = array.flatten(), kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidArgument(
            f"column '{column}': must be numbers, lists of them of a fixed size or tensors of one shape, is {kind}"
        )
    values = array.to_numpy(zero_copy_only=True)
    return values.reshape(-1, *shape) if shape else values


def to_arrow(array: Array) -> Any:
    """A column of the rows of an array [n, ...], on the same memory: numbers, or tensors of Arrow's."""
    pa = package("pyarrow", "a column of an Arrow table")
    if array.ndim == 1:
        return pa.array(array)
    shape = array.shape[1:]
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    kind = pa.fixed_shape_tensor(values.type, shape)
    rows = pa.FixedSizeListArray.from_arrays(values, math.prod(shape))
    return pa.ExtensionArray.from_storage(kind, rows)


def with_columns(table: Any, columns: Mapping[str, Any]) -> Any:
    """The table with these columns behind its own."""
    for name, column in columns.items():
        if name in table.column_names:
            raise InvalidArgument(f"the table has a column '{name}' already: say another name for the results")
        table = table.append_column(name, to_arrow(column) if isinstance(column, np.ndarray) else column)
    return table


def strings(table: Any, column: str) -> list[str]:
    """The texts of a column."""
    if column not in table.column_names:
        raise InvalidArgument(f"the table has no column '{column}': it has {table.column_names}")
    values = table.column(column).to_pylist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise InvalidArgument(f"column '{column}': must be texts, row {row} is {type(value).__name__}")
    return values
