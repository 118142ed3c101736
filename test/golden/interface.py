"""The public interface: names and parameters of graft.__all__, and the functions that libgraft exports.

    python test/golden/interface.py     # writes interface.json, when the minor version of graft changes

docs/compatibility.md says what may change. interface_test.py compares.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import graft

STORED = Path(__file__).with_name("interface.json")


def parameters(function: Any) -> list[str]:
    """Names, in order; those with a default end in "=", those that are given by name only begin with "*"."""
    out = []
    for name, parameter in inspect.signature(function).parameters.items():
        by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        out.append(f"{'*' * by_name}{name}{'=' * (parameter.default is not parameter.empty)}")
    return out


def python() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in graft.__all__:
        value = getattr(graft, name)
        if inspect.isclass(value):
            found[name] = []
            for member, function in inspect.getmembers(value, inspect.isfunction):
                if not member.startswith("_") or member == "__call__":
                    found[f"{name}.{member}"] = parameters(function)
        else:
            found[name] = parameters(value) if inspect.isfunction(value) else []
    return found


def cpp(library: Path) -> list[str]:
    """Exported functions and objects in graft's namespace; not what templates of the C++ library leave behind."""
    nm = shutil.which("nm")
    assert nm, "nm of binutils, which compilers need, is missing"
    lines = subprocess.run([nm, "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = {line.split(" ", 2)[2] for line in lines.splitlines() if line.split(" ", 2)[1] in "TDBR"}
    return sorted(symbol for symbol in symbols if symbol.startswith("graft::") and "::Impl::" not in symbol)


def library() -> Path:
    return Path(graft.__file__).parent / "lib" / "libgraft.so"


if __name__ == "__main__":
    version = graft.version().rpartition(".")[0]
    content = {"version": version, "python": python(), "cpp": cpp(library())}
    STORED.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"{STORED.name}: {len(content['python'])} names of Python, {len(content['cpp'])} of libgraft")
