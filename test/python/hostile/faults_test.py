"""Faults of memory and files where Python and the command line call the library; C++ has its own in test/faults."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import graft
from graft.errors import typed
from graft.exporter.export import _flush
from graft.hf import store
from graft.llm import container

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "test" / "golden" / "golden.pte"
FAULTS = Path(os.environ.get("GRAFT_BUILD", ROOT / "build" / "release")) / "libgraft_faults.so"
KILLS = 200

needs_faults = pytest.mark.skipif(not FAULTS.exists(), reason="libgraft_faults.so is not built (make build)")


@needs_faults
def test_only_errors_of_graft_leave_the_binding_and_the_delegate(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "test" / "faults" / "binding.py", tmp_path],
        env={**os.environ, "LD_PRELOAD": str(FAULTS), "GRAFT_FAULTS_OF_GRAFT": "new"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    rows = [line for line in done.stdout.splitlines() if line.startswith("FAULTS ")]
    assert len(rows) == 14 and all(int(row.split("|")[2]) > 20 for row in rows), rows
    print(*rows, sep="\n")


@pytest.mark.slow
@needs_faults
def test_writers_of_python_under_faults(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "test" / "faults" / "export.py", tmp_path],
        env={**os.environ, "LD_PRELOAD": str(FAULTS), "GRAFT_FAULTS_OF_GRAFT": "new"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    rows = [line for line in done.stdout.splitlines() if line.startswith("FAULTS ")]
    # Few reads and writes go through the library's calls, which "short" is about.
    tried = {row: int(row.split("|")[2]) for row in rows}
    assert len(rows) == 21 and all(n > (0 if "short" in row else 15) for row, n in tried.items()), rows
    print(*rows, sep="\n")


def cli() -> str:
    beside = Path(sys.executable).parent / "graft"
    return str(beside) if beside.exists() else str(shutil.which("graft"))


COMMANDS = {
    "inspect": ["inspect", GOLDEN, "--json"],
    "devices": ["devices"],
    "pack": ["pack", GOLDEN, "--output", "{}/packed"],
    "tokenize": ["tokenize", "{}/tokenizer.json", "a b"],
    "run": ["run", GOLDEN, "--method", "encode", "--input", "0={}/ids.npy", "--input", "1={}/ids.npy", "--outputs", "{}/o.npz"],
}


@needs_faults
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_with_one_line(command, tmp_path):
    import numpy as np

    np.save(tmp_path / "ids.npy", np.ones((2, 5), np.int64))
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}'
    )
    arguments = [str(a).replace("{}", str(tmp_path)) for a in COMMANDS[command]]
    tried = failed = 0
    for layer, fault, step in [
        ("new", "bad_alloc", 61), ("new", "json", 97), ("new", "number", 97), ("memory", "-", 61),
        ("file", "EIO", 1), ("file", "ENOSPC", 1), ("file", "EMFILE", 1), ("thread", "-", 1),
    ]:
        n, tries = 1, 0
        while tries < 12:
            done = subprocess.run(
                [cli(), *arguments],
                env={**os.environ, "LD_PRELOAD": str(FAULTS), "GRAFT_FAULTS": f"{layer} {n} {fault} 0"},
                capture_output=True,
                text=True,
                timeout=120,
            )
            said = done.stderr
            assert done.returncode in (0, 1, 2), (layer, fault, n, done.returncode, said)
            if done.returncode:
                failed += 1
                assert said.startswith("graft: ") and said.count("\n") == 1, (layer, fault, n, said)
            tried, tries, n = tried + 1, tries + 1, n + step
    assert failed > 5
    print(f"FAULTS command line, {command} | all | {tried} | {failed}")


def test_failed_assertions_are_internal_errors():
    @typed
    def of_graft():
        exec(compile("assert 1 == 2, 'sizes'", "inside.py", "exec"), {"__name__": "graft.inside"})

    with pytest.raises(graft.InternalError, match="please report it: graft.inside: sizes"):
        of_graft()

    @typed
    def of_the_user():
        assert 1 == 2

    with pytest.raises(AssertionError):
        of_the_user()


def test_assertions_of_executorch_do_not_leave_export(monkeypatch, tmp_path):
    from graft.exporter import export as module

    def fails(*_, **__):
        exec(compile("assert False", "inside.py", "exec"), {"__name__": "executorch.exir.passes"})

    monkeypatch.setattr(module, "_write", fails)
    with pytest.raises(graft.InternalError, match="executorch.exir.passes: an assertion failed"):
        graft.export(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "relu.pte")


# --- writers that are killed ---


def killed(write, check, most: float = 0.006) -> int:
    """Calls write(0), write(1), ... in a process of its own, kills it a random time after some of them, however long these
    take, and then calls check()."""
    chosen = random.Random(3)
    for _ in range(KILLS):
        done, says = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(done)
                i = 0
                while True:
                    write(i)
                    i += 1
                    os.write(says, b".")
            finally:
                os._exit(1)
        os.close(says)
        for _ in range(chosen.randrange(4)):
            assert os.read(done, 1), "the writer failed"
        time.sleep(chosen.random() * most)
        os.kill(child, signal.SIGKILL)
        os.close(done)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer failed before it was killed"
        check()
    return KILLS


def content(of: bytes):
    """What container.replace() calls."""

    def write(file) -> None:
        for at in range(0, len(of), 4096):
            file.write(of[at : at + 4096])

    return write


def test_an_export_that_is_killed_leaves_the_old_package_or_the_new_one(tmp_path):
    package, whole = tmp_path / "model.pte", [b"a" * 100_000, b"b" * 50_000]
    container.replace(package, content(whole[0]))
    seen = set()

    def check():
        found = package.read_bytes()
        assert found in whole
        seen.add(found[:1])

    count = killed(lambda i: container.replace(package, content(whole[(i + 1) % 2])), check)
    assert b"b" in seen
    container.replace(package, content(whole[0]))
    assert os.listdir(tmp_path) == ["model.pte"], "what a killed writer left"
    print(f"KILLS package of export_llm | {count}")


def test_an_export_of_two_files_that_is_killed_leaves_none_or_a_pair(tmp_path):
    from graft.exporter import export as module

    class Program:
        def __init__(self, letter: bytes) -> None:
            self.letter = letter

        def write_to_file(self, file) -> None:
            file.write(self.letter * 60_000)

        def write_tensor_data_to_file(self, folder) -> None:
            Path(folder, "model.ptd").write_bytes(self.letter * 60_000)

    package, data = tmp_path / "model.pte", tmp_path / "model.ptd"
    module._write(Program(b"a"), package)
    seen = set()

    def check():
        if package.exists():
            assert package.read_bytes() == data.read_bytes()
            seen.add(package.read_bytes()[:1])
        else:
            seen.add(b"none")

    count = killed(lambda i: module._write(Program(b"ba"[i % 2 : i % 2 + 1]), package), check, most=0.03)
    assert len(seen) >= 2
    module._write(Program(b"a"), package)
    assert sorted(os.listdir(tmp_path)) == ["model.ptd", "model.pte"], "what a killed writer left"
    print(f"KILLS package and .ptd of export | {count}")


def test_a_cache_entry_that_is_killed_is_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))

    def make(letter: bytes):
        def write(path: Path):
            path.write_bytes(letter * 30_000)
            return {"letter": letter.decode()}

        return write

    store.put("key", make(b"a"))
    seen = set()

    def check():
        entry = store.find("key")
        if entry is None:
            seen.add("none")
            return
        package, about = entry
        assert package.read_bytes() == about["letter"].encode() * 30_000
        seen.add(about["letter"])

    count = killed(lambda i: store.put("key", make(b"ba"[i % 2 : i % 2 + 1])), check, most=0.02)
    assert len(seen) >= 2
    store.put("key", make(b"a"))
    assert len(os.listdir(store.folder())) == 2, "what a killed writer left"
    print(f"KILLS compile cache | {count}")


def test_files_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    (tmp_path / "a").write_bytes(b"x")
    _flush(tmp_path / "a")
    container.replace(tmp_path / "b", content(b"y"))
    assert [Path(name).name for name in synced] == ["a", "b"]
