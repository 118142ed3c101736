"""Pages of docs/ on other engines do what they show, with a small model in the place of a large one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "test" / "python" / "docs"))
import tutorial

sys.path.pop(0)


@pytest.fixture
def folder(tmp_path, stories, minilm, net):
    for file, name in ((stories, "qwen3.pte"), (minilm[0], "minilm.pte"), (minilm[1], "tokenizer.json"), (net, "net.pte")):
        shutil.copy(file, tmp_path / name)
    yield tmp_path
    for file in tmp_path.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


def need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package}: pip install -r requirements/engines.txt")


def test_router(folder):
    need("smg")
    assert tutorial.run(ROOT / "docs" / "router.md", folder) == 3


def test_ray(folder, monkeypatch):
    need("ray")
    # Where others use the CPUs too, Serve's proxy takes long to start.
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    assert tutorial.run(ROOT / "docs" / "ray.md", folder) == 4


def test_spark_and_daft(folder, monkeypatch):
    need("pyspark", "daft")
    if shutil.which("java") is None:
        pytest.skip("no java, which Spark needs")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    assert tutorial.run(ROOT / "docs" / "data-engines.md", folder) == 4
