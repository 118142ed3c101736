"""Line coverage of what reads files of strangers: loader, verifier and planner, by the C++ tests, mutated files among
them. usage: lines.py BUILD, a build with --coverage whose graft_tests has run. Fails below 90 % of a part."""

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
}
LEAST = 90.0  # percent


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
