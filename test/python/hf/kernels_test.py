"""Loops over tokens in transformers' models, which a trace replaces by graft's operators: the same functions, for prompts of
any length."""

import copy
import importlib
import operator

import pytest
import torch
from torch.utils._pytree import tree_leaves

import graft
from graft.llm import kernels
from llm_models import _COMMON, _LLAMA, VOCAB, SmallModel, _of

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")

_DELTA = dict(_LLAMA, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
MODELS = {
    "delta rule": SmallModel("qwen3_5", _of("Qwen3_5Text", _DELTA, architecture="Qwen3_5ForCausalLM", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])),
    "selective scan": SmallModel("mamba", _of("Mamba", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=1, state_size=8, time_step_rank=4))),
    "diagonal scan": SmallModel("recurrent_gemma", _of("RecurrentGemma", {**_COMMON, "num_hidden_layers": 2}, intermediate_size=96, block_types=["recurrent", "attention"], tie_word_embeddings=False)),
    "wkv": SmallModel("rwkv", _of("Rwkv", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, rescale_every=1))),
}  # fmt: skip


def _random(*sizes):
    return torch.randn(sizes)


def _delta_arguments(tokens, per_key, state):
    keys, heads = 8, 4
    g = -_random(2, tokens, heads, *([keys] if per_key else [])).abs()
    beta = _random(2, tokens, heads).sigmoid()
    groups = heads if per_key else 2
    query, key = (_random(2, tokens, groups, keys) for _ in range(2))
    given = dict(query=query, key=key, value=_random(2, tokens, heads, 6), g=g, beta=beta)
    first = _random(2, heads, keys, 6) if state else None
    return dict(given, initial_state=first, output_final_state=True, use_qk_l2norm_in_kernel=True)


def _mamba2_arguments(tokens, state):
    heads, rows, size, groups = 4, 6, 8, 2
    given = dict(
        hidden_states=_random(2, tokens, heads, rows),
        dt=_random(2, tokens, heads),
        A=-_random(heads).exp(),
        B=_random(2, tokens, groups, size),
        C=_random(2, tokens, groups, size),
        D=_random(heads),
        dt_bias=_random(heads),
        initial_states=_random(2, heads, rows, size) if state else None,
    )
    return dict(given, chunk_size=16, dt_softplus=True, dt_limit=(0.01, 5.0), return_final_states=True)


def _mamba_arguments(tokens):
    channels, size = 12, 8
    given = dict(hidden_states=_random(2, channels, tokens), dt=_random(2, channels, tokens), A=-_random(channels, size).exp())
    given.update(B=_random(2, size, tokens), C=_random(2, size, tokens), D=_random(channels), z=_random(2, channels, tokens))
    return dict(given, delta_bias=_random(channels), delta_softplus=True, return_last_state=True)


def _rg_lru_arguments(tokens, state):
    channels = 12
    given = dict(hidden_states=_random(2, tokens, channels), recurrent_gate=_random(2, tokens, channels).sigmoid())
    reset = torch.zeros(2, tokens, 1, dtype=torch.bool)
    reset[1, tokens // 2] = True
    return dict(given, self=None, reset=reset, recurrent_states=_random(2, channels) if state else None)


def _wkv_arguments(tokens, state):
    channels = 12
    given = dict(time_decay=_random(channels), time_first=_random(channels), key=_random(2, tokens, channels))
    before = [_random(2, channels), 1 + _random(2, channels).sigmoid(), _random(2, channels)] if state else None
    return dict(given, value=_random(2, tokens, channels), state=before, return_state=True)


CASES = {
    ("qwen3_next", "torch_chunk_gated_delta_rule"): lambda n, state: _delta_arguments(n, False, state),
    ("kimi_linear", "chunk_kimi_delta_attention"): lambda n, state: _delta_arguments(n, True, state),
    ("mamba2", "mamba2_chunk_scan"): _mamba2_arguments,
    ("mamba", "mamba_selective_scan"): lambda n, state: _mamba_arguments(n),
    ("recurrent_gemma", "RecurrentGemmaRglru._rnn_scan"): _rg_lru_arguments,
    ("rwkv", "rwkv_linear_attention"): _wkv_arguments,
}


@pytest.mark.parametrize("model, name", CASES)
@pytest.mark.parametrize("tokens, state", [(1, True), (7, False), (70, True)])
def test_a_function(model, name, tokens, state):
    """transformers' own and ours, both in eager PyTorch."""
    torch.manual_seed(tokens)
    own = operator.attrgetter(name)(importlib.import_module(f"transformers.models.{model}.modeling_{model}"))
    assert kernels._takes_the_place_of(own, kernels.FUNCTIONS[name])
    arguments = CASES[model, name](tokens, state)
    both = tree_leaves(own(**arguments)), tree_leaves(kernels.FUNCTIONS[name](**arguments))
    for expected, found in zip(*both, strict=True):
        assert expected.shape == found.shape and expected.dtype == found.dtype
        assert float((expected - found).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("kind", "name"),
    [("selective scan", "mamba_selective_scan"), ("diagonal scan", "RecurrentGemmaRglru._rnn_scan")],
)
def test_names_are_back_after_a_trace(kind, name):
    model, find = MODELS[kind].make(), operator.attrgetter(name)
    file = importlib.import_module(type(model).__module__)
    own = find(file)
    with pytest.raises(ZeroDivisionError):
        with kernels.in_place(model):
            assert find(file) is not own
            1 / 0
    assert find(file) is own


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "selective scan" else [pytest.mark.slow]) for name in MODELS]
)
def test_one_program_for_all_lengths(name):
    eager = MODELS[name].make()
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    assert compiled.graft.route == "general"
    ids = {n: torch.randint(3, VOCAB, (2, n), generator=torch.Generator().manual_seed(n)) for n in (9, 70, 33)}
    for _ in range(2):  # the second one finds what the first has left in the model's modules
        compiled(ids[9], use_cache=True)
    traced = compiled.graft.stats()["traced"]
    for one in ids.values():
        expected, found = (model(one, use_cache=True).logits for model in (eager, compiled))
        assert float((expected - found).abs().max()) <= CLOSE * float(expected.abs().max())
    assert compiled.graft.stats()["traced"] == traced
    options = dict(max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(eager.generate(ids[9], **options), compiled.generate(ids[9], **options))
