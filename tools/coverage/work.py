"""Work in proportion to the file, counted: how often the branches of graft's code run while a file is loaded, planned, encoded
or rendered, and while one that is two and four times as large is. usage: work.py BUILD, a build with --coverage whose
graft_fault_tests (test/faults/work_test.cpp) is there. Fails where twice as much takes more than about twice as long."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SIZE = 200
MOST = 2.5  # of what four times the size takes beyond twice, over what twice takes beyond once
SLACK = 20_000  # branches
ARCS = 0x01A10000


def counted(data: bytes) -> int:
    """The sum of the counters of arcs in a .gcda file of GCC 12 or newer: records of a tag, a length in bytes (negative:
    all are 0) and the counters."""
    magic, _, _, _ = struct.unpack_from("<4I", data)
    if magic != 0x67636461:
        raise SystemExit("not a file of gcov's counters")
    total, at = 0, 16
    while at + 8 <= len(data):
        tag, length = struct.unpack_from("<Ii", data, at)
        at += 8
        if tag == ARCS and length > 0:
            total += sum(struct.unpack_from(f"<{length // 8}Q", data, at))
        at += max(length, 0)
    return total


def branches(binary: Path, work: str, size: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GCOV_PREFIX": folder, "GRAFT_WORK": f"{work} {size}"}
        subprocess.run([binary, "--gtest_filter=WorkOnce.Run"], env=environment, check=True, capture_output=True)
        files = [path for path in Path(folder).rglob("*.gcda") if "/src/" in str(path)]
        if not files:
            sys.exit("no counters were written: is this a build with --coverage?")
        return sum(counted(path.read_bytes()) for path in files)


def main() -> int:
    binary = Path(sys.argv[1]).resolve() / "graft_fault_tests"
    listed = subprocess.run([binary, "--gtest_list_tests", "--gtest_filter=Of/WorkTest.*"], capture_output=True, text=True, check=True)
    names = re.findall(r"IsInProportion/(\w+)", listed.stdout)
    worse = 0
    for name in names:
        once, twice, four_times = (branches(binary, name, SIZE * times) for times in (1, 2, 4))
        ratio = (four_times - twice) / max(twice - once, 1)
        above = four_times - twice > MOST * (twice - once) + SLACK
        print(f"  {name:18} {once:12,} {twice:12,} {four_times:12,} branches, {ratio:.2f}{' <- more than in proportion' if above else ''}")
        worse += above
    return 1 if worse or not names else 0


if __name__ == "__main__":
    sys.exit(main())
