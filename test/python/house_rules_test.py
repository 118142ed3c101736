"""Rules that every module of python/graft keeps, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "graft"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_test.py"))
# They make floats of torch.get_default_dtype() when no dtype is said.
FACTORIES = {"empty", "zeros", "ones", "rand", "randn", "linspace"}


def test_tensors_are_made_with_a_dtype():
    """What the engine reads and writes must not follow torch.set_default_dtype."""
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in FACTORIES
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "torch"
                and not any(keyword.arg == "dtype" for keyword in node.keywords)
            ):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert MODULES and not found
