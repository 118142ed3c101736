"""Programs of one operator each, for the corpus of `make fuzz`: those that the operators' tests make, the smallest three of
each operator and number of arguments. python operators.py FOLDER"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = 3
LARGEST = 8192  # bytes


class Recorder:
    """A plugin of pytest: keeps the programs that the tests run."""

    def __init__(self) -> None:
        self.found: dict[str, set[bytes]] = defaultdict(set)

    def pytest_sessionstart(self) -> None:
        from graft import testing

        whole = testing.run_blob

        def run_blob(blob, tensors, **options):
            kept = self.found[f"{options.get('target')} {len(tensors)}"]
            if len(blob) < LARGEST:
                kept.add(bytes(blob))
                if len(kept) > KEPT:
                    kept.remove(max(kept, key=len))
            return whole(blob, tensors, **options)

        testing.run_blob = run_blob


def main(folder: Path) -> int:
    os.environ["GRAFT_CASES"] = "2"
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(ROOT / "src" / "op")], plugins=[recorder])
    blobs = {blob for kept in recorder.found.values() for blob in kept}
    folder.mkdir(parents=True, exist_ok=True)
    for blob in blobs:
        (folder / f"op-{hashlib.sha256(blob).hexdigest()[:16]}").write_bytes(blob)
    print(f"{len(blobs)} programs of {len(recorder.found)} calls")
    if blobs:
        (folder / "operators").write_text("")
    return 0 if blobs else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
