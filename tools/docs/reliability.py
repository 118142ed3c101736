"""Writes the tables of docs/reliability.md from what the tests printed.

    python tools/docs/reliability.py [--faults LOG] [--executions FILE] [--document docs/reliability.md]

--faults: output of graft_fault_tests and of the tests of faults in test/python/hostile, with lines "FAULTS operation |
layer_fault | tried | errors" and "KILLS writer | kills". --executions: lines "kind executions" that `make fuzz` adds to. What is not given
stays as it is. `make reliability` does all of it.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

LAYERS = {"memory": "memory", "new": "foreign exceptions", "file": "files", "socket": "sockets", "thread": "threads"}

# pytest marks a test that ended on the line where the next one begins to print.
BEGIN = r"^[.sFE]*"


def faults(log: str) -> str:
    rows: dict[str, dict[str, list[int]]] = {}
    for operation, fault, tried, errors in re.findall(BEGIN + r"FAULTS (.+) \| (\w+) \| (\d+) \| (\d+)$", log, re.MULTILINE):
        layer = fault.partition("_")[0]
        if fault == "new_bad_alloc":
            layer = "memory"
        cell = rows.setdefault(operation, {}).setdefault(LAYERS.get(layer, "all"), [0, 0])
        cell[0] += int(tried)
        cell[1] += int(errors)
    columns = [*LAYERS.values()]
    out = [f"| operation | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for operation, cells in rows.items():
        if "all" in cells:
            cells = {columns[0]: cells["all"]}
            operation += " (all layers)"
        texts = (f"{cells[c][0]:,} ({cells[c][1]:,})" if c in cells else "" for c in columns)
        out.append(f"| {operation} | {' | '.join(texts)} |")
    all_tried = sum(cell[0] for cells in rows.values() for cell in cells.values())
    all_errors = sum(cell[1] for cells in rows.values() for cell in cells.values())
    out.append(f"| **all: {all_tried:,}, of which {all_errors:,} were errors** |{' |' * len(columns)}")
    return "\n".join(out)


def kills(log: str) -> str:
    rows = re.findall(BEGIN + r"KILLS (.+) \| (\d+)$", log, re.MULTILINE)
    return "\n".join(["| writer | kills |", "|---|---:|", *(f"| {writer} | {count} |" for writer, count in rows)])


def executions(text: str) -> str:
    counts: dict[str, int] = defaultdict(int)
    for line in text.splitlines():
        kind, count = line.split()
        counts[kind] += int(count)
    out = ["| kind | executions |", "|---|---:|", *(f"| {kind} | {count:,} |" for kind, count in counts.items())]
    return "\n".join([*out, f"| **all** | {sum(counts.values()):,} |"])


def put(document: str, name: str, table: str) -> str:
    marks = rf"(<!-- {name}:begin -->\n).*?(\n<!-- {name}:end -->)"
    found, count = re.subn(marks, lambda m: m[1] + table + m[2], document, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"the document has {count} places for {name}, expected one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=Path)
    parser.add_argument("--executions", type=Path)
    parser.add_argument("--document", type=Path, default=Path(__file__).resolve().parents[2] / "docs" / "reliability.md")
    args = parser.parse_args()
    document = args.document.read_text()
    if args.faults:
        log = args.faults.read_text(errors="replace")
        document = put(document, "faults", faults(log))
        document = put(document, "kills", kills(log))
    if args.executions and args.executions.exists():
        document = put(document, "executions", executions(args.executions.read_text()))
    args.document.write_text(document)


if __name__ == "__main__":
    main()
