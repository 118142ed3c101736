"""Specs from files: what torch writes is read back, and nothing else is done because of a file."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import subprocess
import sys
import typing

import pytest
import torch
from torch.utils import _pytree as pytree

import graft
import graft.exporter.program  # gives results of operators a serialized name
import pytree_fuzzer
from graft import _pytree


class Pair(typing.NamedTuple):
    left: typing.Any
    right: typing.Any


@dataclasses.dataclass
class Point:
    x: typing.Any
    y: typing.Any = None


class Color(enum.Enum):
    RED = 1


@pytest.fixture(scope="module", autouse=True)
def registered():
    pytree._register_namedtuple(Pair, serialized_type_name="test.Pair")
    torch.export.register_dataclass(Point, serialized_type_name="test.Point")
    yield
    for cls in (Pair, Point):
        pytree._deregister_pytree_node(cls)


def text(name, context, children=()) -> str:
    return json.dumps([1, {"type": name, "context": context, "children_spec": list(children)}])


LEAF = {"type": None, "context": None, "children_spec": []}

TREES = {
    "leaf": 1,
    "none": None,
    "nested": ((1, [2, {"a": 3, "b": (4, None)}]), {}),
    "empty": ((), [], {}),
    "ordered": collections.OrderedDict(b=1, a=[2]),
    "defaultdict": collections.defaultdict(list, {"a": 1}),
    "deque": collections.deque([1, 2], maxlen=4),
    "size": torch.Size([1, 2]),
    "namedtuple": Pair(1, [2]),
    "dataclass": Point(1),
    "result of an operator": torch.max(torch.ones(2, 2), 1),
    "keys": {"x": 0, 2: 1},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_reads_what_torch_writes(tree):
    leaves, spec = pytree.tree_flatten(tree)
    read = _pytree.loads(pytree.treespec_dumps(spec))
    found, same = _pytree.flatten(tree)
    assert same == read and len(found) == len(leaves) == read.num_leaves
    assert all(a is b for a, b in zip(found, leaves, strict=True))
    made, expected = _pytree.unflatten(leaves, read), pytree.tree_unflatten(leaves, spec)
    assert type(made) is type(expected) and pytree.tree_structure(made) == pytree.tree_structure(expected)
    assert all(a is b for a, b in zip(pytree.tree_leaves(made), leaves, strict=True))


def test_specs_that_differ():
    trees = [1, (1,), [1], (1, 2), {"a": 1}, {"b": 1}, {"a": (1,)}, Pair(1, 2), collections.deque([1]), {"a": 1, "b": 2}]
    specs = [_pytree.flatten(tree)[1] for tree in [*trees, {"b": 1, "a": 2}, collections.deque([1], maxlen=2)]]
    for i, a in enumerate(specs):
        assert [a == b for b in specs] == [i == k for k in range(len(specs))]
    with pytest.raises(ValueError, match="expected 2 leaves, found 1"):
        _pytree.unflatten([1], specs[3])


def test_reads_outputs_of_transformers():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    spec = pytree.tree_structure(outputs.BaseModelOutput(last_hidden_state=1, hidden_states=(2, 3)))
    found = _pytree.loads(pytree.treespec_dumps(spec))
    assert found == _pytree.flatten(outputs.BaseModelOutput(last_hidden_state=1, hidden_states=(2, 3)))[1]
    assert isinstance(_pytree.unflatten([1, 2, 3], found), outputs.BaseModelOutput)


ENUM = '{"__enum__": true, "fqn": "antigravity:Anything", "name": "x"}'
FACTORY = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}
REFUSED = {
    "enum in a context": (text("builtins.dict", ENUM), "enumeration"),
    "enum among keys": (text("builtins.dict", f"[{ENUM}]", [LEAF]), "enumeration|keys"),
    "enum of a class": (text("test.Point", f"[[{ENUM}], []]", [LEAF]), "enumeration"),
    "factory": (text("collections.defaultdict", FACTORY), "antigravity.x"),
    "builtin that does things": (
        text("collections.defaultdict", {**FACTORY, "default_factory_module": "builtins", "default_factory_name": "exec"}),
        "builtins.exec",
    ),
    "class nobody registered": (text("os.path", "null"), "'os.path' is not known"),
    "namedtuple nobody registered": (text("collections.namedtuple", "os.stat_result"), "os.stat_result"),
    "namedtuple that is none": (text("collections.namedtuple", "builtins.list"), "builtins.list"),
    "fields": (text("collections.namedtuple", "test.Pair", [LEAF]), "2 fields"),
    "count of keys": (text("builtins.dict", '["a"]', [LEAF, LEAF]), "2 keys"),
    "same key twice": (text("builtins.dict", '["a", "a"]', [LEAF, LEAF]), "different keys"),
    "keys that are lists": (text("builtins.dict", "[[1]]", [LEAF]), "1 keys"),
    "length of a deque": (text("collections.deque", '"4"'), "length"),
    "context of a tuple": (text("builtins.tuple", '"x"'), "no context"),
    "leaf with children": (json.dumps([1, {**LEAF, "children_spec": [LEAF]}]), "leaf"),
    "protocol": (json.dumps([2, LEAF]), "protocol"),
    "no JSON": ("{", "list"),
    "depth": (f'[1, {"[" * 100000}]', "list"),
    "node": (json.dumps([1, {"type": None}]), "children_spec"),
    "children": (text("builtins.tuple", "null").replace("[]", "3"), "children"),
    "name": (text(7, "null"), "name of a class"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refuses_by_name(case):
    with pytest.raises(ValueError, match=case[1]):
        _pytree.loads(case[0])


def test_refuses_caches_of_transformers():
    """Their pytree functions import the modules that a context names."""
    dynamo = pytest.importorskip("transformers.exporters.exporter_dynamo")

    class Stand:
        pass

    dynamo.register_pytree_node(Stand)
    try:
        name = pytree.SUPPORTED_SERIALIZED_TYPES[Stand].serialized_type_name
        with pytest.raises(ValueError, match="Stand"):
            _pytree.loads(text(name, '{"_t": "type", "p": "antigravity:x"}'))
    finally:
        pytree._deregister_pytree_node(Stand)


def test_names_of_keyword_arguments():
    spec = pytree.tree_structure(((1,), {"mask": 2, "ids": 3}))
    assert _pytree.keyword_names(pytree.treespec_dumps(spec)) == ["mask", "ids"]
    with pytest.raises(ValueError, match="keyword arguments"):
        _pytree.keyword_names(pytree.treespec_dumps(pytree.tree_structure(1)))


LOADER = """
import sys
import graft
graft.load(sys.argv[1]).close()  # what loading imports once
events = []
sys.addaudithook(lambda event, args: event in ("import", "open", "exec", "compile") and events.append((event, args[0])))
for path in sys.argv[2:]:
    events.clear()
    try:
        graft.load(path)
    except graft.InvalidProgram as e:
        print("refused:", e)
    assert not [e for e in events if e[0] != "open" or e[1] != path], events
assert "antigravity" not in sys.modules
"""


class Named(torch.nn.Module):
    def forward(self, x):
        return {"name" * 100: x + 1}


def test_a_package_imports_opens_and_runs_nothing(tmp_path):
    """Its own file aside, which the engine opens by itself."""
    good = graft.export(Named(), (torch.ones(1, 2),), path=tmp_path / "good.pte")
    spec = graft.load(good).forward.info["out_spec"].encode()
    paths = [good]
    for i, hostile in enumerate(
        (
            text("builtins.dict", f"[{ENUM}]", [LEAF]),
            text("collections.defaultdict", {**FACTORY, "dict_context": ["a"]}, [LEAF]),
        )
    ):
        paths.append(tmp_path / f"hostile{i}.pte")
        data = good.read_bytes()
        assert spec in data
        paths[-1].write_bytes(data.replace(spec, hostile.encode().ljust(len(spec))))
    run = subprocess.run([sys.executable, "-c", LOADER, *paths], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 2 and "enumeration" in lines[0] and "antigravity.x" in lines[1], lines
    assert all("method 'forward': its out_spec cannot be read" in line for line in lines)


def test_mutated_specs_are_refused_or_read():
    counts = pytree_fuzzer.run(5_000)
    assert counts["read"] > 1000 and counts["refused"] > 1000, counts


def test_a_spec_that_is_nested_too_deeply_is_refused():
    node = LEAF
    for _ in range(900):
        node = {"type": "builtins.list", "context": "null", "children_spec": [node]}
    with pytest.raises(ValueError, match="nested too deeply|maximum recursion"):
        _pytree.loads(pytree_fuzzer.dumps([1, node]))
