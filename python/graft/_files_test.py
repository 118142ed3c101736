"""What is left of a writer that ended goes with the next one; what others write, or wrote, stays."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import graft
from graft._files import SUFFIX, remove_unfinished, unfinished


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_writer(folder: Path) -> None:
    child = os.fork()
    if child == 0:
        with unfinished(folder, "model.pte") as place:
            (place / "model.pte").write_bytes(b"x" * 1000)
            (folder / "ready").write_text("")
            time.sleep(60)
        os._exit(1)
    while not (folder / "ready").exists():
        time.sleep(0.001)
    (folder / "ready").unlink()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_nothing_is_left(tmp_path):
    with unfinished(tmp_path / "new", "a") as place:
        assert place.parent == tmp_path / "new" and place.name.startswith(".a.") and place.name.endswith(SUFFIX)
        os.replace(_written(place / "a"), tmp_path / "new" / "a")
        _written(place / "more")
    assert names(tmp_path / "new") == ["a"]
    with pytest.raises(ValueError), unfinished(tmp_path / "new", "b"):
        raise ValueError
    assert names(tmp_path / "new") == ["a"]


def test_a_long_name_is_no_obstacle(tmp_path):
    with unfinished(tmp_path, "a" * 250) as place:
        assert place.is_dir()


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    killed_writer(tmp_path)
    (tmp_path / f"states.1.2{SUFFIX}").write_bytes(b"of C++")
    _written(tmp_path / "other.tmp")
    (tmp_path / "model.graft.tmp.txt").mkdir()
    assert len(names(tmp_path)) == 4
    with unfinished(tmp_path, "b"):
        assert len(names(tmp_path)) == 3
    assert names(tmp_path) == ["model.graft.tmp.txt", "other.tmp"]


def test_what_somebody_writes_stays(tmp_path):
    with unfinished(tmp_path, "a") as first:
        with unfinished(tmp_path, "b"):
            assert first.is_dir()
        remove_unfinished(tmp_path)
        assert first.is_dir()
    assert names(tmp_path) == []


def test_refusals_are_errors_of_graft(tmp_path):
    _written(tmp_path / "file")
    with pytest.raises(graft.SystemError, match="cannot write '.*/file/a': "), unfinished(tmp_path / "file", "a"):
        pass
    with pytest.raises(graft.SystemError, match="cannot write '.*/a': No such file"), unfinished(tmp_path, "a") as place:
        os.replace(place / "a", tmp_path / "a")
    with pytest.raises(graft.SystemError, match="^the disk$"), unfinished(tmp_path, "a"):
        raise graft.SystemError("the disk")


def test_a_link_is_not_followed(tmp_path):
    kept = tmp_path / "kept"
    _written(kept / "a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"link{SUFFIX}").symlink_to(kept)
    remove_unfinished(tmp_path / "out")
    assert names(kept) == ["a"]
    remove_unfinished(tmp_path / "no such folder")


def _written(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    return path
