"""The folder of trained models and recordings that some tests use; tests skip what is not there."""

import os
from pathlib import Path

DATA = Path(os.environ.get("GRAFT_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
