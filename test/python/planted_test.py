"""The table of planted bugs is complete, and what is installed has none of them. `make planted` plants them."""

import importlib
import re
from pathlib import Path

import pytest

from graft import _C

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "test"))
    return importlib.import_module("planted_bugs")


def test_every_bug_in_the_sources_is_in_the_table(planted):
    assert set(planted.planted_in_source()) == set(planted.BUGS)


def test_every_test_in_the_table_is_there(planted):
    cpp = "".join(path.read_text() for path in (ROOT / "src").rglob("*_test.cpp"))
    for test in planted.BUGS.values():
        if planted.is_pytest(test):
            file, name = test.split("::")
            assert re.search(rf"^def {name.split('[')[0]}\(", (ROOT / file).read_text(), re.MULTILINE), test
        else:
            suite, name = test.split(".")
            assert re.search(rf"TEST(_F|_P)?\({suite}, {name}\)", cpp), test


def test_the_library_in_use_has_no_planted_bug(planted):
    here = Path(_C.__file__).resolve().parent
    maps = Path("/proc/self/maps")
    loaded = re.findall(r"\S*/libgraft\.so\S*", maps.read_text()) if maps.exists() else []
    library = Path(loaded[0]) if loaded else here / "lib" / "libgraft.so"
    content = library.read_bytes()
    assert [name for name in planted.BUGS if name.encode() in content] == []
