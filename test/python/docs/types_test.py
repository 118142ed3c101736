"""What type checkers read agrees with what is there. They themselves run in `make types`, a part of the longer tests."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import graft
import graft._C as binding

PACKAGE = Path(graft.__file__).parent


def _stub(name):
    return ast.parse((PACKAGE / name).read_text())


def test_the_marker_is_installed():
    assert (PACKAGE / "py.typed").exists()


def test_the_stub_of_the_package_names_what_is_public():
    from graft import _MODULES, _WHERE

    found = {}
    for node in _stub("__init__.pyi").body:
        if isinstance(node, ast.ImportFrom):
            (alias,) = node.names
            assert alias.asname == alias.name  # as PEP 484 wants it of names that are handed on
            found[alias.name] = node.module
        elif isinstance(node, ast.Assign):
            stated = ast.literal_eval(node.value)
    assert stated == graft.__all__
    assert found.keys() == {*graft.__all__, *_MODULES}
    for name in _WHERE:
        value = getattr(graft, name)
        module = getattr(value, "__module__", None)
        assert found[name] == module or getattr(__import__(found[name], fromlist=[name]), name) is value, name


def test_the_stub_of_the_binding_has_names_that_are_there():
    body = _stub("_C.pyi").body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)} - {"__getattr__"}
    assert {"CancelToken", "Arena", "States"} <= classes.keys() and {"devices", "version"} <= functions
    for name, stub in classes.items():
        members = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
        real = {member for member in vars(getattr(binding, name)) if not member.startswith("_")}
        assert members - {"__init__"} == real, name
    for name in functions:
        assert callable(getattr(binding, name))


def test_every_public_name_is_used_as_a_type_checker_sees_it():
    tree = ast.parse((Path(__file__).parent / "typed_use.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "graft"
    }
    assert sorted(set(graft.__all__) - used) == []
    assert all(inspect.isclass(getattr(graft, name)) for name in used if name[0].isupper())
