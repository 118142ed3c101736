"""The general route of `graft.compile`: attention that a model computes itself, states of convolutions and recurrences,
layers with two caches. Calls, caches and generation are those of eager PyTorch."""

import copy
import warnings

import pytest
import torch
import transformers

import graft
import llm_models
from graft.hf import general, traced
from llm_models import _EXPERTS, VOCAB, SmallModel, _of

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")

_OWN = dict(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=6)
_DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
_STATE = dict(mamba_d_ssm=96, mamba_n_heads=8, mamba_d_head=12, mamba_n_groups=2, mamba_d_state=8)
MODELS = {
    "own attention": SmallModel("bloom", _of("Bloom", _OWN)),
    "states of convolutions": SmallModel(
        "lfm2_moe",
        _of(
            "Lfm2Moe",
            _EXPERTS,
            num_hidden_layers=2,
            layer_types=["conv", "full_attention"],
            num_experts=4,
            num_dense_layers=1,
            moe_intermediate_size=24,
        ),
    ),
    "states of recurrences": SmallModel("mamba2", _of("Mamba2", dict(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=1, num_heads=8, head_dim=12, state_size=8, n_groups=2, chunk_size=16
    ))),
    "two caches in a layer": SmallModel("falcon_h1", _of("FalconH1", dict(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        intermediate_size=64, mamba_chunk_size=16, **_STATE,
    ))),
}  # fmt: skip
_compiled = {}


def pair(name):
    """The model and its compiled twin, which the tests of a process share."""
    if name not in _compiled:
        eager = MODELS[name].make()
        _compiled[name] = eager, graft.compile(copy.deepcopy(eager), threads=1)
        assert _compiled[name][1].graft.route == "general"
    return _compiled[name]


def ids_of(rows, tokens):
    return torch.randint(3, VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def close(expected, found):
    assert expected.shape == found.shape and expected.dtype == found.dtype
    assert float((expected - found).abs().max()) <= CLOSE * float(expected.abs().max())


def padded(rows, tokens):
    mask = torch.ones(rows, tokens, dtype=torch.long)
    mask[1, :3] = 0
    return mask


@pytest.mark.parametrize("name", MODELS)
def test_generation(name):
    eager, compiled = pair(name)
    options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    for more in (dict(), dict(num_beams=3), dict(attention_mask=padded(2, 8))):
        assert torch.equal(eager.generate(ids_of(2, 8), **options, **more), compiled.generate(ids_of(2, 8), **options, **more))


@pytest.mark.parametrize("name", MODELS)
def test_calls_and_the_cache(name):
    eager, compiled = pair(name)
    results = []
    for model in (eager, compiled):
        first = model(ids_of(2, 8), use_cache=True)
        held = "cache_params" if "cache_params" in first else "past_key_values"
        cache = first[held]
        kept = copy.deepcopy(cache)
        second = model(ids_of(2, 1), use_cache=True, **{held: cache})
        assert second[held] is cache
        cache.reorder_cache(torch.tensor([1, 0]))
        third = model(ids_of(2, 1), use_cache=True, **{held: cache})
        again = model(ids_of(2, 1), use_cache=True, **{held: kept})
        close(second.logits, again.logits)
        results.append((type(cache), first.logits, second.logits, third.logits))
    assert results[0][0] is results[1][0]
    for expected, found in zip(results[0][1:], results[1][1:]):
        close(expected, found)


def test_one_program_for_all_lengths():
    eager, compiled = pair("own attention")
    compiled(ids_of(2, 5))
    before = compiled.graft.stats()["traced"]
    for rows, tokens in ((1, 4), (3, 17), (2, 40)):
        close(eager(ids_of(rows, tokens)).logits, compiled(ids_of(rows, tokens)).logits)
    stats = compiled.graft.stats()
    assert stats["traced"] == before and stats["route"] == "general" and len(stats["programs"]) == before
    # Once more where the batch is 1, which code may be written for.
    assert sum(one["calls"] for one in stats["programs"]) == stats["calls"] + stats["compared"]


def test_a_cache_that_is_cropped():
    eager, compiled = pair("own attention")
    results = []
    for model in (eager, compiled):
        cache = model(ids_of(2, 9), use_cache=True).past_key_values
        cache.crop(-3)
        assert cache.get_seq_length() == 6
        results.append(model(ids_of(2, 1), past_key_values=cache).logits)
    close(*results)


def test_errors_leave_it_usable():
    eager, compiled = pair("own attention")
    ids = ids_of(2, 6)
    with pytest.raises(graft.InvalidArgument, match=r"input_ids: expected \[batch, tokens\], found \[6\]"):
        compiled(ids[0])
    with pytest.raises(graft.Error):
        compiled(torch.full_like(ids, VOCAB + 5))
    compiled.train()
    with pytest.raises(graft.Unsupported, match="training mode"):
        compiled(ids)
    compiled.eval()
    close(eager(ids).logits, compiled(ids).logits)


def test_other_weights():
    eager = MODELS["own attention"].make()
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    with torch.no_grad():
        for model in (eager, compiled):
            model.transformer.h[0].mlp.dense_h_to_4h.weight.mul_(1.5)
    close(eager(ids_of(2, 6)).logits, compiled(ids_of(2, 6)).logits)
    assert compiled.graft.stats()["reloaded"] == 1
    compiled.transformer.h[1].register_forward_hook(lambda *_: None)
    with pytest.raises(graft.Unsupported, match="hook .* was changed after graft.compile"):
        compiled(ids_of(2, 6))


def test_halves_are_computed_in_f32():
    eager = MODELS["own attention"].make().to(torch.bfloat16)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    assert compiled.dtype == torch.bfloat16
    close(eager.float()(ids_of(2, 6)).logits, compiled(ids_of(2, 6)).logits)


@pytest.mark.parametrize("kind", ["a state that is not written", "a program that computes something else"])
def test_a_broken_program_is_found(kind, monkeypatch):
    """Negative controls of the comparison with eager PyTorch."""
    if kind == "a state that is not written":
        real = general.build

        def build(structure, tensors, numbers, into=(), made=None):
            result = real(structure, tensors, numbers, into, made)
            for one in into:
                if isinstance(getattr(one, "keys", None), torch.Tensor):
                    one.keys = torch.zeros_like(one.keys)
            return result

        monkeypatch.setattr(general, "build", build)
        message = "expected the logits of eager PyTorch within .*found a difference of .* in a prompt and 3 steps"
    else:
        real = traced._Call.forward

        def forward(self, tensors, numbers):
            made = real(self, tensors, numbers)
            return [made[0] * 1.1, *made[1:]]

        monkeypatch.setattr(traced._Call, "forward", forward)
        message = "expected what eager PyTorch gives on input_ids .*found a difference of"
    model = MODELS["own attention"].make()
    with pytest.raises(graft.Unsupported, match=message):
        graft.compile(model)
    assert type(model) is transformers.BloomForCausalLM and not hasattr(model, "graft")


@pytest.mark.parametrize(
    "options", [dict(quantize="q8_0"), dict(max_length=64), dict(buckets=(8,)), dict(release_weights=True), dict(kv_dtype="f16")]
)
def test_options_of_the_fast_route(options):
    with pytest.raises(graft.Unsupported, match=f"{next(iter(options))}: only models of the fast route take it.*AttentionInterface"):
        graft.compile(MODELS["own attention"].make(), **options)


def test_many_programs_are_told_of(monkeypatch):
    _, compiled = pair("own attention")
    monkeypatch.setattr(general, "_MANY", 1)
    with pytest.warns(RuntimeWarning, match="BloomForCausalLM has 1 programs for calls of one kind"):
        compiled(ids_of(2, 5), output_hidden_states=True)
    monkeypatch.setattr(general, "_PROGRAMS", 1)
    before = compiled.graft.stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(ids_of(2, 5), output_attentions=True)
    assert compiled.graft.stats()["dropped"] == before["dropped"] + 1


def test_the_last_trace_says_why(monkeypatch):
    """An error is not told by what an earlier trace, with fewer values, could not hold."""
    compiled = graft.compile(MODELS["own attention"].make(), threads=1)
    errors = [graft.ExportError("of sizes"), graft.ExportError("of the grid")]

    def traced(*args):
        raise errors.pop(0)

    monkeypatch.setattr(general.GeneralEngine, "_traced", traced)
    with pytest.raises(graft.ExportError, match="of the grid") as raised:
        compiled(ids_of(1, 5), token_kinds=torch.zeros(1, dtype=torch.int64))
    assert raised.value.__context__ is None and not errors


class PerToken(transformers.BloomForCausalLM):
    """Its code asks each token for its value."""

    def forward(self, input_ids, **kwargs):
        for token in input_ids.flatten():
            if token == 0:
                raise ValueError("a token of nothing")
        return super().forward(input_ids, **kwargs)


def test_code_that_decides_for_each_token_is_refused():
    """At once, instead of a trace for each step."""
    torch.manual_seed(0)
    model = PerToken(transformers.BloomConfig(**_OWN)).eval()
    with pytest.raises(graft.Error, match="PerToken cannot be traced: its code decides by values of 12 tensors in a call of 12"):
        graft.compile(model, threads=1)(ids_of(2, 6))
