"""Writes docs/ops.md from the counts that the differential tests left (GRAFT_OPS_REPORT).

    python tools/docs/ops.py FOLDER OUT.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from graft import _C

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
SHORT = ("f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool")
HEAD = """# Operators

Made by `make ops-report` from a run of the tests under `src/op`; not edited by hand. Every operator overload of the
engine is compared with eager PyTorch on random arguments: sizes 0, 1, 31, 32, 33 and 257 among them, ranks 0 to 8,
strided operands, NaN, infinities, -0 and the extremes of integers. A case is one call compared with eager; where eager
itself refuses the arguments there is nothing to compare, and the case does not count. Calls on strided operands, and
calls with numbers that the program computes from sizes, are cases of their own.

- dtypes: of the tensors that the cases were given.
- worst error: the largest |graft - eager| / (1 + |eager|) over all elements that are finite in eager, whatever their
  dtype. Results that are integers or booleans must be equal, so theirs is 0. "-": the values are whatever the memory
  holds, in eager too, and dtype and shape alone are compared.
- kernels: what ran, over all cases. "graft ..." is a kernel of graft, "ggml ..." one of ggml's CPU backend; "view" costs
  nothing at run time; "folded at load" means that the result depends on constants alone.
"""


def merged(folder: Path) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json")):
        for name, row in json.loads(file.read_text()).items():
            known = rows.setdefault(name, {"cases": 0, "dtypes": set(), "worst": None, "kernels": set()})
            known["cases"] += row["cases"]
            known["worst"] = max((w for w in (known["worst"], row["worst"]) if w is not None), default=None)
            known["dtypes"].update(row["dtypes"])
            known["kernels"].update(row["kernels"])
    return rows


def markdown(rows: dict[str, dict[str, Any]], targets: list[str]) -> str:
    """`targets`: all operators of the engine; those without a case are listed as such."""
    numbers = [name for name in targets if name.startswith(("python.", "aten.sym_"))]
    tensors = sorted(set(targets) - set(numbers))
    tested = sum(rows.get(name, {}).get("cases", 0) > 0 for name in tensors)
    lines = [HEAD, f"{len(tensors)} operators on tensors, {tested} of them with cases here.", ""]
    lines += ["| operator | dtypes | cases | worst error | kernels |", "| --- | --- | ---: | ---: | --- |"]
    for name in tensors:
        row = rows.get(name)
        if row is None or not row["cases"]:
            lines.append(f"| {name} | | 0 | | |")
            continue
        dtypes = ", ".join(short for dtype, short in zip(DTYPES, SHORT, strict=True) if dtype in row["dtypes"])
        worst = "-" if row["worst"] is None else f"{row['worst']:.1e}" if row["worst"] else "0"
        lines.append(f"| {name} | {dtypes} | {row['cases']} | {worst} | {', '.join(sorted(row['kernels'])) or 'view'} |")
    lines += ["", "Operators on numbers, evaluated while a plan is made and tested in `src/op/scalar_test.cpp`:", ""]
    lines.append(", ".join(sorted(numbers)) + ".")
    return "\n".join(lines) + "\n"


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows = merged(folder)
    if not rows:
        raise SystemExit(f"ops: no counts in {folder}")
    out.write_text(markdown(rows, _C.operator_targets()))
    print(f"{out}: {len(rows)} operators with cases")


if __name__ == "__main__":
    main()
