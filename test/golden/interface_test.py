"""Within a minor version nothing public goes away (docs/compatibility.md)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import graft

sys.path.insert(0, str(Path(__file__).parent))
import interface

sys.path.pop(0)

STORED = json.loads(interface.STORED.read_text())


def problems(before: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """What breaks callers: a name or parameter that is gone, another order, a new parameter without a default."""
    out = []
    for name, old in before.items():
        if name not in now:
            out.append(f"{name} is gone")
            continue
        new = now[name]
        plain = list(map(_bare, new))
        out += [f"{name}: {p} is gone" for p in map(_bare, old) if p not in plain]
        positional = [_bare(p) for p in old if not p.startswith("*")]
        if [p for p in plain if not p.startswith("*")][: len(positional)] != positional:
            out.append(f"{name}: its positional parameters were {positional}")
        out += [f"{name}: {p} must be given now" for p in new if _needed(p) and p not in old]
    return out


def _bare(parameter: str) -> str:
    return parameter.rstrip("=")


def _needed(parameter: str) -> bool:
    return not parameter.endswith("=") and parameter not in ("*args", "*kwargs", "*settings", "*variables")


def test_the_list_is_of_this_minor_version():
    assert graft.version().startswith(STORED["version"] + "."), "run test/golden/interface.py and read its difference"


def test_python():
    assert problems(STORED["python"], interface.python()) == []


def test_cpp():
    now = set(interface.cpp(interface.library()))
    assert len(STORED["cpp"]) > 100 and [symbol for symbol in STORED["cpp"] if symbol not in now] == []


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ({}, "f is gone"),
        ({"f": ["x", "*z="]}, "f: y is gone"),
        ({"f": ["y=", "x", "*z="]}, "positional"),
        ({"f": ["x", "y=", "w", "*z="]}, "w must be given"),
        ({"f": ["x", "y", "*z="]}, "y must be given"),
        ({"f": ["new=", "x", "y=", "*z="]}, "positional"),
        ({"f": ["x", "y=", "new=", "*z=", "*more="], "g": ["q"]}, None),
    ],
)
def test_what_breaks_callers(now, text):
    found = problems({"f": ["x", "y=", "*z="]}, now)
    assert text in "; ".join(found) if text else found == []
