"""The C++ SDK inside the Python package: examples/cpp, built against what `python -m graft --cmake-prefix` prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import graft

ROOT = Path(__file__).resolve().parents[3]


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


class Line(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


@pytest.fixture(scope="module")
def cmake():
    found = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")
    if found is None:
        pytest.skip("no CMake")
    return found


@pytest.fixture(scope="module")
def prefix():
    return run(sys.executable, "-m", "graft", "--cmake-prefix").strip()


def test_an_example_is_built_against_the_package(cmake, prefix, tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler to build examples/cpp with")
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", tmp_path / "build")
    assert f"graft_DIR:PATH={prefix}/" in (tmp_path / "build" / "CMakeCache.txt").read_text()
    graft.export(Line(), (torch.zeros(3),), path=tmp_path / "line.pte")
    assert run(tmp_path / "build" / "run_model", tmp_path / "line.pte") == "f32[3] 1 ...\n"


def test_another_version_is_refused(cmake, prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.28)\nproject(p LANGUAGES NONE)\nfind_package(graft 7.1 REQUIRED)\n"
    )
    command = [cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode != 0 and "7.1" in done.stderr and graft.version() in done.stderr, done.stderr


def test_the_command_line():
    assert run(sys.executable, "-m", "graft", "--version") == run(Path(sys.executable).parent / "graft", "--version")
