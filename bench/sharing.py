"""Memory of one package used several times: by methods, loads and processes, in graft and under ExecuTorch.

    python bench/sharing.py --mb 64

One weight of that many MiB is all that the methods have. A figure is what loading and running once added to the memory
of all processes together, in multiples of the weight: private (Private_Clean + Private_Dirty), proportional (Pss: what
n processes share counts 1/n in each) and anonymous, as /proc/PID/smaps_rollup has them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = """
import json, os, re, sys, torch, graft
from executorch.runtime import Runtime

kind, path, small, methods, loads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
size = int(sys.argv[6])
kept = []

def use(path, size, methods, loads):
    x = torch.ones(4, size)
    for _ in range(loads):
        if kind == "graft":
            model = graft.load(path, threads=1)
            kept.append(model)
            calls = [model.methods[f"m{i}"] for i in range(methods)]
        else:
            program = Runtime.get().load_program(path)
            loaded = [program.load_method(f"m{i}") for i in range(methods)]
            kept.append((program, loaded))
            calls = [lambda x, m=m: m.execute((x,))[0] for m in loaded]
        for call in calls:
            call(x)

def memory():
    text = open("/proc/self/smaps_rollup").read()
    found = {name: int(kib) << 10 for name, kib in re.findall(r"^(\\w+):\\s+(\\d+) kB", text, re.M)}
    return {"private": found["Private_Clean"] + found["Private_Dirty"], "proportional": found["Pss"],
            "anonymous": found["Anonymous"]}

use(small, 32, 1, 1)
kept.clear()
print("ready", flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "load":
        use(path, size, methods, loads)
        print("done", flush=True)
    else:
        print(json.dumps(memory()), flush=True)
"""


def export(folder: Path, name: str, size: int) -> Path:
    import torch
    from torch.export import Dim

    import graft

    weight = torch.nn.Linear(size, size, bias=False)

    class Net(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.weight, self.factor = weight, factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight(x) * self.factor

    rows, x = {0: Dim("rows", min=1, max=64)}, torch.randn(4, size)
    methods = {f"m{i}": {"model": Net(i + 1.0), "args": (x,), "dynamic_shapes": (rows,)} for i in range(4)}
    return graft.export(methods=methods, path=folder / name)


def measure(
    kind: str, path: Path, small: Path, size: int, methods: int, loads: int, processes: int, folder: str
) -> dict[str, float]:
    """Bytes that loads added, over all processes."""
    environment = {**os.environ, "GRAFT_THREADS": "1"}
    if folder:
        environment["GRAFT_PACKED_FOLDER"] = folder
    command = [sys.executable, "-c", WORKER, kind, str(path), str(small), str(methods), str(loads), str(size)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(processes)
    ]

    def ask(worker: subprocess.Popen[str], text: str) -> str:
        assert worker.stdin and worker.stdout
        if text:
            worker.stdin.write(text + "\n")
            worker.stdin.flush()
        answer = worker.stdout.readline()
        assert answer, f"a worker ended: {' '.join(command)}"
        return answer

    def sum_of() -> dict[str, int]:
        found = [json.loads(ask(worker, "memory")) for worker in workers]
        return {name: sum(one[name] for one in found) for name in found[0]}

    try:
        for worker in workers:
            ask(worker, "")
        before = sum_of()
        for worker in workers:
            ask(worker, "load")
        after = sum_of()
    finally:
        for worker in workers:
            worker.communicate()
    return {name: after[name] - before[name] for name in before}


# What is used, how often: (methods, loads, processes), and whether weights are packed on disk.
CASES = {
    "1 method": (1, 1, 1, False),
    "4 methods": (4, 1, 1, False),
    "3 loads": (1, 3, 1, False),
    "4 processes": (1, 1, 4, False),
    "1 process, packed file": (1, 1, 1, True),
    "4 processes, packed file": (1, 1, 4, True),
}


def table(mb: int, only: str = "") -> list[dict[str, float | str]]:
    size = math.isqrt(mb << 18)
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, small = export(folder, "net.pte", size), export(folder, "small.pte", 32)
        packed = str(folder / "packed")
        for kind in ("graft", "executorch"):
            for case, (methods, loads, processes, on_disk) in CASES.items():
                if not re.search(only, f"{kind} {case}"):
                    continue
                where = packed if on_disk else ""
                if on_disk:  # by another process, before
                    measure(kind, path, small, size, methods, 1, 1, where)
                found = measure(kind, path, small, size, methods, loads, processes, where)
                rows.append({"runtime": kind, "case": case, **{n: b / (size * size * 4) for n, b in found.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64, help="MiB of the weight (default: 64)")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose 'RUNTIME CASE' matches")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = table(args.mb, args.only)
    if args.json:
        print(json.dumps(rows))
        return
    print(f"| multiples of {args.mb} MiB | private | proportional | anonymous |\n|---|---:|---:|---:|")
    for row in rows:
        print(f"| {row['runtime']}, {row['case']} | {row['private']:.2f} | {row['proportional']:.2f} | {row['anonymous']:.2f} |")


if __name__ == "__main__":
    main()
