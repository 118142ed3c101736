"""Plans that packages hold: made at export, used without planning, made again where they do not fit, and hostile ones."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from load_test import Encoder
from torch.export import Dim

import graft
import llm_models
from graft.errors import ExportError

MAGIC, DIGEST = b"GRFTPLAN", 32


def call(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randint(0, 100, (1, tokens)), torch.ones(1, tokens, dtype=torch.long)


def export(path: Path, **settings) -> tuple[Path, Encoder]:
    torch.manual_seed(3)
    model = Encoder().eval()
    tokens = {1: Dim("tokens", min=1, max=32)}
    options = graft.ExportOptions(plan_threads=1)
    settings = {"plans": [call(7), (call(20), {})], "options": options, **settings}
    return graft.export(model, call(5), path=path, dynamic_shapes=(tokens, tokens), **settings), model


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Encoder]:
    return export(tmp_path_factory.mktemp("plans") / "m.pte")


def counts(model: graft.Model) -> tuple[int, int, int]:
    stats = model.stats()
    return stats["plans_made"], stats["plans_loaded"], stats["plans_stale"]


def test_no_planning_for_stored_sizes(package) -> None:
    path, eager = package
    model = graft.load(path, threads=1)
    plain = graft.load(path, threads=1, options=graft.LoadOptions(stored_plans=False))
    for tokens in (7, 20, 7):
        inputs = call(tokens, seed=tokens)
        with torch.no_grad():
            torch.testing.assert_close(model(*inputs), eager(*inputs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(*inputs), plain(*inputs), rtol=0, atol=0)
    assert counts(model) == (0, 2, 0)
    assert counts(plain) == (2, 0, 0)
    model(*call(8))
    assert counts(model) == (1, 2, 0)
    arenas = [[p["arena_bytes"] for p in m.describe()["methods"][0]["plans"] if 7 in p["key"]] for m in (model, plain)]
    assert arenas[0] == arenas[1]


@pytest.mark.parametrize("weights", ["package", "ptd"])
def test_weights_in_both_places(weights: str, tmp_path: Path) -> None:
    path, _ = export(tmp_path / "m.pte", weights=weights)
    assert {p.name for p in tmp_path.iterdir()} <= {"m.pte", "m.ptd"}
    model = graft.load(path, threads=1, weights=list(tmp_path.glob("*.ptd")))
    model(*call(7))
    assert counts(model) == (0, 1, 0)


def test_other_threads_and_instructions_are_planned_again(package) -> None:
    path, _ = package
    model = graft.load(path, threads=2)
    expected = model(*call(7))
    assert counts(model) == (1, 0, 1)
    code = f"""
import json, sys, torch, graft
sys.path[:] = {sys.path!r}
from stored_plans_test import call, counts
model = graft.load({str(path)!r}, threads=1)
found = model(*call(7))
print(json.dumps([counts(model), found.flatten()[:5].tolist()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "GRAFT_ISA": "baseline"})
    assert done.returncode == 0, done.stderr
    (made, loaded, stale), values = json.loads(done.stdout)
    assert (made, loaded) == (1, 0) and stale == 2  # both of the package's
    torch.testing.assert_close(torch.tensor(values), expected.flatten()[:5], rtol=1e-4, atol=1e-5)


class Stored:
    """The first stored plan of a package, to be changed in place."""

    def __init__(self, source: Path, target: Path) -> None:
        self.bytes, self.path = bytearray(source.read_bytes()), target
        self.begin = self.bytes.index(MAGIC)
        self.numbers: dict[str, int] = {}  # offset of each field
        at = self.begin + len(MAGIC)

        def number() -> int:
            nonlocal at
            at += 8
            return struct.unpack_from("<Q", self.bytes, at - 8)[0]

        for field in ("format", "version", "device", "instructions", "method", "threads", "sizes", "bytes", "first", "last", "offsets", "arena"):
            self.numbers[field] = at
            count = number()
            if field in ("version", "device", "instructions", "method"):
                at += count
            elif field not in ("format", "threads", "arena"):
                at += 8 * count
        self.end = at

    def write(self, sign: bool = True) -> Path:
        if sign:
            self.bytes[self.end : self.end + DIGEST] = hashlib.sha256(self.bytes[self.begin : self.end]).digest()
        self.path.write_bytes(self.bytes)
        return self.path

    def set(self, field: str, value: int, item: int | None = None) -> None:
        struct.pack_into("<q", self.bytes, self.numbers[field] + (0 if item is None else 8 * (item + 1)), value)

    def get(self, field: str, item: int | None = None) -> int:
        return struct.unpack_from("<q", self.bytes, self.numbers[field] + (0 if item is None else 8 * (item + 1)))[0]


@pytest.mark.parametrize("field", ["version", "device", "instructions"])
def test_a_plan_of_another_origin_is_stale(package, tmp_path: Path, field: str) -> None:
    stored = Stored(package[0], tmp_path / "m.pte")
    stored.bytes[stored.numbers[field] + 8] ^= 1
    model = graft.load(stored.write(), threads=1)
    assert counts(model) == (0, 0, 1)
    torch.testing.assert_close(model(*call(7)), graft.load(package[0], threads=1)(*call(7)), rtol=0, atol=0)
    model(*call(20))
    assert counts(model) in {(1, 1, 1)}


def test_a_damaged_plan_is_an_error_of_the_load(package, tmp_path: Path) -> None:
    for field in ("format", "method", "offsets", "arena"):
        stored = Stored(package[0], tmp_path / "m.pte")
        stored.bytes[stored.numbers[field]] ^= 0x40
        with pytest.raises(graft.InvalidProgram, match="stored plan 'graft.plan.0' is damaged: its checksum is wrong"):
            graft.load(stored.write(sign=False))


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("offsets", lambda s: s.set("offsets", s.get("arena"), 0), "does not lie in the arena"),
        ("offsets", lambda s: s.set("offsets", -64, 1), "does not lie in the arena"),
        ("offsets", lambda s: s.set("offsets", 2**62, 1), "does not lie in the arena"),
        ("offsets", lambda s: s.set("offsets", s.get("offsets", 0) + 4, 0), "stored plan of method 'forward'"),
        ("offsets", lambda s: [s.set("offsets", 0, i) for i in range(s.get("offsets"))], "stored plan of method 'forward'"),
        ("arena", lambda s: s.set("arena", 2**62), "has an arena of"),
        ("arena", lambda s: s.set("arena", 64), "does not lie in the arena"),
    ],
)  # fmt: skip
def test_a_tampered_layout_is_an_error(package, tmp_path: Path, field: str, change, message: str) -> None:
    """With the checksum made right: every offset is checked before it is used."""
    stored = Stored(package[0], tmp_path / "m.pte")
    change(stored)
    model = graft.load(stored.write(), threads=1)
    with pytest.raises(graft.InvalidProgram, match=message):
        model(*call(7))
    assert counts(model)[1] == 0
    # The rest of the package is fine.
    whole = graft.load(tmp_path / "m.pte", threads=1, options=graft.LoadOptions(stored_plans=False))
    torch.testing.assert_close(whole(*call(7)), graft.load(package[0], threads=1)(*call(7)), rtol=0, atol=0)


@pytest.mark.parametrize("field", ["bytes", "first", "last"])
def test_tampered_lifetimes_are_not_believed(package, tmp_path: Path, field: str) -> None:
    stored = Stored(package[0], tmp_path / "m.pte")
    stored.set(field, stored.get(field, 1) + (1 if field != "first" else -1 if stored.get(field, 1) else 1), 1)
    model = graft.load(stored.write(), threads=1)
    torch.testing.assert_close(model(*call(7)), graft.load(package[0], threads=1)(*call(7)), rtol=0, atol=0)
    assert counts(model) == (1, 0, 1)


def test_mistakes(tmp_path: Path) -> None:
    for settings, message in (
        ({"plans": {"backward": [call(5)]}}, "expected one of the methods \\['forward'\\], found 'backward'"),
        ({"plans": [torch.ones(1)]}, "expected a tuple of arguments for each plan, found Tensor"),
        ({"weights": "external"}, "expected weights in the package or a .ptd with plans"),
    ):
        with pytest.raises(ExportError, match=message):
            export(tmp_path / "m.pte", **settings)
    with pytest.raises(graft.InvalidArgument, match="must be in 1..32, got 99"):
        export(tmp_path / "m.pte", plans=[call(99)])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def llm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llm") / "model"
    llm_models.BY_NAME["qwen3"].make().save_pretrained(path)
    return path


def test_language_models(llm_folder: Path, tmp_path: Path) -> None:
    """On the command line, for weights beside the package too; a cache of any size serves. What is said of wrong sizes: llm_cli_test.py."""
    binary = os.environ.get("GRAFT_CLI") or Path(sys.executable).parent / "graft"
    if not Path(binary).exists():
        pytest.skip(f"no command line at {binary}: make build")

    command = [str(binary), "export", str(llm_folder), "-o", str(tmp_path / "m.pte"), "--plan-threads", "1"]
    done = subprocess.run([*command, "--plan", "seq=1,128", "--weights", "external"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m.pte"]
    ids = torch.randint(0, 199, (1, 129))
    places = torch.arange(129)[None]
    for length in (256, 200):
        model = graft.load(tmp_path / "m.pte", threads=1, kv_length=length)
        for first, last in ((0, 128), (128, 129)):
            part = slice(first, last)
            model.step(ids[:, part], places[:, part], places[:, part], torch.zeros(1, dtype=torch.long))
        assert counts(model) == (0, 2, 0)
