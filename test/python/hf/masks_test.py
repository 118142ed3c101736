"""Attention masks as callers and `generate()` hand them over, against eager PyTorch."""

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

import graft
import llm_models

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def models(request):
    small = llm_models.BY_NAME[request.param]
    return small.make(), graft.compile(small.make(), threads=1)


def logits(models, ids, **options):
    with torch.no_grad():
        return [model(ids, **options).logits for model in models]


def close(results, real):
    expected, found = (result[real] for result in results)
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("rows", [
    [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]],
    [[1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]],
    [[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]],
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_padding_on_either_side(models, rows, dtype):
    mask = torch.tensor(rows)
    ids = torch.randint(3, llm_models.VOCAB, mask.shape, generator=torch.Generator().manual_seed(1))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    close(logits(models, ids, attention_mask=mask.to(dtype), position_ids=positions), mask == 1)
    kept = logits(models, ids, attention_mask=mask, position_ids=positions, logits_to_keep=torch.tensor([6, 2]))
    close(kept, mask[:, [6, 2]] == 1)


def masks_of(model, ids, mask, positions, cache=None):
    """The dict of 4-D masks that models make of a 2-D one."""
    model.config._attn_implementation = "sdpa"  # has bool masks; those of "eager" are added to the scores
    embeds = torch.zeros(*ids.shape, 1)
    made = dict(
        config=model.config, inputs_embeds=embeds, attention_mask=mask, past_key_values=cache, position_ids=positions
    )
    result = {"full_attention": create_causal_mask(**made)}
    if getattr(model.config, "sliding_window", None):
        result["sliding_attention"] = create_sliding_window_causal_mask(**made)
    model.config._attn_implementation = "eager"
    return result


@pytest.mark.parametrize("as_floats", [False, True])
def test_masks_of_four_dimensions(models, as_floats):
    ids, mask, positions, _ = llm_models.left_padded(3, 12, (0, 2, 6))
    made = masks_of(models[0], ids, mask, positions)
    added = {k: torch.zeros(m.shape).masked_fill(~m, torch.finfo(torch.float32).min) for k, m in made.items()}
    with torch.no_grad():
        expected = models[0](ids, attention_mask=added, position_ids=positions).logits
        found = models[1](ids, attention_mask=added if as_floats else made, position_ids=positions).logits
        close((expected, found), mask == 1)
        if len(made) == 1:
            found = models[1](ids, attention_mask=made["full_attention"], position_ids=positions).logits
            close((expected, found), mask == 1)


def test_padding_of_earlier_calls_stays(models):
    ids, mask, positions, _ = llm_models.left_padded(2, 10, (0, 4))
    longer = torch.cat([mask, torch.tensor([[1, 1], [0, 1]])], 1)  # and more padding in between
    following = (longer.cumsum(1) - 1)[:, -2:]
    results = []
    for model in models:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
            results.append(
                model(ids[:, :2], attention_mask=longer, position_ids=following, past_key_values=cache).logits
            )
    if "sliding_attention" in (models[0].config.layer_types or ()):
        # Eager windows count columns, padding in between included; graft's count tokens. Rows without such padding are
        # equal.
        close(results, torch.tensor([[True, True], [False, False]]))
    else:
        close(results, torch.tensor([[True, True], [False, True]]))


def test_masks_that_say_more(models):
    """The general route computes them."""
    compiled = models[1]
    ids, mask, positions, _ = llm_models.left_padded(2, 8, (0, 3))
    prefix = {kind: torch.ones(2, 1, 8, 8, dtype=torch.bool) for kind in masks_of(models[0], ids, mask, positions)}
    close(logits(models, ids, attention_mask=prefix), torch.ones(2, 8, dtype=torch.bool))
    if len(prefix) == 1:
        close(logits(models, ids, attention_mask=prefix["full_attention"]), torch.ones(2, 8, dtype=torch.bool))


def test_masks_that_cannot_be(models):
    compiled = models[1]
    ids, mask, positions, _ = llm_models.left_padded(2, 8, (0, 3))
    cache = DynamicCache()
    compiled(ids, attention_mask=mask, past_key_values=cache)
    with pytest.raises(graft.Unsupported, match="compute them again"):
        compiled(ids[:, :1], attention_mask=torch.ones(2, 9), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match=r"expected \[2, 9\]"):
        compiled(ids[:, :1], attention_mask=torch.ones(2, 1), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match="2 or 4 dimensions"):
        compiled(ids, attention_mask=torch.ones(2, 8, 8))
    with pytest.raises(graft.InvalidArgument, match="position_ids"):
        compiled(ids, position_ids=torch.zeros(3, 2, 8, dtype=torch.long))


def test_columns_of_padding_after_tokens(models):
    """Eager PyTorch lets them see the tokens. Where weights were quantized, they are not numbers."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
    ids = torch.randint(3, llm_models.VOCAB, mask.shape, generator=torch.Generator().manual_seed(1))
    seen = mask.cumsum(1) > 0
    close(logits(models, ids, attention_mask=mask), seen)
    close(logits(models, ids, attention_mask=mask, logits_to_keep=1), seen[:, -1:])
    quantized = graft.compile(copy.deepcopy(models[0]), threads=1, quantize="q8_0")
    found = quantized(ids, attention_mask=mask).logits
    assert torch.equal(found.isnan().all(2), torch.tensor([[0, 0, 0, 0, 0, 1, 1], [0] * 7]).bool())
    assert torch.equal(found.isnan().any(2), found.isnan().all(2))
    last = quantized(ids, attention_mask=mask, logits_to_keep=1).logits
    assert torch.equal(last.isnan().all(2), torch.tensor([[True], [False]]))
    labels = ids.masked_fill(mask == 0, -100)[1:]
    losses = [model(ids[1:], attention_mask=mask[1:], labels=labels).loss for model in models]
    assert abs(losses[0] - losses[1]) <= CLOSE * losses[0]


def test_windows_and_padding_between_tokens():
    """Windows of transformers count columns."""
    small = llm_models.BY_NAME["mistral"]  # a window of 7
    eager, compiled = small.make(), graft.compile(small.make(), threads=1)
    ids = torch.randint(3, llm_models.VOCAB, (2, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[1, 3:5] = 0
    for columns in (7, 14):  # within the window, and beyond it
        options = dict(attention_mask=mask[:, :columns], logits_to_keep=torch.tensor([0, 2, 5, 6, columns - 1]))
        options["position_ids"] = options["attention_mask"].cumsum(1) - 1
        kept = options["attention_mask"][:, options["logits_to_keep"]] == 1
        close(logits((eager, compiled), ids[:, :columns], **options), kept)
        assert compiled.graft.stats()["general_calls"] == (columns == 14)
    mask[1, :3] = 0  # on the left alone
    options = dict(attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    close(logits((eager, compiled), ids, **options), mask == 1)
