"""Builds examples/executorch once per test run."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "examples" / "executorch"


@functools.cache
def build() -> Path:
    """The folder of the programs. Skips the test where the machine cannot build it."""
    here = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=os.pathsep.join([str(here), os.environ.get("PATH", "")]))
    if cmake is None or (shutil.which("c++") or shutil.which("g++")) is None:
        pytest.skip("no CMake or no C++ compiler to build examples/executorch with")
    folder = tempfile.mkdtemp(prefix="graft_example_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    configure = [cmake, "-S", str(SOURCE), "-B", folder, f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (configure, [cmake, "--build", folder]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Path(folder)


def run(*arguments: object, program: str = "run_module") -> subprocess.CompletedProcess[str]:
    command = [str(build() / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)
