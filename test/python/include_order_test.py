"""The stages of src/ are layers: a source includes headers of its own folder and of those before it, nothing else."""

import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
LAYERS = (
    "base ir weight package kernel lowering op pass plan device exec load session flow text audio image stage llm serve batch cli python executorch"
).split()


def is_test(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.startswith(("test_", "fuzz_")) or "_test." in name or "_test_util." in name


def includes() -> list[tuple[str, str]]:
    sources = (p for p in SRC.rglob("*") if p.suffix in (".h", ".cpp") and p.relative_to(SRC).parts[0] in LAYERS)
    pairs = ((str(p.relative_to(SRC)), h) for p in sources for h in re.findall(r'^#include "(.+)"', p.read_text(), re.M))
    return [(source, header) for source, header in pairs if header.split("/")[0] in LAYERS]


def test_every_folder_is_a_layer():
    assert {p.name for p in SRC.iterdir() if p.is_dir()} <= set(LAYERS)


def test_a_source_includes_only_what_lies_below_it():
    def layer(path):
        return LAYERS.index(path.split("/")[0])

    # A test of a low layer may build a whole session to see the layer's effect in it.
    upwards = {(s, h) for s, h in includes() if layer(h) > layer(s) and not is_test(s)}
    assert upwards == set()


def test_only_tests_include_helpers_of_tests():
    assert [(s, h) for s, h in includes() if is_test(h) and not is_test(s)] == []


def test_values_of_json_are_those_that_are_freed_without_memory():
    """nlohmann::json allocates in its destructor; and all sources must see what base/json.h specializes."""
    other = re.compile(r"nlohmann/json|nlohmann::(ordered_)?json\b")
    sources = (p for p in SRC.rglob("*") if p.suffix in (".h", ".cpp"))
    found = [str(p.relative_to(SRC)) for p in sources if other.search(p.read_text())]
    assert sorted(found) == ["base/json.h", "base/json_fwd.h"]


def test_planner_and_launch_passes_include_no_family_of_kernels():
    def names_a_family(source, header):
        return source.startswith(("plan/", "pass/launch/")) and re.match(r"kernel/\w+/", header) and not is_test(source)

    # Chains are made of elementwise launches and are an elementwise kernel themselves.
    found = [(s, h) for s, h in includes() if names_a_family(s, h)]
    assert found == [("pass/launch/fuse_chains.cpp", "kernel/elementwise/elementwise.h")]
