"""Failed assertions of libraries, and writers of packages and of the compile cache that are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

import graft
from graft.errors import typed
from graft.exporter.export import _flush
from graft.hf import store
from graft.llm import container

KILLS = 200


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


def killed(write, check, most: float = 0.006) -> None:
    """Calls write(0), write(1), ... in a process of its own, kills it after a random time, and then calls check()."""
    chosen = random.Random(3)
    for _ in range(KILLS):
        child = os.fork()
        if child == 0:
            try:
                i = 0
                while True:
                    write(i)
                    i += 1
            finally:
                os._exit(1)
        time.sleep(chosen.random() * most)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer failed before it was killed"
        check()


class Content:
    """What container.replace() writes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def write_to_file(self, file) -> None:
        for at in range(0, len(self.content), 4096):
            file.write(self.content[at : at + 4096])


def test_an_export_that_is_killed_leaves_the_old_package_or_the_new_one(tmp_path):
    package, whole = tmp_path / "model.pte", [b"a" * 100_000, b"b" * 50_000]
    container.replace(package, Content(whole[0]))
    seen = set()

    def check():
        found = package.read_bytes()
        assert found in whole
        seen.add(found[:1])

    killed(lambda i: container.replace(package, Content(whole[(i + 1) % 2])), check)
    assert b"b" in seen


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

    killed(lambda i: module._write(Program(b"ba"[i % 2 : i % 2 + 1]), package), check, most=0.03)
    assert len(seen) >= 2


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

    killed(lambda i: store.put("key", make(b"ba"[i % 2 : i % 2 + 1])), check, most=0.02)
    assert len(seen) >= 2


def test_files_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    (tmp_path / "a").write_bytes(b"x")
    _flush(tmp_path / "a")
    container.replace(tmp_path / "b", Content(b"y"))
    assert [Path(name).name for name in synced] == ["a", "b"]
