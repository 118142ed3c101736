"""Another default dtype of torch changes nothing."""

import copy

import pytest
import torch

import graft
import llm_models

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def default(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64], indirect=True)
@pytest.mark.parametrize("name", ["qwen3", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_a_default_dtype(default, name, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    torch.set_default_dtype(torch.float32)
    eager = llm_models.BY_NAME[name].make()
    ids, mask, _, _ = llm_models.left_padded(2, 12, (0, 4))
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    options.update(return_dict_in_generate=True, output_logits=True)
    expected = eager.generate(ids, **options)
    torch.set_default_dtype(default)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    for _ in range(2):
        found = compiled.generate(ids, **options)
        assert torch.equal(expected.sequences, found.sequences)
        for a, b in zip(expected.logits, found.logits):
            assert b.dtype == torch.float32 and (a - b).abs().max() <= CLOSE * a.abs().max()
    keys = found.past_key_values.layers[0].keys
    expected_keys = expected.past_key_values.layers[0].keys
    assert keys.dtype == torch.float32
    assert keys.shape == expected_keys.shape  # of a layer with a window: those of its last tokens
    held = found.past_key_values.get_seq_length()
    tokens = torch.cat([mask, torch.ones(2, held - 12, dtype=torch.long)], 1)[:, -keys.shape[2] :].bool()
    a, b = (side.transpose(1, 2)[tokens] for side in (expected_keys, keys))
    assert (a - b).abs().max() <= CLOSE * a.abs().max()


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], indirect=True)
def test_an_encoder(default):
    import transformers

    torch.set_default_dtype(torch.float32)
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    eager = transformers.BertModel(config).eval().requires_grad_(False)
    ids = torch.arange(12).reshape(2, 6)
    expected = eager(ids)[0]
    torch.set_default_dtype(default)
    found = graft.compile(copy.deepcopy(eager))(ids)[0]
    assert found.dtype == torch.float32 and (expected - found).abs().max() <= CLOSE * expected.abs().max()
