"""Every architecture under `graft.compile`, against eager PyTorch; and `docs/hugging-face-models.md`, which the run writes
(GRAFT_WRITE_DOCS=1) or compares."""

import copy
import os
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AttentionInterface, masking_utils

import graft
import architectures
import llm_models
from graft.hf import causal
from graft.llm import interface

CLOSE = 1e-4  # relative to the largest logit
ALL = (*llm_models.MODELS, *architectures.MORE)
QUICK = {"qwen3", "gemma2", "gpt_oss", "mistral"}  # the others are in hf_generate_test.py, or slow
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "hugging-face-models.md"
pytestmark = pytest.mark.usefixtures("one_thread")
_results = {}


def difference(expected, found):
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(expected, found, strict=True))


def compare(model, compiled):
    """Differences of the logits of a left-padded batch of 2, of its prompt and of 8 steps, and whether beams agree."""
    ids, mask, _, _ = llm_models.left_padded(2, 20, (0, 7))
    results = []
    for one in (model, compiled):
        options = dict(attention_mask=mask, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
        made = one.generate(ids, **options, return_dict_in_generate=True, output_logits=True)
        results.append((made.logits, one.generate(ids, **options, num_beams=3)))
    (expected, beams), (found, same) = results
    return difference(expected[:1], found[:1]), difference(expected[1:], found[1:]), torch.equal(beams, same)


@pytest.mark.parametrize(
    "small", [pytest.param(m, id=m.name, marks=[] if m.name in QUICK else [pytest.mark.slow]) for m in ALL]
)
def test_architecture(small):
    model = small.make()
    prompt, steps, beams = compare(model, graft.compile(copy.deepcopy(model), threads=1))
    _results[small.name] = (type(model).__name__, "yes", "")
    assert prompt <= CLOSE and steps <= CLOSE and beams, (prompt, steps, beams)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "reason"), [pytest.param(*entry, id=entry[0].name) for entry in architectures.REFUSED]
)
def test_refused_architecture(small, reason):
    model = transformers.AutoModelForCausalLM.from_config(small.config()).eval()
    with pytest.raises(graft.Unsupported) as caught:
        graft.compile(model, release_weights=True)  # which only the fast route takes
    said = str(caught.value).split("and this is none: ")[1]
    assert reason in said
    line = next(line for line in said.splitlines() if reason in line)
    _results[small.name] = (type(model).__name__, "no", line.strip().removeprefix("graft.compile: "))


@pytest.mark.slow
def test_the_table():
    """Runs last; says what the run above has shown."""
    names = {small.name for small in ALL} | {small.name for small, _ in architectures.REFUSED}
    if set(_results) != names:
        pytest.skip("needs all tests of this file")
    rows = [f"| `{name}` | {kind} | {works} | {why} |" for name, (kind, works, why) in sorted(_results.items())]
    count = sum(works == "yes" for _, works, _ in _results.values())
    text = (
        f"""# Architectures on the fast route of `graft.compile`

Written by `test/python/hf/architectures_test.py` (`GRAFT_WRITE_DOCS=1 pytest --slow test/python/hf/architectures_test.py`)
with transformers {transformers.__version__}: small models with random weights, a left-padded batch of two. "yes" means that
the logits of the prompt and of each step differ from eager PyTorch's by at most 1e-4 of the largest, and that three beams
find the same tokens. {count} of {len(_results)} do; the others take the general route
([`hugging-face.md`](hugging-face.md#two-routes), [`hugging-face-causal-models.md`](hugging-face-causal-models.md)).

| model type | class | compiles | why not |
|---|---|---|---|
"""
        + "\n".join(rows)
        + "\n"
    )
    assert count >= 30
    if os.environ.get("GRAFT_WRITE_DOCS"):
        DOCUMENT.write_text(text)
    assert DOCUMENT.read_text() == text


# --- omitted parts are detected ---


def _without(name):
    """The attention of graft that forgets something."""

    def attention(module, query, key, value, attention_mask, **kwargs):
        if name in ("window", "chunk"):
            attention_mask = interface.Visible()
        elif name == "softcap":
            kwargs["softcap"] = None
        elif name == "sinks":
            kwargs["s_aux"] = None
        return interface._attention(module, query, key, value, attention_mask, **kwargs)

    return attention


@pytest.mark.parametrize(
    ("what", "model"),
    [("padding", "qwen3"), ("window", "mistral"), ("chunk", "mistral"), ("softcap", "gemma2"), ("sinks", "gpt_oss")],
)
@pytest.mark.parametrize("left_out", [False, True])
def test_what_is_left_out_is_noticed(what, model, left_out, monkeypatch, tmp_path):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))  # these programs are wrong
    small = llm_models.BY_NAME[model]
    if what == "chunk":  # transformers' models with chunks have complex numbers, so one with windows gets chunks
        module = transformers.models.mistral.modeling_mistral
        monkeypatch.setattr(module, "create_sliding_window_causal_mask", masking_utils.create_chunked_causal_mask)
    eager = small.make()
    eager.config.attention_chunk_size = 6
    if left_out and what == "padding":
        monkeypatch.setattr(causal, "real_columns", lambda *_, **__: None)
    elif left_out:
        AttentionInterface.register(interface.NAME, _without(what))
    try:
        if left_out:  # the probe sees it, or the check of windows
            with pytest.raises(graft.Error, match="expected the logits of eager PyTorch|cached steps differ"):
                graft.compile(copy.deepcopy(eager), threads=1, release_weights=True)  # of the fast route alone
            return
        compiled = graft.compile(copy.deepcopy(eager), threads=1)
    finally:
        AttentionInterface.register(interface.NAME, interface._attention)
    ids, mask, positions, _ = llm_models.left_padded(2, 20, (0, 7))
    with torch.no_grad():
        logits = [m(ids, attention_mask=mask, position_ids=positions).logits[mask == 1] for m in (eager, compiled)]
    assert difference(*([one] for one in logits)) <= CLOSE
