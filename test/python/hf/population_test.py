"""No causal class of transformers is wrong without a word: each is exact, or refused by name."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest
import transformers

import population

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "hugging-face-causal-models.md"
# Always the same, of each way that a class numbers its tokens. general_test.py has the general route's.
SAMPLE = ("bart", "bert", "cohere2", "gpt2", "olmo3", "qwen3", "roberta")
pytestmark = pytest.mark.usefixtures("one_thread")
_results = {}

# Every refusal is in words of graft's own and is one of these: what is missing, and how its error says so.
CAUSES = {
    "attention outside transformers' AttentionInterface": "does not use transformers' AttentionInterface",
    "layers of another kind than attention": "expected layers of attention, found [a-z_, ]+$",
    "layers that do not attend once each": "expected one attention through transformers' AttentionInterface in each of",
    "an operator": r"\b(aten|torchvision|prims)\.\w+",
    "code that no program holds": r"cannot be traced: (its code|[\w.<>]+ \([\w.]+, line \d+: `.*`\)) (decides|makes|admits|calls|reads|raises)",
    "keys and values that the model itself reads": "expected a model that reads its cache through attention alone",
    "a mask of another kind": "expected (masks that are|the mask of graft|a causal mask|causal attention)",
    "sizes that depend on data, beside a cache": "has a cache of keys and values and sizes that depend on data",
    "keys of another layer": "expected keys and values of its own",
    "a cache that keeps less than the mask shows": "expected layer .* to see no more tokens than transformers' cache",
    "another computation than eager PyTorch's": "expected (the logits of|what) eager PyTorch",
    "sizes that its code decides by": "expected a program for the sizes",
}


def cause(why):
    """The first that the error names; None: it is not in graft's words."""
    return next((name for name, says in CAUSES.items() if re.search(says, _first(why))), None)


def _first(why):
    """The first line, and where it announces a list, the first of that."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines[0].endswith("found") else lines[0]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in SAMPLE else [pytest.mark.slow]) for k in population.CLASSES]
)
def test_a_class(kind):
    found = _results[kind] = population.compare(kind)
    if found.result == "no model":
        pytest.skip(found.why)
    assert found.result in ("exact", "refused"), found
    assert found.result == "exact" or cause(found.why), found.why
    if kind in SAMPLE and not os.environ.get("GRAFT_WRITE_DOCS"):
        written = _cells(DOCUMENT.read_text())[kind]
        assert _lasting(written) == _lasting(_row(found)), "write the table again, as it says"


def _cells(text):
    """The rows of the document by model type: class, result, route, positions, difference, what is missing."""
    rows = [line.removeprefix("| ").removesuffix(" |") for line in text.splitlines() if line.count(" | ") >= 6]
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows if not row.startswith("model type")]
    return {kind: rest for kind, *rest in cells}


def _lasting(cells):
    """All but the difference, which is not the same on all machines."""
    return [*cells[:4], *cells[5:]]


def test_a_difference_would_show(monkeypatch):
    """A negative control: a wrong rule for the positions."""

    def change(model):
        model.graft.positions = "columns"

    found = population.compare("roberta", change)
    assert found.result == "wrong" and "forward of 7" in found.why and "generation" not in found.why


def test_the_document():
    """It has all classes of this version of transformers, and says what its rows say."""
    text = DOCUMENT.read_text()
    assert len(text) < 100_000 and f"transformers {transformers.__version__}:" in text
    cells = _cells(text)
    assert {kind: row[0] for kind, row in cells.items()} == population.CLASSES
    assert table(cells) == text
    assert {row[1] for row in cells.values()} <= {"exact", "refused", "untested", "no model"}
    assert all((row[1] == "exact") == (row[2] in ("fast", "general")) for row in cells.values())
    assert all(cause(row[5]) for row in cells.values() if row[1] == "refused")


@pytest.mark.slow
def test_the_table():
    """Runs last."""
    counted(_results, write)


def counted(results, write):
    """Prints the counts, and writes the rows of the classes that ran (GRAFT_WRITE_DOCS=1)."""
    counts = Counter(found.result for found in results.values())
    print(counts)
    assert counts["wrong"] == counts["error"] == 0
    if os.environ.get("GRAFT_WRITE_DOCS"):
        write(results)


def write(results):
    """Puts the rows of these results into the document."""
    cells = _cells(DOCUMENT.read_text())
    cells.update({kind: _row(found) for kind, found in results.items()})
    DOCUMENT.write_text(table(cells))


def _row(found):
    name = population.CLASSES[found.kind]
    return [name, found.result, found.route, found.positions, _difference(found), _said(found)]


def table(cells):
    counts = Counter(row[1] for row in cells.values())
    routes = Counter(row[2] for row in cells.values() if row[2])
    causes = Counter(cause(row[5]) for row in cells.values() if row[1] == "refused")
    missing = "".join(f"| {name} | {n} |\n" for name, n in sorted(causes.items(), key=lambda item: (-item[1], item[0])))
    missing = f"| what is missing | classes |\n|---|---:|\n{missing}\n" if causes else ""
    rows = "\n".join(f"| {' | '.join([kind, *row])} |" for kind, row in sorted(cells.items()))
    return f"""# Causal classes of transformers under `graft.compile`

Written by `test/python/hf/population_test.py` (`GRAFT_WRITE_DOCS=1 pytest --slow test/python/hf/population_test.py`, with `-k` the
rows of some classes) with transformers {transformers.__version__}: each class of MODEL_FOR_CAUSAL_LM_MAPPING, small, with random weights.
"exact": prompts of 1, 7 and 64 tokens without padding and padded on either side, cached steps and 16 greedy steps differ from eager
PyTorch's logits by at most 1e-4 of the largest, or less from those in float64 than its own in float32. "refused": by an error that says why. "untested": the fast route refuses it and the general
route takes it up, without a run of this test yet. "no model": eager PyTorch does not run the
class at these sizes. "route": fast or general ([`hugging-face.md`](hugging-face.md#two-routes)). "positions": how a class of the fast
route numbers tokens when it is given no `position_ids` (`graft.hf.probe`).

Exact: {counts["exact"]} (fast: {routes["fast"]}, general: {routes["general"]}), refused: {counts["refused"]}, untested: {counts["untested"]}, no model: {counts["no model"]}.

{missing}| model type | class | result | route | positions | difference | what is missing |
|---|---|---|---|---|---|---|
{rows}
"""


def _difference(found):
    return f"{max(found.differences.values()):.0e}" if found.differences else ""


def _said(found):
    if found.result == "exact":
        return ""
    return _first(found.why).replace("|", "\\|")[:200].rstrip()
