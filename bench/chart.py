"""Draws the README's chart from the raw samples: how much of what the machine can do each engine reaches.

    python chart.py RESULTS.json OUT.svg        `make bench` calls it

A bar is the least time that a case can take on the machine, by the probe's figures in the same rounds, divided by the
engine's median time; the whisker is the 10th to the 90th percentile of its calls. The dashed line is the machine's limit.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import report
import workloads

# graft's color stands out; each peer has one color in all rows.
OURS = "#d1495b"
COLORS = ["#2e4057", "#66a182", "#edae49", "#8d96a3", "#5f4b8b", "#00798c", "#c8b6a6", "#b56576", "#333333"]
# Pixels.
LABELS, WIDTH, AFTER = 220, 460, 150  # widths of the row labels, of 100 % of the limit, of what follows it
BAR, GAP = 10, 9
FONT = 'font-family="sans-serif" font-size'


def shares(workload: workloads.Workload, entry: dict[str, Any], case: str, peer: str) -> list[float]:
    """In percent, one for each timed call."""
    least, times = report.needed_ms(workload, entry, case), report.samples(entry, case, peer)
    return [100 * least / ms for ms in times] if least is not None else []


def label(peer: str) -> str:
    for suffix in ("-batch", "-language", "-program", "-genai"):
        peer = peer.removesuffix(suffix)
    return peer


def bars(peers: dict[str, list[float]], colors: dict[str, str], top: float) -> list[str]:
    """The bars of one row, one below the other. What is above the limit (operands still in a cache) is cut at 110 %."""
    lines = []
    for i, (peer, found) in enumerate(peers.items()):
        middle, (low, high) = statistics.median(found), report.middle(found)
        y, end = top + i * BAR, [LABELS + WIDTH * min(share, 110) / 100 for share in (middle, low, high)]
        lines.append(f'<rect x="{LABELS}" y="{y}" width="{end[0] - LABELS:.1f}" height="{BAR - 1}" fill="{colors[peer]}"/>')
        lines.append(f'<path d="M{end[1]:.1f} {y + 4.5}H{end[2]:.1f}" stroke="black"/>')
        lines.append(f'<text x="{max(end) + 4:.1f}" y="{y + 8}" {FONT}="8">{escape(peer)} {middle:.0f} %</text>')
    return lines


def draw(results: dict[str, Any], known: dict[str, workloads.Workload], out: Path) -> None:
    rows = []
    for name in report.fit_for_readme(results, known):
        workload, entry = known[name], results["workloads"][name]
        for case, title in workload.readme.items():
            peers = {label(peer): found for peer in workload.peers if (found := shares(workload, entry, case, peer))}
            if peers:
                rows.append((title, peers))
    if not rows:
        raise SystemExit("bench: no samples with the machine's limits: nothing to draw")
    names = sorted({peer for _, peers in rows for peer in peers} - {"graft"})
    colors = {"graft": OURS, **{peer: COLORS[i % len(COLORS)] for i, peer in enumerate(names)}}
    lines, top = [], 24.0
    height = top + sum(len(peers) * BAR + GAP for _, peers in rows)
    for percent in (0, 25, 50, 75, 100):
        x = LABELS + WIDTH * percent / 100
        dash = ' stroke-dasharray="4 3"' if percent == 100 else ""
        lines.append(f'<path d="M{x} 18V{height}" stroke="{"black" if percent in (0, 100) else "#dddddd"}"{dash}/>')
        lines.append(f'<text x="{x}" y="13" text-anchor="middle" {FONT}="10">{percent} %</text>')
    for title, peers in rows:
        middle = top + len(peers) * BAR / 2 + 4
        lines.append(f'<text x="{LABELS - 6}" y="{middle}" text-anchor="end" {FONT}="11">{escape(title)}</text>')
        lines += bars(peers, colors, top)
        top += len(peers) * BAR + GAP
    size = f'width="{LABELS + WIDTH + AFTER}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<rect width="100%" height="100%" fill="white"/>'
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([head, *lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    draw(report.read(Path(sys.argv[1])), workloads.load(), Path(sys.argv[2]))
