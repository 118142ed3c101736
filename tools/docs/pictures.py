"""The pictures of docs/how-it-works.md, drawn from what the engine says of a real plan.

    python tools/docs/pictures.py            # writes docs/pictures
    python tools/docs/pictures.py --check    # fails when they would change

The model is that of `make demo`. Instruction set and number of threads are fixed, so that every x86-64 machine with AVX2
gives the same pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "build" / "demo" / "minilm.pte"
TARGET = ROOT / "docs" / "pictures"
SETTINGS = {"GRAFT_ISA": "avx2", "GRAFT_THREADS": "2"}
LENGTH = 128
LENGTHS = (1, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512)

_COLOURS = ("#4477aa", "#ee7733", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#cc3311", "#009988", "#bb88cc", "#888888")
_SCRATCH = "#b0b0b0"
_STYLE = """<style>
.graft-picture { --ink: #1f2328; --soft: #6a737d; --grid: #d7dbe0; font: 12px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { .graft-picture { --ink: #e6e6e6; --soft: #9aa4ae; --grid: #3c4148 } }
.graft-picture text { fill: var(--ink) } .graft-picture .soft { fill: var(--soft) }
.graft-picture .grid { stroke: var(--grid); fill: none } .graft-picture .line { stroke: var(--ink); fill: none }
.graft-picture .mono { font-family: ui-monospace, monospace; font-size: 11px }
</style>"""


class Svg:
    def __init__(self, width: int, height: int, label: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="graft-picture" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">'
        )
        self._body: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, fill: str, title: str = "", opacity: float = 1) -> None:
        shade = "" if opacity == 1 else f' fill-opacity="{opacity}"'
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self._body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}"{shade}{inside}')

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        named = f' class="{kind}"' if kind else ""
        self._body.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, width: float = 1) -> None:
        steps = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._body.append(f'<path d="M{steps}" class="{kind}" stroke-width="{width}"/>')

    def __str__(self) -> str:
        return "\n".join([self._head, _STYLE, *self._body, "</svg>"]) + "\n"


def inspected(package: Path, length: int) -> dict[str, Any]:
    shapes = [f"--shape=input_ids=1,{length}", f"--shape=attention_mask=1,{length}"]
    command = [Path(sys.executable).with_name("graft"), "inspect", package, *shapes, "--plan", "--json"]
    done = subprocess.run(command, env=os.environ | SETTINGS, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"graft inspect: {done.stderr}")
    return json.loads(done.stdout)


def kernel(launch: dict[str, Any]) -> str:
    return launch["kernel"].removeprefix("graft ")


def size(count: float) -> str:
    for unit, of in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= of:
            return f"{count / of:.3g} {unit}"
    return f"{count:.0f} bytes"


def coloured(order: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The kernels that write most bytes get colours of their own."""
    written: dict[str, int] = {}
    for launch in order:
        written[kernel(launch)] = written.get(kernel(launch), 0) + launch["touched_bytes"]
    names = sorted(written, key=lambda name: (-written[name], name))
    return {name: _COLOURS[min(i, len(_COLOURS) - 1)] for i, name in enumerate(names)}


def legend(svg: Svg, colours: dict[str, str], used: Iterable[str], x: float, y: float, width: float) -> None:
    at = x
    for name in [name for name in colours if name in set(used)]:
        room = 22 + 7.2 * len(name)
        if at + room > x + width:
            at, y = x, y + 18
        svg.rect(at, y - 9, 11, 11, colours[name])
        svg.text(at + 15, y, name, kind="mono")
        at += room


def of_arena(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [buffer for buffer in plan["buffers"] if buffer["memory"] == "arena"]


def arena(plan: dict[str, Any]) -> str:
    """Buffers of the arena by lifetime and address, and the sum of those alive."""
    order, buffers, count = plan["order"], of_arena(plan), len(plan["order"])
    left, top, width, height = 64, 40, 820, 300
    svg = Svg(900, 420, f"The arena of {count} launches: every buffer by lifetime and address")
    wide, high = width / count, height / plan["arena_bytes"]
    colours, writers = coloured(order), {}
    for launch in order:
        for output in launch["outputs"]:
            writers.setdefault(output["buffer"], kernel(launch))
    for i in range(5):
        y = top + height - i * height / 4
        svg.path([(left, y), (left + width, y)], "grid")
        svg.text(left - 6, y + 4, f"{plan['arena_bytes'] * i / 4 / 2**20:.2f} MiB", "end", "soft")
    used = set()
    for b in buffers:
        name = writers.get(b["id"], "scratch")
        used.add(name)
        x, w = left + b["first_use"] * wide, (b["last_use"] - b["first_use"] + 1) * wide
        h = max(b["bytes"] * high, 0.6)
        y = top + height - b["offset"] * high - h
        title = f"{name}: {size(b['bytes'])} at {b['offset']}, launches {b['first_use']} to {b['last_use']}"
        svg.rect(x, y, max(w - 0.6, 0.6), h, colours.get(name, _SCRATCH), title, 0.85)
    line = []
    for i in range(count):
        alive = sum(b["bytes"] for b in buffers if b["first_use"] <= i <= b["last_use"])
        y = top + height - alive * high
        line += [(left + i * wide, y), (left + (i + 1) * wide, y)]
    svg.path(line, "line", 1.5)
    svg.text(left, 20, "Each rectangle is a buffer: how long it lives, and where in the arena. The line is the sum of what is alive.")
    for i in range(0, count, 10):
        svg.text(left + (i + 0.5) * wide, top + height + 16, str(i), "middle", "soft")
    svg.text(left + width, top + height + 32, "launch", "end", "soft")
    legend(svg, {**colours, "scratch": _SCRATCH}, used, left, top + height + 52, width)
    return str(svg)


def launches(plan: dict[str, Any], rows: int = 14) -> str:
    """The first launches in order: what each reads and writes of the arena."""
    order, total = plan["order"], plan["arena_bytes"]
    first = max(next(i for i, launch in enumerate(order) if "linear" in launch["node"]) - 1, 0)
    chosen = order[first : first + rows]
    left, top, width, high = 330, 56, 550, 22
    svg = Svg(900, top + high * len(chosen) + 20, "What each launch reads and writes of the arena")
    colours = coloured(order)
    svg.text(16, 20, "One row per launch, in order. Filled: what it writes of the arena. Outlined: what it reads there.")
    svg.text(16, 44, "kernel", kind="soft")
    svg.text(left, 44, "0", kind="soft")
    svg.text(left + width, 44, size(total), "end", "soft")
    for i, launch in enumerate(chosen):
        y = top + i * high
        svg.path([(left, y + high - 3), (left + width, y + high - 3)], "grid")
        svg.text(16, y + 14, f"{first + i:>2} {kernel(launch)}", kind="mono")
        for kind in ("inputs", "outputs"):
            for tensor in launch[kind]:
                buffer = next((b for b in of_arena(plan) if b["id"] == tensor["buffer"]), None)
                if buffer is None:
                    continue
                x, w = left + buffer["offset"] / total * width, max(buffer["bytes"] / total * width, 2)
                if kind == "outputs":
                    svg.rect(x, y + 2, w, high - 7, colours[kernel(launch)], tensor["tensor"], 0.9)
                else:
                    svg.path([(x, y + 2), (x + w, y + 2), (x + w, y + high - 5), (x, y + high - 5), (x, y + 2)], "line", 0.9)
    return str(svg)


def life(described: dict[str, Any]) -> str:
    """How much there is of what, from the file to a run."""
    method = described["methods"][0]
    plan = method["plans"][0]
    graph = [row for row in method["passes"] if row["ran"] and row["rewrites"]]
    lowered = [row for row in plan["passes"] if row["ran"] and row["rewrites"]]
    buffers = of_arena(plan)
    rows: list[tuple[str, str, int, str]] = [("file", "the exported graph", graph[0]["before"], "nodes")]
    rows += [("load", row["name"], row["after"], f"nodes, {row['rewrites']} rewrites") for row in graph]
    rows += [("plan", "the lowered graph", lowered[0]["before"], "launches")]
    rows += [("plan", row["name"], row["after"], f"launches, {row['rewrites']} rewrites") for row in lowered]
    memory = [
        ("plan", "all buffers between launches", sum(b["bytes"] for b in buffers)),
        ("plan", "the arena that holds them", plan["arena_bytes"]),
        ("run", "written to the caller's memory", sum(a["bytes"] for a in plan["allocations"] if a["memory"] == "output")),
    ]
    left, top, width, high = 270, 34, 430, 20
    svg = Svg(900, top + high * (len(rows) + len(memory)) + 24, "The life of a run in numbers")
    svg.text(16, 20, f"MiniLM-L6, {LENGTH} tokens: what each stage leaves for the next")
    colour = {"file": _COLOURS[9], "load": _COLOURS[0], "plan": _COLOURS[1], "run": _COLOURS[2]}
    most = max(count for _, _, count, _ in rows)
    y = float(top)
    for stage, what, count, unit in rows:
        svg.text(16, y + 13, stage, kind="soft")
        svg.text(60, y + 13, what, kind="mono")
        svg.rect(left, y + 2, max(count / most * width, 1), high - 6, colour[stage])
        svg.text(left + count / most * width + 6, y + 13, f"{count} {unit}")
        y += high
    y += 14
    most_bytes = max(count for _, _, count in memory)
    for stage, what, count in memory:
        svg.text(16, y + 13, stage, kind="soft")
        svg.text(60, y + 13, what, kind="mono")
        svg.rect(left, y + 2, max(count / most_bytes * width, 1), high - 6, colour[stage])
        svg.text(left + count / most_bytes * width + 6, y + 13, size(count))
        y += high
    return str(svg)


def lengths(arenas: dict[int, int]) -> str:
    """The arena by the length of the call."""
    left, top, width, height = 80, 40, 790, 220
    svg = Svg(900, 310, "The arena by the number of tokens in the call")
    most = max(arenas.values())
    svg.text(left, 20, "Memory between the layers follows the call: the arena for one sentence of so many tokens.")
    for i in range(5):
        y = top + height - i * height / 4
        svg.path([(left, y), (left + width, y)], "grid")
        svg.text(left - 6, y + 4, f"{most * i / 4 / 2**20:.2f} MiB", "end", "soft")
    wide = width / len(arenas)
    for i, (length, count) in enumerate(arenas.items()):
        h = count / most * height
        svg.rect(left + i * wide + 4, top + height - h, wide - 8, h, _COLOURS[0], f"{length} tokens: {size(count)}")
        svg.text(left + (i + 0.5) * wide, top + height + 16, str(length), "middle", "soft")
    svg.text(left + width, top + height + 34, "tokens", "end", "soft")
    return str(svg)


def drawn(package: Path) -> dict[str, str]:
    described = inspected(package, LENGTH)
    plan = described["methods"][0]["plans"][0]
    arenas = {n: inspected(package, n)["methods"][0]["plans"][0]["arena_bytes"] for n in LENGTHS}
    return {
        "arena.svg": arena(plan),
        "launches.svg": launches(plan),
        "life.svg": life(described),
        "lengths.svg": lengths(arenas),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a picture would change")
    args = parser.parse_args()
    if not args.package.exists():
        raise SystemExit(f"{args.package} is missing: make demo")
    changed = []
    for name, text in drawn(args.package).items():
        file = TARGET / name
        if not file.exists() or file.read_text() != text:
            changed.append(name)
        if not args.check:
            TARGET.mkdir(exist_ok=True)
            file.write_text(text)
    if args.check and changed:
        print(f"docs/pictures: {', '.join(changed)} changed: python tools/docs/pictures.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
