"""The golden package (make_golden.py) keeps loading and gives the stored numbers: from Python, from ExecuTorch's runtime
and from the command line. src/cli/golden_test.cpp does the same from C++."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import graft

HERE = Path(__file__).resolve().parent
STORED = np.load(HERE / "golden.npz")
CALLS = list(dict.fromkeys(tuple(key.split(".")[:2]) for key in STORED))


def stored(method: str, call: str, side: str) -> dict[int, np.ndarray]:
    """Arrays by position; results that are None are not stored."""
    prefix = f"{method}.{call}.{side}."
    return {int(key.removeprefix(prefix)): STORED[key] for key in STORED if key.startswith(prefix)}


def arguments(method: str, call: str) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in stored(method, call, "in").values()]


def compare(found: object, expected: np.ndarray) -> None:
    found = np.asarray(found)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, atol=2e-3 if expected.dtype == np.float16 else 2e-6, rtol=1e-5)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def model() -> graft.Model:
    return graft.load(HERE / "golden.pte", options=graft.LoadOptions(verify_hashes=True))


def test_what_is_in_it(model):
    """It covers what the promise is about; regenerating must not make it smaller."""
    assert {method for method, _ in CALLS} == set(model.methods) == {"encode", "numbers", "shapes"}
    described = model.describe()
    ops = {op for method in described["methods"] for op in method["ops"]}
    assert len(ops) >= 50
    values = [value for method in described["methods"] for value in [*method["inputs"], *method["outputs"]]]
    assert {"f32", "f16", "i32", "i64", "bool"} <= {value["dtype"] for value in values if value["kind"] == "tensor"}
    assert {"f32", "f16", "i64"} <= {dtype for method in described["methods"] for dtype in method["weights"]}
    assert any(isinstance(dim, dict) for value in values for dim in value.get("dims", []))
    assert all(method["folded_constants"] for method in described["methods"] if method["name"] == "encode")
    assert sum((HERE / name).stat().st_size for name in ("golden.pte", "golden.npz")) < 100_000


@pytest.mark.parametrize(("method", "call"), CALLS)
def test_python(model, method, call):
    found = pytree.tree_leaves(model.methods[method](*arguments(method, call)))
    for i, expected in stored(method, call, "out").items():
        compare(found[i], expected)


def test_executorch():
    runtime = pytest.importorskip("executorch.runtime").Runtime.get()
    if not runtime.backend_registry.is_available("GraftBackend"):
        pytest.skip("this build has no ExecuTorch delegate")
    program = runtime.load_program(str(HERE / "golden.pte"))
    methods = {name: program.load_method(name) for name in ("encode", "numbers", "shapes")}
    for method, call in CALLS:
        found = methods[method].execute(arguments(method, call))
        for i, expected in stored(method, call, "out").items():
            compare(found[i], expected)


@pytest.mark.parametrize(("method", "call"), CALLS)
def test_command_line(method, call, tmp_path):
    beside = Path(sys.executable).parent / "graft"
    binary = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    assert binary, "the command line is not installed beside this Python (make build), and GRAFT_CLI is not set"
    np.savez(tmp_path / "in.npz", **{str(i): array for i, array in stored(method, call, "in").items()})
    command = [binary, "run", HERE / "golden.pte", "--method", method]
    command += ["--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, expected = list(np.load(tmp_path / "out.npz").values()), list(stored(method, call, "out").values())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        compare(a, b)


def versions_of(package: bytes) -> int:
    """Where the format's major version lies in a package, as a u16; the minor version follows in the next field."""
    blob = package.index(b"GRFT") - 4
    table = blob + int.from_bytes(package[blob : blob + 4], "little")
    vtable = table - int.from_bytes(package[table : table + 4], "little", signed=True)
    fields = [int.from_bytes(package[vtable + 4 + 2 * i : vtable + 6 + 2 * i], "little") for i in range(2)]
    assert fields[0], "the major version is stored"
    return table + fields[0]


def test_newer_formats(tmp_path):
    """A newer major version is refused with both versions; the committed package states version 1."""
    package = bytearray((HERE / "golden.pte").read_bytes())
    assert package.count(b"GRFT") == len({method for method, _ in CALLS})
    parts, newer = package.split(b"GRFT"), bytearray(package)
    start = len(parts[0])
    major = start - 4 + versions_of(bytes(package[start - 4 :]))
    assert newer[major : major + 2] == b"\x01\x00"
    newer[major : major + 2] = b"\x02\x00"
    (tmp_path / "newer.pte").write_bytes(newer)
    with pytest.raises(graft.InvalidProgram, match=rf"format version 2\.0: graft {re.escape(graft.version())} reads version 1\.x"):
        graft.load(tmp_path / "newer.pte")


def test_every_format_of_the_table_has_its_package():
    """docs/compatibility.md lists a package for each format version that was released, and the newest is what we write."""
    from graft.exporter.program import FORMAT_MAJOR, FORMAT_MINOR

    text = (HERE.parents[1] / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| (\d+)\.(\d+) \| .* \| `(test/golden/\S+)` \|$", text, re.M)
    assert [(int(major), int(minor)) for major, minor, _ in rows][-1] == (FORMAT_MAJOR, FORMAT_MINOR)
    assert {Path(kept).name for *_, kept in rows} == {path.name for path in HERE.glob("*.pte")}


def test_the_script_still_makes_such_a_package(tmp_path, monkeypatch):
    """So that it can be made again on the day the format changes; the result is used for nothing else."""
    monkeypatch.syspath_prepend(str(HERE))
    script = importlib.import_module("make_golden")
    monkeypatch.setattr(script, "HERE", tmp_path)
    script.main()
    made = np.load(tmp_path / "golden.npz")
    assert set(made) == set(STORED)
    for key in made:
        compare(made[key], STORED[key])
    again = graft.load(tmp_path / "golden.pte")
    method, call = CALLS[0]
    compare(again.methods[method](*arguments(method, call))["pooled"], STORED[f"{method}.{call}.out.0"])
