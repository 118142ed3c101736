"""Runs of `graft batch` for tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from serving import binary


def command(model: object, rows: Path, out: Path, *args: object) -> list[str]:
    return [binary(), "batch", str(model), str(rows), "-o", str(out), *map(str, args)]


def batch(model: object, rows: Path, out: Path, *args: object) -> subprocess.CompletedProcess:
    return subprocess.run(command(model, rows, out, *args), capture_output=True, text=True, timeout=600)


def good(model: object, rows: Path, out: Path, *args: object) -> list[dict]:
    """The rows of a run that ends well."""
    done = batch(model, rows, out, *args)
    assert done.returncode == 0, done.stderr
    return read(out)


def read(out: Path) -> list[dict]:
    return [json.loads(line) for part in sorted(out.glob("part-*.jsonl")) for line in part.read_text().splitlines()]


def errors(out: Path) -> list[dict]:
    return [json.loads(line) for part in sorted(out.glob("errors-*.jsonl")) for line in part.read_text().splitlines()]


def files(out: Path) -> dict[str, bytes]:
    """What the rows are in: all but the manifest, which has the time of the run."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "manifest.json"}


def write_rows(path: Path, rows: list) -> Path:
    """JSON Lines; a text is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
