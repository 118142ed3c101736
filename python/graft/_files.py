"""Files that appear as a whole or not at all.

What is not finished lies beside it in a folder "<name>.graft.tmp" that its writer has locked (flock). Whoever begins to
write removes those of the folder that nobody has locked: their writers have ended. src/base/file.h does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from graft.errors import Error, SystemError

SUFFIX = ".graft.tmp"


@contextlib.contextmanager
def unfinished(folder: Path, name: str) -> Iterator[Path]:
    """An empty folder within `folder`, on the same disk: what is made in it is renamed to its place. It goes at the end,
    with what is left in it. name: of what is written. Where the system refuses something, here or in what is done
    meanwhile, `graft.SystemError` names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        place, lock = _locked(folder, name)
        try:
            yield place
        finally:
            with contextlib.suppress(OSError):  # of fstat, which ignore_errors does not cover
                shutil.rmtree(place, ignore_errors=True)
            os.close(lock)
    except Error:
        raise
    except OSError as e:
        raise SystemError(f"cannot write '{folder / name}': {e.strerror or e}") from e


def _locked(folder: Path, name: str) -> tuple[Path, int]:
    while True:
        place = Path(tempfile.mkdtemp(dir=folder, prefix=f".{name[:100]}.", suffix=SUFFIX))
        lock = -1
        try:
            lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock), os.stat(place)):
                return place, lock
        except FileNotFoundError:
            pass  # removed as unfinished before it was locked
        except BaseException:
            _close(lock)
            with contextlib.suppress(OSError):
                os.rmdir(place)
            raise
        _close(lock)


def _close(lock: int) -> None:
    if lock >= 0:
        os.close(lock)


def remove_unfinished(folder: Path) -> None:
    """Removes what processes left that ended while they wrote in this folder. Writes of others go on."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]
    except OSError:
        return
    for name in names:
        path = folder / name
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            pass  # somebody writes it, or may not be disturbed
        finally:
            os.close(lock)


__all__ = ["SUFFIX", "remove_unfinished", "unfinished"]
