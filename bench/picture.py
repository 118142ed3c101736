"""Bars from the raw samples: how much of what the machine can do each engine reaches.

    python picture.py RESULTS.json OUT.svg        in the peers' environment, which has matplotlib; `make bench` calls it

A bar is the least time that a case can take on the machine, by the probe's figures in the same rounds, divided by the engine's
median time; the whisker is the 10th to the 90th percentile of its turns. The line at 100 % is the machine's limit.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import report
import workloads

# graft stands out; each peer has one color in all charts.
OURS = "#d1495b"
COLORS = ["#2e4057", "#66a182", "#edae49", "#8d96a3", "#5f4b8b", "#00798c", "#c8b6a6", "#b56576", "#333333"]
HEIGHT = 0.8  # of the bars of a case together


def shares(workload: workloads.Workload, entry: dict[str, Any], case: str, peer: str) -> list[float]:
    """In percent, one for each timed call."""
    least, times = report.needed_ms(workload, entry, case), report.samples(entry, case, peer)
    return [100 * least / ms for ms in times] if least is not None else []


def label(peer: str) -> str:
    for suffix in ("-batch", "-language", "-program", "-genai"):
        peer = peer.removesuffix(suffix)
    return peer


def draw(results: dict[str, Any], known: dict[str, workloads.Workload], out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same samples give the same file; text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "graft", "svg.fonttype": "none"})
    from matplotlib import pyplot

    charts = [(known[name], results["workloads"][name]) for name in report.fit_for_readme(results, known)]
    charts = [(workload, entry) for workload, entry in charts if report.needed_ms(workload, entry, workload.case_names[0])]
    if not charts:
        raise SystemExit("bench: no samples with the machine's limits: nothing to draw")
    peers = sorted({label(peer) for workload, _ in charts for peer in workload.peers} - {"graft"})
    colors = {"graft": OURS, **{peer: COLORS[i % len(COLORS)] for i, peer in enumerate(peers)}}
    rows = [len(workload.case_names) * len(workload.peers) for workload, _ in charts]
    figure, axes = pyplot.subplots(
        len(charts), 1, figsize=(9, 0.17 * sum(rows) + 0.75 * len(charts) + 1), squeeze=False,
        height_ratios=[count + 2 for count in rows], layout="constrained",
    )  # fmt: skip
    for axis, (workload, entry) in zip(axes[:, 0], charts):
        for place, case in enumerate(workload.case_names):
            bars = [(peer, found) for peer in workload.peers if (found := shares(workload, entry, case, peer))]
            thick = HEIGHT / max(len(bars), 1)
            for i, (peer, found) in enumerate(bars):
                at, middle = place - HEIGHT / 2 + (i + 0.5) * thick, statistics.median(found)
                low, high = report.middle(found)
                axis.barh(at, middle, height=0.92 * thick, color=colors[label(peer)])
                axis.plot([low, high], [at, at], color="black", linewidth=0.7)
                axis.text(max(middle, high) + 0.7, at, f"{label(peer)} {middle:.0f} %", va="center", fontsize=6,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})  # fmt: skip
        axis.axvline(100, color="black", linestyle="--", linewidth=1)
        axis.set_xlim(0, 112)
        axis.set_yticks(range(len(workload.case_names)), workload.case_names, fontsize=7)
        axis.invert_yaxis()
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(entry["title"], fontsize=8, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("percent of the machine's limit (dashed line); whiskers: 10th to 90th percentile of the calls", fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(report.read(Path(sys.argv[1])), workloads.load(), Path(sys.argv[2]))
