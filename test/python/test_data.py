"""The folder of trained models and recordings that some tests use; tests skip what is not there."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

DATA = Path(os.environ.get("GRAFT_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def networks() -> ModuleType:
    """The networks that its weights are of; skips where there are none."""
    if not (DATA / "nets.py").exists():
        pytest.skip("no networks in ../shared/data, and GRAFT_TEST_DATA names no folder that has them")
    spec = importlib.util.spec_from_file_location("test_data_nets", DATA / "nets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
