"""The types of the public interface: `make types`.

basedpyright (pyright's checker, with its own Node on PyPI) reads typed_use.py with pyright's strict settings, and then says of
every public symbol of the installed package whether its type is known. Public is what graft.__all__ names, and members of these.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import graft

HERE = Path(__file__).resolve().parent
# What they derive from is ExecuTorch's, which has no types.
OF_EXECUTORCH = {
    "graft.exporter.backend.GraftBackend",
    "graft.exporter.partitioner.GraftPartitioner",
    "graft.exporter.partitioner.GraftPartitioner.delegation_spec",
}
CHECKER = Path(sys.executable).with_name("basedpyright")


def checked(*words: str, folder: str) -> dict[str, Any]:
    done = subprocess.run([CHECKER, "--outputjson", *words], cwd=folder, capture_output=True, text=True)
    if not done.stdout.lstrip().startswith("{"):
        raise SystemExit(f"basedpyright: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def public() -> set[str]:
    """Where the public names are defined."""
    out = set()
    for name in graft.__all__:
        value = getattr(graft, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            out.add(f"{value.__module__}.{value.__qualname__}")
    return out


def strict() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"include": [str(HERE / "typed_use.py")], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
        Path(folder, "pyrightconfig.json").write_text(json.dumps(settings))
        report = checked("-p", folder, "--pythonpath", sys.executable, folder=folder)
    if report["summary"]["filesAnalyzed"] != 1:
        raise SystemExit(f"basedpyright: typed_use.py was not read: {report['summary']}")
    return [f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in report["generalDiagnostics"]]


def unknown() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = checked("--verifytypes", "graft", "--ignoreexternal", "--pythonpath", sys.executable, folder=folder)
    wanted = public()
    symbols = report["typeCompleteness"]["symbols"]
    seen = {symbol["name"] for symbol in symbols}
    out = [f"{name}: not seen by the checker" for name in sorted(wanted - seen) if not name.startswith("graft._C.")]
    for symbol in symbols:
        name = symbol["name"]
        if symbol["isTypeKnown"] or name in OF_EXECUTORCH or not any(name == of or name.startswith(f"{of}.") for of in wanted):
            continue
        reasons = "; ".join(d["message"].splitlines()[0] for d in symbol.get("diagnostics", ()))
        out.append(f"{name}: its type is not known: {reasons}")
    return out


if __name__ == "__main__":
    problems = strict() + unknown()
    print("\n".join(problems) or f"types: typed_use.py is clean, {len(public())} public names are known")
    sys.exit(1 if problems else 0)
