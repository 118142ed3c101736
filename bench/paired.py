"""Times graft of two trees against each other: the same workloads, in turns, in the same minutes.

    python paired.py BEFORE AFTER [--workload NAME] [--rounds 7] [--output TABLE.md]

BEFORE and AFTER are checkouts that `make build` was run in. Each tree's own scripts make its package and run it, so an
interface may change between them. The table has each case's median of both, their ratio and the error of each against
eager PyTorch on the outputs that were timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import time
import tomllib
from pathlib import Path

import run
import workloads
from workloads import BENCH, Workload

SIDES = ("before", "after")


def peer_of(workload: Workload) -> str | None:
    return next((peer for peer in workload.peers if peer.startswith("graft")), None)


class Tree:
    def __init__(self, root: Path) -> None:
        self.bench = root.resolve() / "bench"
        self.python = self.bench.parent / ".venv" / "bin" / "python"

    def cases(self, workload: str) -> list[str]:
        """Names of the workload's cases in this tree; those of two trees correspond by position."""
        with (self.bench / "workloads.toml").open("rb") as file:
            entries = tomllib.load(file)["workload"]
        return [case["name"] for entry in entries if entry["name"] == workload for case in entry["cases"]]

    def call(self, *args: str, threads: int) -> None:
        command = [str(self.python), str(self.bench / "worker.py"), *args]
        done = subprocess.run(command, cwd=self.bench, env=run.environment(threads), capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")

    def serve(self, peer: str, workload: Workload, folder: Path, references: Path, cores: list[int]) -> run.Worker:
        return run.Worker(
            peer, workload, folder, references, cores, folder.with_suffix(".log"),
            python=str(self.python), script=self.bench / "worker.py",
        )  # fmt: skip


def measure(workload: Workload, trees: dict[str, Tree], rounds: int) -> list[list[str]]:
    peer = peer_of(workload)
    if peer is None:
        return []
    cache = BENCH / "cache" / "paired" / workload.name
    cache.mkdir(parents=True, exist_ok=True)
    trees["after"].call("model", workload.name, str(cache / "model"), threads=workload.threads)
    names = {side: tree.cases(workload.name) for side, tree in trees.items()}
    references = {}  # inputs and eager outputs; files go by the names of cases
    for side, tree in trees.items():
        references[side] = cache / ("references" if names[side] == workload.case_names else f"references-{side}")
        if side == "after" or references[side] != cache / "references":
            tree.call("reference", workload.name, str(references[side]), threads=workload.threads)
    cores = run.machine.distinct_cores(workload.threads)
    workers: dict[str, run.Worker] = {}
    ms: dict[str, dict[str, list[float]]] = {case: {side: [] for side in SIDES} for case in workload.case_names}
    errors: dict[str, dict[str, float]] = {case: dict.fromkeys(SIDES, 0.0) for case in workload.case_names}
    try:
        for side, tree in trees.items():
            folder = cache / side
            folder.mkdir(exist_ok=True)
            tree.call("prepare", peer, workload.name, str(folder), threads=workload.threads)
            workers[side] = tree.serve(peer, workload, folder, references[side], cores)
        for number in range(rounds):
            for position, case in enumerate(workload.case_names):
                for side in random.Random(f"{case} {number}").sample(SIDES, 2):
                    its = {**workload.case(case), "name": names[side][position]}
                    turn = run.one_turn(workers[side], its, number, cores[-1])
                    ms[case][side].append(statistics.median(turn["ms"]))
                    errors[case][side] = max(errors[case][side], turn["max_abs_error"])
    finally:
        for worker in workers.values():
            worker.close()
    rows = []
    for case in workload.case_names:
        before, after = (statistics.median(ms[case][side]) for side in SIDES)
        ratios = [b / a for a, b in zip(ms[case]["before"], ms[case]["after"])]
        rows.append([
            workload.name, case, f"{before:.3f}", f"{after:.3f}", f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f} to {max(ratios):.3f}", *(f"{errors[case][side]:.1e}" for side in SIDES),
        ])  # fmt: skip
    return rows


def table(rows: list[list[str]]) -> str:
    head = ["workload", "case", "before, ms", "after, ms", "ratio", "range of rounds", "error before", "error after"]
    lines = [head, ["---", "---", *["---:"] * 6], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    all_workloads = workloads.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--workload", action="append", choices=sorted(all_workloads), help="by default all but the optional ones")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="the table, written after every workload")
    options = parser.parse_args()
    trees = {"before": Tree(options.before), "after": Tree(options.after)}
    rows: list[list[str]] = []
    for name in options.workload or workloads.usual(all_workloads):
        start = time.monotonic()
        found = measure(all_workloads[name], trees, options.rounds)
        rows += found
        print(table(found), f"{time.monotonic() - start:.0f} s", flush=True)
        if options.output:
            options.output.write_text(table(rows))


if __name__ == "__main__":
    main()
