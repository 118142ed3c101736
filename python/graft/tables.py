"""Parquet and Arrow files for `graft batch`, which reads and writes rows of JSON: it starts this before and after."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graft._files import unfinished
from graft.errors import Error, InvalidArgument, NotFound

# Of what tasks add, by name; the types of others are those of the first file's values.
_TYPES = {
    "embedding": "list",
    "scores": "list",
    "score": "float",
    "completion": "string",
    "answer": "string",
    "finish_reason": "string",
}


def to_rows(table: Path, rows: Path) -> None:
    """Writes the rows of a table as JSON Lines: of each row what JSON has, which is no NaN, bytes or time."""
    data = _open(table)
    usable = _usable(data.schema)
    with unfinished(rows.parent, rows.name) as place, open(place / rows.name, "w", encoding="utf-8") as file:
        for batch in _batches(table, data, usable):
            for row in batch.to_pylist():
                file.write(json.dumps({name: value for name, value in row.items() if _finite(value)}, ensure_ascii=False))
                file.write("\n")
        _commit(file, rows)


def from_rows(table: Path, run: Path, out: Path) -> None:
    """Writes the files of a run on `to_rows(table)` as tables: the rows of the table, of all types, with what the run
    added. Files that are there stay."""
    data = _open(table)
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    options = manifest["options"]
    kept = [name for name in data.schema.names if name not in options["drop"]]
    seen = {name for name in _usable(data.schema) if name in kept}
    extension = table.suffix
    added: Any = None
    for shard, source in zip(manifest["shards"], _slices(table, data, options["shard_rows"])):
        part = (out / shard["file"]["name"]).with_suffix(extension)
        if "error_file" in shard:
            _copy(run / shard["error_file"]["name"], out / shard["error_file"]["name"])
        if part.exists():
            added = added or _added_schema(part, kept)
            continue
        wrong = set()
        if "error_file" in shard:
            lines = (run / shard["error_file"]["name"]).read_text(encoding="utf-8").splitlines()
            wrong = {json.loads(line)["row"] - shard["index"] * options["shard_rows"] for line in lines}
        good = [i for i in range(source.num_rows) if i not in wrong]
        # splitlines() would also end lines at other characters of Unicode.
        text = (run / shard["file"]["name"]).read_text(encoding="utf-8")
        results = [json.loads(line) for line in text.split("\n") if line]
        if len(results) != len(good):
            raise InvalidArgument(f"'{run / shard['file']['name']}' has {len(results)} rows, expected {len(good)}")
        written = _joined(source.select(kept).take(good), results, seen, added)
        if results:
            added = added or _added(written.schema, kept)
        _write(part, written)


def _joined(rows: Any, results: list[dict], seen: set[str], types: dict[str, Any] | None) -> Any:
    """The rows with the columns that results have besides those that the run saw."""
    import pyarrow

    names = list(types) if types else list(dict.fromkeys(name for row in results for name in row if name not in seen))
    for name in names:
        if name in rows.schema.names:
            raise InvalidArgument(f"the table has a column '{name}', which is what the result is called: --drop {name}")
        values = [row.get(name) for row in results]
        known = {"list": pyarrow.list_(pyarrow.float32()), "float": pyarrow.float32(), "string": pyarrow.string()}
        kind = types[name] if types else known.get(_TYPES.get(name, ""))
        try:
            rows = rows.append_column(name, pyarrow.array(values, type=kind))
        except pyarrow.ArrowException as e:
            raise InvalidArgument(f"the column '{name}' of the results has values of different types: {e}") from e
    return rows


def _added(schema: Any, kept: Sequence[str]) -> dict[str, Any]:
    return {field.name: field.type for field in schema if field.name not in kept}


def _added_schema(part: Path, kept: Sequence[str]) -> dict[str, Any]:
    return _added(_open(part).schema, kept)


def _open(path: Path) -> Any:
    import pyarrow
    import pyarrow.dataset

    if not path.is_file():
        raise NotFound(f"there is no file '{path}'")
    try:
        return pyarrow.dataset.dataset(path, format="parquet" if path.suffix == ".parquet" else "ipc")
    except (pyarrow.ArrowException, OSError) as e:
        raise _unreadable(path, e) from e


def _batches(table: Path, data: Any, columns: list[str]) -> Iterator[Any]:
    import pyarrow

    try:
        for batch in data.to_batches(columns=columns):
            batch.validate(full=True)  # texts that are no UTF-8, for one
            yield batch
    except (pyarrow.ArrowException, OSError) as e:
        raise _unreadable(table, e) from e


def _unreadable(table: Path, error: Exception) -> InvalidArgument:
    return InvalidArgument(f"cannot read '{table}': {str(error).partition(chr(10))[0]}")


def _slices(table: Path, data: Any, size: int) -> Iterator[Any]:
    """Tables of `size` rows, the last of fewer."""
    import pyarrow

    waiting: list[Any] = []
    count = 0
    for batch in _batches(table, data, data.schema.names):
        while count + batch.num_rows >= size:
            first = size - count
            yield pyarrow.Table.from_batches([*waiting, batch.slice(0, first)], data.schema)
            batch, waiting, count = batch.slice(first), [], 0
        waiting.append(batch)
        count += batch.num_rows
    if count:
        yield pyarrow.Table.from_batches(waiting, data.schema)


def _usable(schema: Any) -> list[str]:
    return [field.name for field in schema if _has_json(field.type)]


def _has_json(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _has_json(kind.value_type)
    if types.is_struct(kind):
        return all(_has_json(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _has_json(kind.value_type)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return text or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, dict) or all(map(_finite, value.values()))


def _write(part: Path, table: Any) -> None:
    import pyarrow
    import pyarrow.parquet

    with unfinished(part.parent, part.name) as place, open(place / part.name, "wb") as file:
        if part.suffix == ".parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            with pyarrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        _commit(file, part)


def _copy(source: Path, target: Path) -> None:
    with unfinished(target.parent, target.name) as place, open(place / target.name, "wb") as file:
        with open(source, "rb") as given:
            shutil.copyfileobj(given, file)
        _commit(file, target)


def _commit(file: Any, target: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, target)


def main(arguments: Sequence[str]) -> int:
    """to_rows TABLE ROWS, or from_rows TABLE RUN OUT. Returns the exit code."""
    work = {"to_rows": to_rows, "from_rows": from_rows}[arguments[0]]
    try:
        work(*map(Path, arguments[1:]))
    except ModuleNotFoundError as e:
        print(f"graft: tables need the Python package '{e.name}': pip install 'graft[batch]'", file=sys.stderr)
    except Error as e:
        print(f"graft: {e}", file=sys.stderr)
    except MemoryError:
        print("graft: not enough memory", file=sys.stderr)
    else:
        return 0
    return 1


__all__ = ["from_rows", "main", "to_rows"]
