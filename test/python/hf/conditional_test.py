"""Models whose texts go on from a source or a picture: generate() on graft gives eager PyTorch's tokens and logits."""

import copy
import pickle

import pytest
import torch
import transformers

import graft
from population import random_weights

pytestmark = pytest.mark.usefixtures("one_thread")
_SIZES = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
_TEXT = dict(_SIZES, head_dim=12, vocab_size=199, max_position_embeddings=128, pad_token_id=0)
PICTURE = 5


def t5():
    config = transformers.T5Config(
        d_model=48, d_kv=12, d_ff=64, num_layers=2, num_heads=4, vocab_size=199, decoder_start_token_id=1, pad_token_id=0
    )
    return _random(transformers.T5ForConditionalGeneration, config)


def llava():
    vision = transformers.CLIPVisionConfig(**_SIZES, image_size=16, patch_size=8)
    config = transformers.LlavaConfig(vision_config=vision, text_config=transformers.LlamaConfig(**_TEXT), image_token_index=PICTURE)
    return _random(transformers.LlavaForConditionalGeneration, config)


def gemma3():
    vision = transformers.SiglipVisionConfig(**_SIZES, image_size=32, patch_size=8)
    text = transformers.Gemma3TextConfig(**_TEXT, sliding_window=8)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, image_token_index=PICTURE, mm_tokens_per_image=4)
    return _random(transformers.Gemma3ForConditionalGeneration, config)


def qwen25_vl():
    vision = dict(
        depth=2, hidden_size=48, intermediate_size=64, num_heads=4, out_hidden_size=48, patch_size=8, window_size=32,
        spatial_merge_size=2, temporal_patch_size=2, fullatt_block_indexes=[1],
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=dict(_TEXT, rope_parameters=rope), vision_config=vision, image_token_id=PICTURE, video_token_id=6,
        vision_start_token_id=7, vision_end_token_id=8,
    )  # fmt: skip
    return _random(transformers.Qwen2_5_VLForConditionalGeneration, config)


def _random(kind, config):
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    return random_weights(kind(config).eval()).requires_grad_(False)


def _ids(rows, tokens, features=0):
    ids = torch.randint(20, 199, (rows, tokens + features), generator=torch.Generator().manual_seed(tokens))
    ids[:, 3 : 3 + features] = PICTURE
    return ids


def _generated(model, **given):
    options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    made = model.generate(**given, **options, return_dict_in_generate=True, output_logits=True)
    return torch.stack(made.logits), made.sequences


def _check(model, compiled, **given):
    logits, tokens = _generated(model, **given)
    found, same = _generated(compiled, **given)
    assert torch.equal(tokens, same)
    assert float((logits - found).abs().max()) <= 1e-4 * float(logits.abs().max())


def test_a_source():
    model = t5()
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    assert compiled.graft.route == "general" and compiled.get_encoder().graft is not compiled.graft
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    _check(model, compiled, input_ids=_ids(2, 9), attention_mask=mask)
    made = compiled.graft.counts["traced"]
    _check(model, compiled, input_ids=_ids(3, 14), attention_mask=torch.ones(3, 14, dtype=torch.long))
    assert compiled.graft.counts["traced"] == made  # of any length
    again = pickle.loads(pickle.dumps(compiled))
    assert again.graft.route == "general" and again.get_encoder().graft is not again.graft
    _check(model, again, input_ids=_ids(2, 9), attention_mask=mask)


@pytest.mark.slow
def test_a_picture():
    model = llava()
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    ids = _ids(2, 9, features=4)
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    _check(model, compiled, pixel_values=torch.randn(2, 3, 16, 16), **given)
    _check(model, compiled, pixel_values=torch.randn(2, 3, 16, 16), **given)
    made = compiled.graft.counts["traced"]
    assert made == 2  # of a prompt and of a step
    assert compiled.model.graft.stats()["get_image_features"]["traced"] == 1
    ids = _ids(2, 7)  # a text alone
    _check(model, compiled, input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.slow
def test_sizes_of_pictures():
    """Each has a program of its own, whose code reads the sizes; steps share one."""
    model = qwen25_vl()
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    for rows, columns in ((4, 4), (4, 6), (4, 4)):
        features = rows * columns // 4
        ids = _ids(2, 9, features)
        pixels = torch.randn(2 * rows * columns, 3 * 2 * 8 * 8)
        grid = torch.tensor([[1, rows, columns]] * 2)
        given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == PICTURE).long())
        _check(model, compiled, pixel_values=pixels, image_grid_thw=grid, **given)
    assert compiled.graft.counts["traced"] <= 4


@pytest.mark.slow
def test_texts_alone_and_with_pictures():
    """Gemma 3 is a model for texts too, which the fast route takes; calls with pictures go to the general one."""
    model = gemma3()
    ids = _ids(2, 9, features=4)
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=(ids == PICTURE).long())
    given["pixel_values"] = torch.randn(2, 3, 32, 32)
    fast = graft.compile(copy.deepcopy(model), threads=1)
    assert fast.graft.route == "fast"
    _check(model, fast, **given)
    quantized = graft.compile(copy.deepcopy(model), threads=1, quantize="q8_0")
    with pytest.raises(graft.InvalidArgument, match="takes no argument 'pixel_values'; .*route='general'"):
        quantized(ids, pixel_values=given["pixel_values"])
    _check(model, graft.compile(copy.deepcopy(model), threads=1, route="general"), **given)


def test_routes():
    model = t5()
    with pytest.raises(graft.InvalidArgument, match="expected the route 'fast' or 'general', found 'quick'"):
        graft.compile(model, route="quick")
    with pytest.raises(graft.Unsupported, match="goes on from more than a text, which only the general route does"):
        graft.compile(model, route="fast")
    with pytest.raises(graft.Unsupported, match="quantize: only models of the fast route take it"):
        graft.compile(model, quantize="q8_0")
    encoder = _random(transformers.BertModel, transformers.BertConfig(**_SIZES, vocab_size=199))
    with pytest.raises(graft.InvalidArgument, match="route is for models that generate"):
        graft.compile(encoder, route="general")
