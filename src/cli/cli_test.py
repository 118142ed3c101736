"""Drives the command line as a person does: files in, files out, exit codes, messages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

import graft


def binary() -> str:
    given = os.environ.get("GRAFT_CLI")
    beside = Path(sys.executable).parent / "graft"
    found = given or (str(beside) if beside.exists() else shutil.which("graft"))
    assert found, "the command line is not installed beside this Python (make build), and GRAFT_CLI is not set"
    return found


def call(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary(), *map(str, args)], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}
    )


def good(*args: object, env: dict[str, str] | None = None) -> str:
    done = call(*args, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(*args: object, code: int = 1) -> str:
    """The message: one line, whatever went wrong."""
    done = call(*args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("graft: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, n: int) -> dict[str, object]:
        y = torch.nn.functional.gelu(self.linear(x))
        return {"y": y, "size": x.shape[0] * 2 + n, "half": y.to(torch.bfloat16), "positive": y > 0}


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0).contiguous()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    model = Model().eval()
    shapes = {"x": {0: Dim("batch", min=1, max=16)}, "n": Dim.DYNAMIC}
    graft.export(model, (torch.randn(3, 8), 5), path=str(path / "model.pte"), dynamic_shapes=shapes)
    x = torch.randn(7, 8)
    np.save(path / "x.npy", x.numpy())
    with torch.no_grad():
        torch.save(model(x, 3), path / "expected.pt")
    return path


def check_outputs(found: dict[str, np.ndarray], folder: Path) -> None:
    expected = torch.load(folder / "expected.pt")
    assert set(found) == {"y", "size", "half", "positive"}
    np.testing.assert_allclose(found["y"], expected["y"].numpy(), atol=1e-6)
    assert found["size"].dtype == np.int64 and found["size"].shape == () and found["size"] == expected["size"]
    np.testing.assert_array_equal(found["positive"], expected["positive"].numpy())
    assert found["half"].dtype == np.uint16
    half = torch.from_numpy(found["half"].view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(half, expected["half"])


def test_npy_in_and_out(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    done = call("run", folder / "model.pte", "--input", f"x={folder / 'x.npy'}", "--input", "n=3", "--output-dir", out)
    assert done.returncode == 0, done.stderr
    assert "'half' is bf16" in done.stderr
    check_outputs({p.stem: np.load(p) for p in out.iterdir()}, folder)


@pytest.mark.parametrize("names", [("x", "n"), ("0", "1"), ("arr_0", "arr_1")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_in_and_out(folder: Path, tmp_path: Path, names, save) -> None:
    x = np.asfortranarray(np.load(folder / "x.npy")).astype(">f4")
    save(tmp_path / "in.npz", **{names[0]: x, names[1]: np.int64(3)})
    good("run", folder / "model.pte", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    check_outputs(dict(np.load(tmp_path / "out.npz")), folder)


DTYPES = "float32 float16 float64 int8 uint8 int16 int32 int64 bool bfloat16".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_passes_through_unchanged(tmp_path: Path, dtype: str) -> None:
    element = getattr(torch, dtype)
    bits = torch.randint(0, 2 if dtype == "bool" else 100, (3, 5)).to(element)
    graft.export(Same(), (bits,), path=str(tmp_path / "m.pte"))
    array = bits.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else bits.numpy()
    np.save(tmp_path / "x.npy", array)
    good("run", tmp_path / "m.pte", "--input", f"0={tmp_path / 'x.npy'}", "--outputs", tmp_path / "out.npz")
    (found,) = dict(np.load(tmp_path / "out.npz")).values()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array.T)


def test_repeat_and_profile(folder: Path) -> None:
    args = ["run", folder / "model.pte", "--input", f"x={folder / 'x.npy'}", "--input", "n=3", "--threads", 1]
    text = good(*args, "--repeat", 5, "--profile")
    rows = {line.rsplit(None, 1)[0].strip(): line.rsplit(None, 1)[1] for line in text.splitlines() if " " in line.strip()}
    assert rows["runs"] == "6" and rows["plan_misses"] == "1" and rows["plan_hits"] == "5" and rows["io_copies"] == "0"
    assert float(rows["5 more calls, min"]) <= float(rows["median"]) <= float(rows["max"])
    assert "1 thread, counters" in text and "peak memory" in text
    profile = text[text.index("profile of one more call") :]
    assert "kernel" in profile and "node" in profile and "linear" in profile


def test_inspect(folder: Path) -> None:
    text = good("inspect", folder / "model.pte")
    for part in ("f32[", "=1..16, 8]", "integer", "aten.linear.default", "aten.gelu.default", "no plan", "144"):
        assert part in text, part
    text = good("inspect", folder / "model.pte", "--shape", "x=7,8", "--shape", "n=3")
    assert "plan for the sizes [7,8,3]" in text and "arena" in text and "counters" in text


def test_inspect_json(folder: Path) -> None:
    described = json.loads(good("inspect", folder / "model.pte", "--json", "--shape", "0=7,8", "--shape", "1=3"))
    (method,) = described["methods"]
    assert [i["name"] for i in method["inputs"]] == ["x", "n"]
    assert method["ops"]["aten.linear.default"] == 1
    assert method["weights"] == {"f32": {"count": 2, "bytes": 144}}
    (plan,) = method["plans"]
    assert plan["launches"] == sum(plan["kernels"].values()) > 0
    assert sum(plan["ops"]["aten.linear.default"].values()) >= 1
    assert described["counters"]["runs"] == 0
    assert "plans" not in json.loads(good("inspect", folder / "model.pte", "--json"))["methods"][0]


def test_inspect_plan(folder: Path) -> None:
    arguments = ("inspect", folder / "model.pte", "--plan", "--shape", "0=7,8", "--shape", "1=3")
    text = good(*arguments)
    assert "memory by allocation id" in text and "launches (< reads, > writes" in text and "metadata" in text
    (plan,) = json.loads(good(*arguments, "--json"))["methods"][0]["plans"]
    assert 0 < plan["metadata_bytes"]
    assert len(plan["order"]) == plan["launches"]
    entries = [0] * len(plan["allocations"])
    for launch in plan["order"]:
        for tensor in launch["inputs"] + launch["outputs"]:
            allocation = plan["allocations"][tensor["allocation"]]
            assert allocation["memory"] == tensor["memory"]
            assert 0 <= tensor["offset"] < max(allocation["bytes"], 1)
            entries[tensor["allocation"]] += 1
        if launch["scratch_bytes"]:
            entries[[a["memory"] for a in plan["allocations"]].index("arena")] += 1
    assert entries == [a["hits"] for a in plan["allocations"]]


def test_inspect_passes(folder: Path) -> None:
    arguments = ("inspect", folder / "model.pte", "--passes", "--shape", "0=7,8", "--shape", "1=3")
    text = good(*arguments)
    assert "passes over the graph of forward" in text and "passes over the plan for the sizes [7,8,3]" in text
    (method,) = json.loads(good(*arguments, "--json"))["methods"]
    over_graph, over_launches = method["passes"], method["plans"][0]["passes"]
    stages = ["read", "cut", "stored", "placed", "fold"]
    assert sorted({p["stage"] for p in over_graph}, key=stages.index) == stages
    assert {p["stage"] for p in over_launches} == {"launches"}
    fused = next(p for p in over_launches if p["name"] == "fuse_epilogues")
    assert fused["ran"] and fused["rewrites"] == 1  # gelu
    dropped = next(p for p in over_launches if p["name"] == "drop_dead_launches")
    assert dropped["before"] - dropped["after"] == dropped["rewrites"] == 1
    assert over_launches[-1]["after"] == method["plans"][0]["launches"]
    ordered = next(p for p in over_launches if p["name"] == "order_for_stages")
    assert not ordered["ran"] and ordered["condition"] in text


def test_inspect_plans_fixed_sizes_by_itself(tmp_path: Path) -> None:
    graft.export(Same(), (torch.randn(3, 5),), path=str(tmp_path / "m.pte"))
    assert "plan for the sizes [3,5]: 1 launch," in good("inspect", tmp_path / "m.pte")


def test_devices_version_help() -> None:
    assert "cpu" in good("devices")
    assert good("--version").startswith("graft ")
    for command in ("run", "compare", "inspect", "devices"):
        assert "Example" in good(command, "--help") and command in good("--help")


def test_doctor() -> None:
    rows = dict(line.strip().split("  ", 1) for line in good("doctor").splitlines() if "  " in line.strip())
    rows = {name: text.strip() for name, text in rows.items()}
    assert rows["torch"] == importlib.metadata.version("torch") and rows["graft"]
    assert rows["instruction sets"].split("; in use: ")[0].split()[0] == "baseline"
    assert int(re.search(r"(\d+) usable", rows["CPUs"])[1]) <= len(os.sched_getaffinity(0))
    assert float(rows["reading memory"].split(" GB/s")[0]) > 0
    assert "device cpu" in rows and sys.version.split()[0] in rows["Python"]


def test_doctor_says_what_is_chosen_and_what_is_missing(tmp_path: Path) -> None:
    assert "in use: baseline" in good("doctor", env={"GRAFT_ISA": "baseline"})
    assert "3 by default (GRAFT_THREADS)" in good("doctor", env={"GRAFT_THREADS": "3"})
    alone = shutil.copy(binary(), tmp_path / "graft")
    libraries = {"LD_LIBRARY_PATH": str(Path(graft.__file__).parent / "lib")}
    done = subprocess.run([alone, "doctor"], env=libraries, capture_output=True, text=True, check=True)
    assert "none beside this program" in done.stdout


def test_wrong_use_is_exit_code_2(folder: Path) -> None:
    assert "--help" in bad(code=2)
    assert "FILE" in bad("run", code=2)
    assert "--bogus" in bad("run", folder / "model.pte", "--bogus", code=2)
    bad("run", folder / "model.pte", "--repeat", 0, code=2)
    bad("run", folder / "model.pte", "--timeout", "-1", code=2)
    bad("run", folder / "model.pte", "--outputs", "a.npz", "--output-dir", "b", code=2)


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    model, x = folder / "model.pte", f"x={folder / 'x.npy'}"
    assert "nope.pte" in bad("run", tmp_path / "nope.pte")
    assert "missing input 1 ('n'" in bad("run", model, "--input", x)
    assert "no input 'z'" in bad("run", model, "--input", f"z={folder / 'x.npy'}")
    assert "given twice" in bad("run", model, "--input", x, "--input", f"0={folder / 'x.npy'}")
    assert "must be integer" in bad("run", model, "--input", x, "--input", "n=many")
    assert "nope.npy" in bad("run", model, "--input", "x=nope.npy", "--input", "n=3")
    assert "folder" in bad("run", model, "--input", f"x={tmp_path}", "--input", "n=3")
    assert "no method 'backward'" in bad("run", model, "--method", "backward")
    assert "no device 'tpu7'" in bad("run", model, "--device", "tpu7")
    np.save(tmp_path / "x.npy", np.zeros((7, 8)))
    assert "must be f32" in bad("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--input", "n=3")
    np.save(tmp_path / "x.npy", np.zeros((17, 8), np.float32))
    assert "17" in bad("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--input", "n=3")
    np.save(tmp_path / "x.npy", np.zeros((7, 8, 1), np.float32))
    bad("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--input", "n=3")
    args = ["run", model, "--input", x, "--input", "n=3"]
    assert "deadline" in bad(*args, "--timeout", "1e-9")
    assert "sizes with commas" in bad("inspect", model, "--shape", "x=7x8")
    assert "17" in bad("inspect", model, "--shape", "x=17,8", "--shape", "n=3")


class Logs(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full((4, 4), factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ self.factor).log(), -1).cumsum(-1)


def test_the_node_that_makes_nan_is_named(tmp_path: Path) -> None:
    graft.export(Logs(1.0), (torch.ones(2, 4),), path=tmp_path / "m.pte")
    np.save(tmp_path / "x.npy", np.full((2, 4), -1, np.float32))
    args = ["run", tmp_path / "m.pte", "--input", f"x={tmp_path / 'x.npy'}"]
    good(*args)
    for check in ("--check-finite", "--check-finite=nan"):
        message = bad(*args, check)
        assert "log" in message and "element [0, 0]" in message and "-4 .. -4" in message, message
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    assert "is -inf" in bad(*args, "--check-finite")
    bad(*args, "--check-finite=zero", code=2)


def test_tensors_of_nodes_are_written(tmp_path: Path) -> None:
    graft.export(Logs(1.0), (torch.ones(2, 4),), path=tmp_path / "m.pte")
    x = torch.rand(2, 4) + 1
    np.save(tmp_path / "x.npy", x.numpy())
    args = ["run", tmp_path / "m.pte", "--input", f"x={tmp_path / 'x.npy'}"]
    good(*args, "--dump", "all", tmp_path / "all")
    written = {path.stem: np.load(path) for path in (tmp_path / "all").glob("*.npy")}
    np.testing.assert_allclose(written["aten_cumsum_default"], Logs(1.0)(x).detach().numpy(), rtol=1e-5)
    good(*args, "--dump", "aten_cumsum_default", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["aten_cumsum_default.npy"]
    assert "no launch has the name of node 'relu'" in bad(*args, "--dump", "relu", tmp_path / "none")


def test_compare_finds_the_first_node_that_differs(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("same", 1.0), ("b", 1.5)):
        graft.export(Logs(factor), (torch.ones(2, 4),), path=tmp_path / f"{name}.pte")
    x = torch.rand(2, 4) + 1
    np.save(tmp_path / "x.npy", x.numpy())
    args = ["--input", f"x={tmp_path / 'x.npy'}"]
    assert "none differs" in good("compare", tmp_path / "a.pte", tmp_path / "same.pte", *args)
    found = call("compare", tmp_path / "a.pte", tmp_path / "b.pte", *args)
    # softmax(log(1.5 y)) = softmax(log(y)): what follows the first node is equal.
    assert found.returncode == 1 and "first difference above 0.0001: node aten_matmul_default" in found.stdout, found.stdout
    assert "none differs" in good("compare", tmp_path / "a.pte", tmp_path / "b.pte", *args, "--tolerance", 0.6)


class Fused(torch.nn.Module):
    def __init__(self, *, also: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.also, self.up, self.down = also, torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        up = self.up(x)
        y = self.down(torch.nn.functional.gelu(up))
        return (y, up) if self.also else (y,)


def test_compare_matches_nodes_whatever_is_fused(tmp_path: Path) -> None:
    # The linear layer whose result is an output is a launch of its own; in the other package gelu is its epilogue.
    for also in (True, False):
        graft.export(Fused(also=also).eval(), (torch.ones(2, 4),), path=tmp_path / f"{also}.pte")
    np.save(tmp_path / "x.npy", torch.rand(2, 4).numpy())
    args = ["--input", f"x={tmp_path / 'x.npy'}"]
    found = good("compare", tmp_path / "True.pte", tmp_path / "False.pte", *args)
    assert "none differs" in found and "2 results of nodes compared, 1 seen in the first program only, 0 in the second only" in found, found
    found = good("compare", tmp_path / "False.pte", tmp_path / "True.pte", *args)
    assert "none differs" in found and "0 seen in the first program only, 1 in the second only" in found, found


def npy(header: bytes, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + header + data


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (7, 8), }"
HOSTILE = {
    "empty": b"",
    "not npy": b"hello, I am a text",
    "header longer than the file": npy(GOOD, length=65535),
    "4 GB header": npy(GOOD, version=2, length=0xFFFFFFFF),
    "version 9": npy(GOOD, bytes(224), version=9),
    "no data": npy(GOOD),
    "short data": npy(GOOD, bytes(223)),
    "long data": npy(GOOD, bytes(225)),
    "no keys": npy(b"{}"),
    "not a dict": npy(b"[1, 2]"),
    "unclosed": npy(b"{'descr': '<f4"),
    "a petabyte": npy(GOOD.replace(b"7, 8", b"1000000, 1000000, 1000")),
    "overflow": npy(GOOD.replace(b"7, 8", b"4294967296, 4294967296, 4294967296")),
    "hidden overflow": npy(GOOD.replace(b"7, 8", b"0, 4294967296, 4294967296, 4294967296")),
    "objects": npy(GOOD.replace(b"<f4", b"|O"), b"\x80\x03"),
    "complex": npy(GOOD.replace(b"<f4", b"<c8")),
    "record": npy(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (7, 8), }"),
    "nine dimensions": npy(GOOD.replace(b"7, 8", b"1, 1, 1, 1, 1, 1, 1, 1, 1"), bytes(4)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_npy(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "x.npy").write_bytes(HOSTILE[name])
    assert "x.npy" in bad("run", folder / "model.pte", "--input", f"x={tmp_path / 'x.npy'}", "--input", "n=3")
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("x.npy", HOSTILE[name])
    assert "in.npz[x.npy]" in bad("run", folder / "model.pte", "--inputs", tmp_path / "in.npz", "--input", "n=3")


def test_hostile_npz(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    args = ("run", folder / "model.pte", "--input", "n=3", "--inputs", file)
    file.write_bytes(b"PK\x03\x04 but no archive")
    assert "in.npz" in bad(*args)
    np.savez_compressed(file, x=np.random.default_rng(0).standard_normal((7, 8)).astype(np.float32))
    whole = file.read_bytes()
    for cut in (10, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert "in.npz" in bad(*args)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0x10  # inside the data: the checksum detects it
    file.write_bytes(damaged)
    assert "in.npz" in bad(*args)
    # The archive states more bytes than its data can produce.
    entry = whole.index(b"PK\x01\x02")
    claim = bytearray(whole)
    claim[entry + 24 : entry + 28] = struct.pack("<I", 0xF0000000)
    file.write_bytes(claim)
    assert "in.npz" in bad(*args)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "hello")
    assert ".npy files only" in bad(*args)


def test_outputs_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    args = ["run", folder / "model.pte", "--input", f"x={folder / 'x.npy'}", "--input", "n=3"]
    for where in (["--outputs", tmp_path / "no" / "folder" / "out.npz"], ["--output-dir", folder / "x.npy" / "out"]):
        done = call(*args, *where)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("graft: cannot "), done.stderr


def test_outputs_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    args = ["run", folder / "model.pte", "--input", f"x={folder / 'x.npy'}", "--input", "n=3"]
    for where in (["--outputs", tmp_path / "no" / "folder" / "out.npz"], ["--output-dir", folder / "x.npy" / "out"]):
        done = call(*args, *where)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("graft: cannot "), done.stderr


def test_full_disk_is_an_error(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary(), "inspect", folder / "model.pte"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "graft: cannot write to stdout\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]]}
    processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
    }
    document = {"model": model, "decoder": {"type": "Fuse"}, "post_processor": processor}
    path.write_text(json.dumps(document | {"added_tokens": [{"id": 4, "content": "<s>", "special": True}]}))
    return path


def test_tokenize(tokenizer):
    assert good("tokenize", tokenizer, "abc") == "4 2 3\n"
    assert good("tokenize", tokenizer, "abc", "--no-special") == "2 3\n"
    assert good("tokenize", tokenizer.parent, "--decode", "4 2, 3") == "<s>abc\n"
    assert good("tokenize", tokenizer, "--decode", "--skip-special", "4 2 3") == "abc\n"
    assert [line.split() for line in good("tokenize", tokenizer, "ca", "--pieces").splitlines()] == [
        ["id", "piece", "text"],
        ["4", "<s>", '"<s>"'],
        ["3", "c", '"c"'],
        ["0", "a", '"a"'],
    ]
    given = subprocess.run([binary(), "tokenize", str(tokenizer)], input="cab", capture_output=True, text=True, check=True)
    assert given.stdout == "4 3 2\n"


def test_tokenize_errors(tokenizer, tmp_path):
    assert "'x'" in bad("tokenize", tokenizer, "--decode", "1 x")
    assert "no token 99" in bad("tokenize", tokenizer, "--decode", "99")
    assert "none.json" in bad("tokenize", tmp_path / "none.json", "a")
    assert "FILE" in bad("tokenize", code=2)


def test_pack(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    path = graft.export(Net(), (torch.randn(16, 64),), path=tmp_path / "net.pte")
    printed = good("pack", path)
    assert re.fullmatch(rf"{re.escape(str(path))}\.packed: [\d.]+ KiB, \d+ entr(y|ies)\n", printed), printed
    assert graft.load(path).stats()["packed_file_bytes"] > 64 * 64 * 4 - 1
    other = tmp_path / "other.packed"
    assert good("pack", path, "--output", other).startswith(f"{other}: ") and other.exists()
    assert "no file '" in bad("pack", tmp_path / "none.pte")
    assert "cannot write '" in bad("pack", path, "--output", tmp_path / "none" / "net.packed")
    assert "--output" in good("pack", "--help")

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    bare = graft.export(Sum(), (torch.randn(4),), path=tmp_path / "sum.pte")
    assert "no file was written" in good("pack", bare)
    assert not Path(f"{bare}.packed").exists()
