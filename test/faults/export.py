"""Writers of Python under faults: run by faults_test.py in a process of its own, with libgraft_faults.so preloaded.

The n-th system call on files fails, n = 1, 2, ..., until the writer succeeds. What leaves it is an error of graft.errors, the
files of before are whole, and the next try writes the same bytes and leaves nothing beside them. In an export, allocations of
libgraft.so throw besides, where the exporter asks the engine which nodes it runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import graft
from graft._files import SUFFIX
from graft.hf import store

FILE_FAULTS = ["EIO", "ENOSPC", "EROFS", "EACCES", "EMFILE", "EINTR", "short"]

faults = ctypes.CDLL(None)
faults.graft_faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
faults.graft_faults_disarm.restype = ctypes.c_long


def files(folder: Path, unfinished: bool = True) -> dict[str, bytes]:
    paths = sorted(path for path in folder.iterdir() if unfinished or not path.name.endswith(SUFFIX))
    return {path.name: b"" if path.is_dir() else path.read_bytes() for path in paths}


def attempt(name: str, write: Callable[[], object], folder: Path, layer: str, fault: str, every: bool, step: int) -> None:
    write()
    before, descriptors = files(folder), len(os.listdir("/proc/self/fd"))
    tried = errors = 0
    n = 1
    while True:
        caught: BaseException | None = None
        faults.graft_faults_arm(layer.encode(), n, fault.encode(), every)
        try:
            write()
        except BaseException as e:  # noqa: BLE001  what may leave is what is tested
            caught = e
        seen = faults.graft_faults_disarm()
        where = f"{name}: {layer} {fault} by call {n}"
        if caught is not None and not isinstance(caught, graft.Error):
            raise SystemExit(f"{where} left as {type(caught).__name__}: {caught}") from caught
        if seen < n:
            break
        tried += 1
        errors += caught is not None
        now = files(folder, unfinished=False)  # which cannot be removed either when everything fails
        # A package of two files may be gone when its second could not be written, never half of it.
        if not now.items() <= before.items():
            raise SystemExit(f"{where}: wrote {sorted(now)}, of which something is not whole")
        write()
        if files(folder) != before:
            raise SystemExit(f"{where}: the next try wrote {sorted(files(folder))}")
        if len(os.listdir("/proc/self/fd")) != descriptors:
            raise SystemExit(f"{where}: descriptors are left open")
        n += step if n > 24 else 1
    print(f"FAULTS {name} | {layer}_{fault}{'_every' if every else ''} | {tried} | {errors}")


def main(folder: Path) -> None:
    package, entries = folder / "package", folder / "entries"
    entries.mkdir()
    os.environ["GRAFT_CACHE"] = str(entries)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    x = torch.ones(2, 8)

    def export(**how: str) -> None:
        graft.export(net, (x,), path=package / "net.pte", **how)

    def put() -> None:
        def make(path: Path) -> dict[str, str]:
            path.write_bytes(b"package" * 1000)
            return {"a": "b"}

        store.put("key", make)

    package.mkdir()
    export()  # imports what it needs
    for fault in FILE_FAULTS:
        for every in (False, True) if fault in ("EIO", "ENOSPC") else (False,):
            attempt("export", export, package, "file", fault, every, 3)
            attempt("entry of the compile cache", put, entries, "file", fault, every, 1)
    for fault in ("bad_alloc", "length_error", "json"):
        attempt("export", export, package, "new", fault, False, 211)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
