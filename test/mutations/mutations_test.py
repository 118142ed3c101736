"""The mutations still apply to the sources, and name tests that exist. `make mutations` runs them."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest


def _load():
    path = Path(__file__).with_name("mutations.py")
    spec = importlib.util.spec_from_file_location("graft_mutations", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutations = _load()
ALL = mutations.load()


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_mutation_applies(mutation):
    text = (mutations.ROOT / mutation.file).read_text()
    assert mutation.apply(text) != text
    assert len({test.count("::") for test in mutation.tests}) == 1, "tests of one kind"


def test_every_test_that_must_notice_is_there():
    assert mutations.missing_tests(ALL) == []


def test_a_mutation_that_does_not_apply_is_refused():
    one = ALL[0]
    text = (mutations.ROOT / one.file).read_text()
    with pytest.raises(ValueError, match="found 0 times"):
        one.apply(text.replace(one.find, ""))
    with pytest.raises(ValueError, match="found 2 times"):
        one.apply(text + one.find)
    with pytest.raises(ValueError, match="changes nothing"):
        dataclasses.replace(one, replace=one.find).apply(text)


def test_a_test_that_is_gone_is_noticed():
    gone = ("Session.NoSuchTest", "src/op/aten/view_test.py::test_no_such", "test/python/no_such_test.py::test_permute")
    assert mutations.missing_tests([dataclasses.replace(ALL[0], tests=(*gone, *ALL[0].tests))]) == list(gone)


def test_a_name_is_used_once(tmp_path):
    table = '[[mutation]]\nname = "a"\nfile = "b"\nfind = "c"\nreplace = "d"\ntests = ["E.F"]\n'
    (tmp_path / "one.toml").write_text(table)
    assert [mutation.name for mutation in mutations.load(tmp_path)] == ["a"]
    (tmp_path / "two.toml").write_text(table)
    with pytest.raises(ValueError, match="two mutations are named 'a'"):
        mutations.load(tmp_path)
