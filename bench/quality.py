"""Draws speed over error: nobody is fast by rounding alone.

    python quality.py RESULTS.json OUT.svg        `make bench` calls it

A point is an engine with weights of one type: steps per second after a prompt of 512 tokens, by the divergence of its next
token's distribution from that of the unrounded weights in f32 (mean KL, in nats). Up and to the left is better. Engines that
hand out tokens only have no point.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import report
import workloads
from chart import COLORS, OURS, label

CASE = "decode after 512"
MARKERS = {"q8_0": "o", "q4_K": "s", "q4_0": "^", "bf16": "D"}


def points(results: dict[str, Any], known: dict[str, workloads.Workload]) -> list[tuple[str, str, float, float]]:
    """Engine, type of weights, mean KL, tokens per second: of the workloads of one model that have the case."""
    found = []
    for name, entry in results["workloads"].items():
        workload = known.get(name)
        if workload is None or CASE not in workload.case_names or workload.model != "qwen3-0.6b":
            continue
        for peer in workload.peers:
            times, kl = report.samples(entry, CASE, peer), report.divergence(entry, peer)
            if times and kl is not None:
                found.append((label(peer), workload.weights, kl, report.per_second(workload, CASE, statistics.median(times))))
    return found


def draw(found: list[tuple[str, str, float, float]], out: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "graft", "font.size": 9})
    engines = [engine for engine in dict.fromkeys(engine for engine, *_ in found) if engine != "graft"]
    colors = {"graft": OURS, **{engine: COLORS[i % len(COLORS)] for i, engine in enumerate(engines)}}
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for engine, weights, kl, speed in found:
        axes.scatter(kl, speed, color=colors[engine], marker=MARKERS.get(weights, "x"), s=40)
        axes.annotate(f"{engine} {weights}", (kl, speed), xytext=(5, 3), textcoords="offset points", color=colors[engine])
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("error: mean KL to f32 with unrounded weights, nats")
    axes.set_ylabel("steps per second after 512 tokens")
    axes.margins(x=0.2)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    found = points(report.read(Path(sys.argv[1])), workloads.load())
    if found:
        draw(found, Path(sys.argv[2]))
    else:
        print("bench: no workload has a divergence yet: speed over error is not drawn", file=sys.stderr)


if __name__ == "__main__":
    main()
