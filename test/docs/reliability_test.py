"""The tables of docs/reliability.md: made from what tests print, and there."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "docs" / "reliability.py"))
LOG = """noise
FAULTS load | memory | 1200 | 1100
FAULTS load | memory_every | 3 | 3
FAULTS load | file_EIO_every | 5 | 4
FAULTS binding | new_bad_alloc | 7 | 7
FAULTS binding | new_json | 9 | 8
FAULTS server | socket_EIO | 4 | 3
.FAULTS command line, run | all | 2 | 1
KILLS SessionFile | 200
..KILLS compile cache | 100
"""


def test_faults_by_operation_and_layer():
    assert TOOL["faults"](LOG).splitlines() == [
        "| operation | memory | foreign exceptions | files | sockets | threads |",
        "|---|---:|---:|---:|---:|---:|",
        "| load | 1,203 (1,103) |  | 5 (4) |  |  |",
        "| binding | 7 (7) | 9 (8) |  |  |  |",
        "| server |  |  |  | 4 (3) |  |",
        "| command line, run (all layers) | 2 (1) |  |  |  |  |",
        "| **all: 1,230, of which 1,126 were errors** | | | | | |",
    ]
    assert TOOL["kills"](LOG).splitlines()[2:] == ["| SessionFile | 200 |", "| compile cache | 100 |"]


def test_executions_are_added_up():
    table = TOOL["executions"]("ir 5\ngguf 1000\nir 10\n").splitlines()
    assert table[2:] == ["| ir | 15 |", "| gguf | 1,000 |", "| **all** | 1,015 |"]


def test_tables_have_one_place_each():
    document = (ROOT / "docs" / "reliability.md").read_text()
    for name in ("faults", "kills", "executions"):
        assert "TABLE" in TOOL["put"](document, name, "TABLE")
    with pytest.raises(SystemExit, match="0 places"):
        TOOL["put"](document, "nothing", "")
