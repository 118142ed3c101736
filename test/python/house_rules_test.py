"""Rules that every module of python/graft keeps, read from the sources."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graft

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "graft"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_test.py"))
# These use torch.get_default_dtype() when no dtype is given.
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


def _module_name(path: Path) -> str:
    parts = ["graft", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, known: set[str]) -> set[str]:
    """Modules of graft that a module imports anywhere, also in functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & known


def test_imports_have_no_circles():
    known = {_module_name(path): path for path in MODULES}
    graph = {name: _imports(path, set(known)) - {"graft", name} for name, path in known.items()}
    assert "graft.errors" in graph["graft.runtime.model"]
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"modules that need each other: {sorted(graph)}"


def test_running_packages_needs_no_exporter():
    """Loading a package must not cost the import of the exporting side, nor of transformers."""
    code = "import sys, graft; graft.load; graft.Pipeline; graft.Tokenizer; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    loaded = set(run.stdout.split())
    assert "graft.runtime.model" in loaded
    assert not loaded & {"graft.exporter", "executorch.exir", "transformers"}


@pytest.mark.parametrize(
    "name",
    ["load", "export", "export_llm", "compile", "compare", "LoadOptions", "ExportOptions", "AutoModelForCausalLM"],
)
def test_every_argument_is_described(name):
    if name in ("compile", "AutoModelForCausalLM"):
        pytest.importorskip("transformers")
    public = getattr(graft, name)
    public = getattr(public, "from_pretrained", public)
    text = inspect.getdoc(public)
    missing = [arg for arg in inspect.signature(public).parameters if not re.search(rf"\b{arg}\b[^:]*: ", text)]
    if name == "AutoModelForCausalLM":
        assert "The rest as `graft.compile`" in text
        missing = sorted(set(missing) - set(inspect.signature(graft.compile).parameters))
    assert not missing


def test_public_names_are_there():
    pytest.importorskip("transformers")
    for name in graft.__all__:
        assert getattr(graft, name) is not None
    assert callable(graft.export) and graft.export.__module__ == "graft.exporter.export"
    assert graft.backend.GraftBackend is graft.GraftBackend
    assert graft.partitioner.GraftPartitioner is graft.GraftPartitioner
    assert graft.runtime.load is graft.load
