"""Line coverage of what reads files of strangers: loader, verifier, planner, lowering and text. usage: lines.py BUILD
[--missing], a build with --coverage whose tests have run (run.sh). Fails below 95 % of a part; --missing lists the lines
that nothing reached."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PARTS = {
    "loader": ("src/package/", "src/ir/parse.cpp", "src/ir/program.cpp", "src/load/load.cpp"),
    "verifier": ("src/ir/verify.cpp",),
    "planner": ("src/plan/",),
    "lowering": ("src/lowering/",),
    "text": ("src/text/",),
}
LEAST = 95.0  # percent


def lines_of(data: Path) -> list[dict]:
    """Of one object file: its sources, each with its lines and how often they ran."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", data.name], cwd=data.parent, capture_output=True, check=True)
    return [file for line in done.stdout.splitlines() if line.startswith(b"{") for file in json.loads(line)["files"]]


def main() -> int:
    objects = Path(sys.argv[1]) / "CMakeFiles" / "graft_objects.dir" / "src"
    parts: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for part, sources in PARTS.items():
        for data in sorted(objects.rglob("*.gcda")):
            source = "src/" + str(data.relative_to(objects)).removesuffix(".gcda")
            if not source.startswith(sources):
                continue
            ran: dict[int, int] = defaultdict(int)
            for file in lines_of(data):
                if file["file"].endswith(source):
                    for line in file["lines"]:
                        ran[line["line_number"]] += line["count"]
            parts[part][source] = [sum(n > 0 for n in ran.values()), len(ran)]
            if "--missing" in sys.argv:
                missing = [str(line) for line, count in sorted(ran.items()) if count == 0]
                print(f"    {source}: {' '.join(missing) or 'all reached'}")
    below = 0
    for part in PARTS:
        files = parts[part]
        if not files:
            sys.exit(f"no coverage of the {part} under {objects}: has graft_tests run?")
        for name, (some, all_) in sorted(files.items()):
            print(f"  {name:32} {some:5} of {all_:5} lines {100 * some / max(all_, 1):6.1f} %")
        some, all_ = map(sum, zip(*files.values(), strict=True))
        print(f"{part:34} {some:5} of {all_:5} lines {100 * some / all_:6.1f} %")
        below += 100 * some / all_ < LEAST
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
