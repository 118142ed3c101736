"""Parquet and Arrow files through `graft batch`: rows keep columns of all types, and a run goes on."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batches import batch, command, errors, good, write_rows

pyarrow = pytest.importorskip("pyarrow")
import pyarrow.dataset  # noqa: E402
import pyarrow.parquet  # noqa: E402

GENERATE = "--task", "generate", "--set", "max_tokens=4", "--set", "temperature=1", "--rows", 4


def table(count: int) -> pyarrow.Table:
    """With columns that JSON has not; the texts of rows 3, 13, ... are missing."""
    start = datetime.datetime(2024, 1, 1)
    return pyarrow.table(
        {
            "when": [start + datetime.timedelta(hours=i) for i in range(count)],
            "text": [None if i % 10 == 3 else "Once upon a time " * (i % 4) + str(i) for i in range(count)],
            "bytes": pyarrow.array([bytes([i % 256]) for i in range(count)]),
            "x": pyarrow.array([float("nan") if i % 5 == 0 else i / 3 for i in range(count)], pyarrow.float32()),
            "kind": pyarrow.array(["a", "b\u2028"] * (count // 2)).dictionary_encode(),
        },
        metadata={"from": "a test"},
    )


def write(path: Path, rows: pyarrow.Table) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(rows, path, row_group_size=17)
    else:
        with pyarrow.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=17)
    return path


def parts(out: Path, suffix: str) -> list[pyarrow.Table]:
    kind = "parquet" if suffix == ".parquet" else "ipc"
    return [pyarrow.dataset.dataset(path, format=kind).to_table() for path in sorted(out.glob(f"part-*{suffix}"))]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_of_all_types(stories, tmp_path, suffix):
    given = table(50)
    path = write(tmp_path / f"rows{suffix}", given)
    out = tmp_path / "out"
    done = batch(stories, path, out, *GENERATE, "--shard-rows", 20, "--drop", "kind")
    assert done.returncode == 0 and "50 rows, 5 of them errors" in done.stderr, done.stderr
    written = parts(out, suffix)
    assert [len(part) for part in written] == [18, 18, 9] and not (out / "rows.jsonl").exists()
    whole = pyarrow.concat_tables(written)
    good_rows = [i for i in range(50) if i % 10 != 3]
    expected = given.take(good_rows).drop_columns("kind")
    for name in ("when", "text", "bytes"):
        assert whole[name].to_pylist() == expected[name].to_pylist()
    assert whole.schema.names == [*expected.schema.names, "completion", "finish_reason"]
    assert whole.schema.field("when").type == given.schema.field("when").type
    assert [error["row"] for error in errors(out)] == [3, 13, 23, 33, 43]
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in given["text"].to_pylist()])
    settings = (*GENERATE[:-2], "--set", "seed=1")
    same = good(stories, rows, tmp_path / "json", *settings)
    assert batch(stories, path, tmp_path / "seeded", *settings).returncode == 0
    assert pyarrow.concat_tables(parts(tmp_path / "seeded", suffix))["completion"].to_pylist() == [
        row["completion"] for row in same
    ]


def test_vectors_are_of_float32(encoder, tmp_path):
    model, package, folder = encoder
    path = write(tmp_path / "rows.parquet", pyarrow.table({"text": ["Once", "upon a", "time"]}))
    task = "classify" if model.classes else "embed"
    done = batch(package, path, tmp_path / "out", "--task", task, "--tokenizer", folder)
    assert done.returncode == 0, done.stderr
    (found,) = parts(tmp_path / "out", ".parquet")
    vectors = "scores" if model.classes else "embedding"
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in found["text"].to_pylist()])
    expected = good(package, rows, tmp_path / "json", "--task", task, "--tokenizer", folder)
    kind = found.schema.field(vectors).type
    assert kind.value_type == pyarrow.float32()
    values = pyarrow.array([row[vectors] for row in expected], kind)
    assert found[vectors].combine_chunks().equals(values), "as JSON has them"


def test_resume(stories, tmp_path):
    path = write(tmp_path / "rows.parquet", table(600))
    args = *GENERATE, "--shard-rows", 20
    assert batch(stories, path, tmp_path / "whole", *args).returncode == 0
    out, kills = tmp_path / "out", 0
    for moment in ("run/part-00002.jsonl", "run/part-00011.jsonl", "part-00003.parquet", "part-00020.parquet"):
        process = subprocess.Popen(command(stories, path, out, *args, "--resume"), stderr=subprocess.DEVNULL,
                                   start_new_session=True)  # fmt: skip
        while not (out / moment).exists() and process.poll() is None:
            time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    done = batch(stories, path, out, *args, "--resume")
    assert done.returncode == 0 and kills >= 2, done.stderr
    assert pyarrow.concat_tables(parts(out, ".parquet")).drop_columns("x").equals(
        pyarrow.concat_tables(parts(tmp_path / "whole", ".parquet")).drop_columns("x")
    )
    assert errors(out) == errors(tmp_path / "whole") and len(errors(out)) == 60
    done = batch(stories, path, out, *args)
    assert done.returncode == 1 and "is not empty: --resume continues" in done.stderr
    other = write(tmp_path / "other.parquet", table(610))
    done = batch(stories, other, out, *args, "--resume")
    assert done.returncode == 1 and "the input is another one" in done.stderr


def test_what_cannot_be_read(stories, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "bad.arrow").write_bytes(b"nothing")
    damaged = write(tmp_path / "damaged.parquet", table(600))
    content = bytearray(damaged.read_bytes())
    content[4:2000] = bytes(1996)
    damaged.write_bytes(content)
    for name, message in (("bad.parquet", "cannot read"), ("bad.arrow", "cannot read"), ("none.parquet", "there is no file"),
                          ("damaged.parquet", "cannot read")):  # fmt: skip
        done = batch(stories, tmp_path / name, tmp_path / "out", *GENERATE, "--resume")
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    twice = write(tmp_path / "twice.arrow", pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"]))
    done = batch(stories, twice, tmp_path / "twice", *GENERATE)
    assert done.returncode == 1 and "duplicate field names" in done.stderr
    path = write(tmp_path / "rows.parquet", table(20))
    done = batch(stories, path, tmp_path / "column", *GENERATE, "--text-column", "bytes")
    assert done.returncode == 1 and "there is no column 'bytes'" in done.stderr


def test_without_pyarrow(stories, tmp_path):
    path = write(tmp_path / "rows.parquet", table(20))
    code = "import sys; sys.modules['pyarrow'] = None; from graft.tables import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "to_rows", str(path), str(tmp_path / "rows.jsonl")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "pip install 'graft[batch]'" in done.stderr and done.stderr.count("\n") == 1
