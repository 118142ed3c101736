"""No class of transformers for another task than going on with a text is wrong without a word: each is exact, or refused by
name."""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers

import tasks
from population_test import _difference, _first, counted

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "hugging-face-tasks.md"
SAMPLE = ("BertForMaskedLM",)  # conditional_test.py has models of encoder and decoder and of pictures
RESULTS = ("exact", "refused", "untested", "no model")
pytestmark = pytest.mark.usefixtures("one_thread")
_results = {}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SAMPLE else [pytest.mark.slow]) for n in tasks.CLASSES]
)
def test_a_class(name):
    found = _results[name] = tasks.compare(name)
    if found.result == "no model":
        pytest.skip(found.why)
    assert found.result in ("exact", "refused"), found
    if name in SAMPLE and not os.environ.get("GRAFT_WRITE_DOCS"):
        assert _rows(DOCUMENT.read_text())[name][2] == found.result, "write the table again, as it says"


def test_a_difference_would_show():
    """A negative control: another bias in the compiled model's twin."""

    def change(model):
        with torch.no_grad():
            model.cls.predictions.bias[0] += 0.01

    found = tasks.compare("BertForMaskedLM", change)
    assert found.result == "wrong" and "padded" in found.why


def test_the_document():
    """It has all classes of this version of transformers, and says what its rows say."""
    text = DOCUMENT.read_text()
    assert f"transformers {transformers.__version__}:" in text
    rows = _rows(text)
    assert {name: tuple(row[:2]) for name, row in rows.items()} == tasks.CLASSES
    assert table(rows) == text and {row[2] for row in rows.values()} <= set(RESULTS)


@pytest.mark.slow
def test_the_table():
    """Runs last."""
    counted(_results, write)


def write(results):
    """Puts the rows of these results into the document, which has all classes then."""
    rows = _rows(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
    rows = {name: rows.get(name, [*tasks.CLASSES[name], "untested", "", ""]) for name in tasks.CLASSES}
    for name, found in results.items():
        why = _first(found.why).replace("|", "\\|").replace("`", "'")[:160].rstrip() if found.why else ""
        rows[name] = [*tasks.CLASSES[name], found.result, _difference(found), why]
    DOCUMENT.write_text(table(rows))


def _rows(text):
    """By class: task, model type, result, difference, why."""
    lines = [line.removeprefix("| ").removesuffix(" |") for line in text.splitlines() if line.count(" | ") == 5]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines if not line.startswith(("class", "task"))]
    return {name: rest for name, *rest in cells}


def table(rows):
    counts = {task: Counter(row[2] for row in rows.values() if row[0] == task) for task in tasks.TASKS}
    summary = "".join(f"| {task} | {' | '.join(str(of[result]) for result in RESULTS)} |\n" for task, of in counts.items())
    lines = "\n".join(f"| {' | '.join([name, *row])} |" for name, row in sorted(rows.items()))
    return f"""# Other tasks than text generation under `graft.compile`

Written by `test/python/hf/tasks_test.py` (`GRAFT_WRITE_DOCS=1 pytest --slow test/python/hf/tasks_test.py`, with `-k` the rows of some
classes) with transformers {transformers.__version__}: classes of its auto mappings, small, with random weights, each under the first task that
has it. "exact": all results of calls of other batches and lengths, and of texts padded on either side, differ from eager PyTorch's by at most
1e-4 of the largest, or less from its results in float64 than its own in float32 do; of models that generate, the logits of 16 greedy steps too, and three beams find the same tokens. "refused": by an error
that says why. "untested": no run of this test yet. "no model": eager PyTorch does not run the class at these sizes.

| task | {" | ".join(RESULTS)} |
|---|{"---:|" * len(RESULTS)}
{summary}
| class | task | model type | result | difference | why |
|---|---|---|---|---|---|
{lines}
"""
