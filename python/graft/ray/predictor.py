"""A package as a callable class: what Ray Data's `map_batches` starts once per actor, and other engines per worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graft.errors import InvalidArgument, NotFound
from graft.ray import _needs, arrow
from graft.ray.arrow import Array
from graft.runtime.model import Method, load
from graft.runtime.options import LoadOptions


class Predictor:
    """Runs a method of a package on the rows of tables: Arrow in, Arrow out.

        dataset.map_batches(graft.ray.Predictor, fn_constructor_args=["net.pte"], batch_format="pyarrow",
                            concurrency=4, num_cpus=2)

    package: the file (.pte), at the same path on each host.
    inputs: {name of an input of the method: column}. Those that are not named are read from the columns of their own
        names; an input is the column's numbers [n], or tensors [n, ...].
    outputs: a column for each result [n, ...] of the method; its names by default.
    method: of the package.
    threads: that compute one call. None: the CPUs that Ray or Spark gave this worker, else all.
    rows: the most of one call, at most as many as the method takes.

    Columns are read where they lie, and results belong to the table: no tensor is copied. Weights are packed once per
    host, in GRAFT_PACKED_FOLDER or the user's cache folder, and mapped by all workers.

    Raises what `graft.load` raises, and `graft.InvalidArgument` for columns that the method does not take.
    """

    def __init__(
        self,
        package: str | os.PathLike[str],
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] | None = None,
        method: str = "forward",
        threads: int | None = None,
        rows: int = 1024,
    ) -> None:
        self.package = os.fspath(package)
        options = LoadOptions(packed_folder=os.fspath(_needs.packed_folder()))
        self.model = load(self.package, threads=_needs.threads() if threads is None else threads, options=options)
        if method not in self.model.methods:
            raise NotFound(f"'{self.package}' has no method '{method}': it has {sorted(self.model.methods)}")
        self.method: Method = self.model.methods[method]
        described = next(m for m in self.model.describe()["methods"] if m["name"] == method)
        self.inputs: list[dict[str, Any]] = described["inputs"]
        names: list[str] = [entry["name"] for entry in self.inputs]
        if unknown := sorted(set(inputs or {}) - set(names)):
            raise InvalidArgument(f"method '{method}' has no inputs {unknown}: it has {names}")
        self.columns: list[str] = [(inputs or {}).get(name, name) for name in names]
        self.outputs = [entry["name"] for entry in described["outputs"]] if outputs is None else list(outputs)
        if len(self.outputs) != len(described["outputs"]):
            raise InvalidArgument(
                f"method '{method}' has {len(described['outputs'])} results, outputs names {len(self.outputs)}"
            )
        if rows < 1:
            raise InvalidArgument(f"rows must be at least 1, got {rows}")
        limits = [entry["dims"][0]["max"] for entry in self.inputs if entry.get("dims")]
        self.rows: int = min([rows, *(limit for limit in limits if limit is not None)])

    def arrays(self, *columns: Array) -> list[Array]:
        """The results [n, ...] for inputs [n, ...] in the order of the method's."""
        count = len(columns[0])
        for name, column in zip(self.columns, columns, strict=True):
            if len(column) != count:
                raise InvalidArgument(f"column '{name}' has {len(column)} rows, '{self.columns[0]}' has {count}")
        parts = [self._run([column[i : i + self.rows] for column in columns]) for i in range(0, count, self.rows)]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _run(self, inputs: list[Array]) -> list[Array]:
        found: Any = self.method(*inputs)
        results: list[Array] = list(found) if isinstance(found, (tuple, list)) else [found]
        for name, result in zip(self.outputs, results, strict=True):
            if not isinstance(result, np.ndarray) or not result.ndim or len(result) != len(inputs[0]):
                shape = getattr(result, "shape", "none")
                raise InvalidArgument(f"result '{name}': must have a row for each of {len(inputs[0])}, its shape is {shape}")
        return results

    def __call__(self, table: Any) -> Any:
        """The table (pyarrow.Table, n rows) with a column for each result."""
        pa = _needs.package("pyarrow", "graft.ray.Predictor")
        parts: list[list[Any]] = [[] for _ in self.outputs]
        for _, chunks in arrow.slices(table, self.columns):
            columns = [arrow.to_numpy(chunk, name) for chunk, name in zip(chunks, self.columns, strict=True)]
            for begin in range(0, len(chunks[0]), self.rows):
                for part, result in zip(parts, self._run([c[begin : begin + self.rows] for c in columns]), strict=True):
                    part.append(arrow.to_arrow(result))
        if not table.num_rows:
            return table
        return arrow.with_columns(table, {name: pa.chunked_array(p) for name, p in zip(self.outputs, parts, strict=True)})


__all__ = ["Predictor"]
