"""Every page of docs/tutorials does what it shows."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import tutorial

sys.path.pop(0)

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SLOW = {"generate"}  # it compiles a model and exports it twice


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    """The C++ install, where this tree has a build."""
    build = ROOT / "build" / "release"
    if not (build / "cmake_install.cmake").exists():
        pytest.skip("no build in build/release")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    prefix = tmp_path_factory.mktemp("sdk")
    cmake = Path(sys.executable).with_name("cmake")
    command = [cmake, "--install", build, "--component", "sdk", "--prefix", prefix]
    subprocess.run(command, check=True, capture_output=True)
    return prefix


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in SLOW)) for page in PAGES]
)
def test_tutorial(page, tmp_path, request):
    environment = {"GRAFT_SDK": str(request.getfixturevalue("sdk"))} if "GRAFT_SDK" in page.read_text() else {}
    try:
        assert tutorial.run(page, tmp_path, environment) >= 2
    finally:  # a server that a page starts does not outlive it where the page fails
        for file in tmp_path.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


def test_all_front_doors_have_one():
    assert {"python", "command-line", "cpp", "executorch", "generate", "server"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a 12 ms\nb\n", "a ... ms\nb\n", True),
        ("a 12 s\nb\n", "a ... ms\nb\n", False),
        ("x\ny\nz\n", "x\n...\nz\n", True),
        ("x\n", "x\ny\n", False),
        ("a.b\n", "a-b\n", False),
    ],
)
def test_output_is_compared(printed, shown, same):
    assert tutorial.agrees(printed, shown) is same


def test_a_page_that_shows_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 2\n```\n\n```python\nprint(x + 1)\n```\n\n```output\n3\n```\n")
    assert tutorial.run(page, tmp_path) == 1
    page.write_text("```python\nprint(4)\n```\n\n```output\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:6 shows\n3"):
        tutorial.run(page, tmp_path)
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="page.md:2"):
        tutorial.run(page, tmp_path)
    page.write_text("```toml\nx = 1\n```\n")
    with pytest.raises(AssertionError, match="nothing runs a block 'toml'"):
        tutorial.run(page, tmp_path)
