"""No causal class of transformers is wrong without a word: each is exact, or refused by name."""

import os
from collections import Counter
from pathlib import Path

import pytest
import transformers

import population

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "hugging-face-causal-models.md"
# Always the same, of each way that a class numbers its tokens, and of refused ones.
SAMPLE = ("bart", "bert", "cohere2", "gpt2", "mamba", "moshi", "olmo3", "qwen3", "roberta", "xlm")
pytestmark = pytest.mark.usefixtures("one_thread")
_results = {}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in SAMPLE else [pytest.mark.slow]) for k in population.CLASSES]
)
def test_a_class(kind):
    found = _results[kind] = population.compare(kind)
    if found.result == "no model":
        pytest.skip(found.why)
    assert found.result in ("exact", "refused"), found
    assert found.result == "exact" or found.why


def test_a_difference_would_show(monkeypatch):
    """A negative control: a wrong rule for the positions."""

    def change(model):
        model.graft.positions = "columns"

    found = population.compare("roberta", change)
    assert found.result == "wrong" and "forward of 7" in found.why and "generation" not in found.why


@pytest.mark.slow
def test_the_table():
    """Runs last; prints the counts, and writes the document (GRAFT_WRITE_DOCS=1)."""
    if set(_results) != set(population.CLASSES):
        pytest.skip("needs all tests of this file")
    text = table(_results)
    counts = Counter(found.result for found in _results.values())
    print(counts)
    assert counts["wrong"] == counts["error"] == 0 and counts["exact"] >= 90
    if os.environ.get("GRAFT_WRITE_DOCS"):
        DOCUMENT.write_text(text)


def table(results):
    counts = Counter(found.result for found in results.values())
    rows = "\n".join(
        f"| `{kind}` | {population.CLASSES[kind]} | {found.result} | {_said(found)} |"
        for kind, found in sorted(results.items())
    )
    return f"""# Causal classes of transformers under `graft.compile`

Written by `test/python/hf/population_test.py` (`GRAFT_WRITE_DOCS=1 pytest --slow test/python/hf/population_test.py`) with
transformers {transformers.__version__}: each class of MODEL_FOR_CAUSAL_LM_MAPPING, small, with random weights. "exact": prompts of
1, 7 and 64 tokens without padding and padded on either side, cached steps and 16 greedy steps differ from eager PyTorch's logits
by at most 1e-4 of the largest. "refused": by an error that says why. "no model": eager PyTorch does not run the class at these
sizes. Exact: {counts["exact"]}, refused: {counts["refused"]}, wrong: {counts["wrong"]}, no model: {counts["no model"]}.

| model type | class | result | why |
|---|---|---|---|
{rows}
"""


def _said(found):
    if found.result != "refused":
        return ""
    lines = [line.strip() for line in found.why.splitlines() if line.strip()]
    first = " ".join(lines[:2]) if lines[0].endswith("found") else lines[0]
    return first.replace("|", "\\|")[:200]
