"""How models number their tokens: taken as the model does it, or refused when the model is compiled."""

import copy
import functools
import types

import pytest
import torch
import transformers
from transformers import DynamicCache

import graft
import llm_models
from graft.hf import program
from llm_models import _COMMON, _SEQ2SEQ, SmallModel, _of

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")

_ENCODER = dict(_COMMON, intermediate_size=80, is_decoder=True)
_DECODER = dict(_SEQ2SEQ, encoder_layers=3, decoder_layers=3, is_decoder=True, max_position_embeddings=llm_models.CONTEXT)


def decoder(name, **own):
    def make():
        config = _of(name, _DECODER, **own)()
        config._attn_implementation = "eager"
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return make


def encoder(name, **own):
    return lambda: getattr(transformers, f"{name}ForCausalLM")(_of(name, _ENCODER, **own)())


# From the ids (Roberta's way), and by column from the length of the cache (Bart's).
FAMILIES = {
    "roberta": encoder("Roberta"),
    "camembert": encoder("Camembert"),
    "xlm_roberta": encoder("XLMRoberta"),
    "xlm_roberta_xl": encoder("XLMRobertaXL"),
    "data2vec": encoder("Data2VecText"),
    "roberta_prelayernorm": encoder("RobertaPreLayerNorm"),
    "opt": llm_models.BY_NAME["opt"].make,
    "bart": decoder("Bart"),
    "mbart": decoder("MBart"),
    "marian": decoder("Marian"),
    "pegasus": decoder("Pegasus"),
    "plbart": decoder("PLBart"),
    "blenderbot": decoder("Blenderbot"),
    "blenderbot_small": decoder("BlenderbotSmall"),
}
QUICK = {"roberta", "bart", "marian", "opt"}


def make(name):
    torch.manual_seed(3)
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.requires_grad_(False)


def close(expected, found, mask=None):
    if mask is not None:
        expected, found = expected[mask == 1], found[mask == 1]
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAMILIES]
)
def test_positions_as_the_model_makes_them(name):
    eager = make(name)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    ids, mask, positions, _ = llm_models.left_padded(3, 13, (0, 4, 0))
    mask[2, 9:] = 0
    ids[0, 5] = ids[1, 2] = ids[2, 12] = 0  # the id of padding, as a token and as padding
    with torch.no_grad():
        close(eager(ids).logits, compiled(ids).logits)
        close(eager(ids, attention_mask=mask).logits, compiled(ids, attention_mask=mask).logits, mask)
        found = []
        for model in (eager, compiled):
            cache = DynamicCache(config=model.config)
            model(ids[:2], attention_mask=mask[:2], past_key_values=cache, use_cache=True)
            longer = torch.cat([mask[:2], torch.ones(2, 4, dtype=torch.long)], 1)
            first = model(ids[:2, :3], attention_mask=longer[:, :-1], past_key_values=cache, use_cache=True).logits
            second = model(ids[:2, 3:4], attention_mask=longer, past_key_values=cache, use_cache=True).logits
            found.append(torch.cat([first, second], 1))
    close(*found)
    for rows in (slice(0, 1), slice(0, 2)):
        options = dict(attention_mask=mask[rows], max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
        options.update(return_dict_in_generate=True, output_logits=True)
        expected, made = eager.generate(ids[rows], **options), compiled.generate(ids[rows], **options)
        assert torch.equal(expected.sequences, made.sequences)
        close(torch.stack(expected.logits), torch.stack(made.logits))


def test_moshi_is_refused_by_the_fast_route():
    """Eager PyTorch's cached steps differ from its own full pass."""
    config = transformers.MoshiConfig(
        **dict(_COMMON, num_key_value_heads=6, ffn_dim=80, head_dim=8, audio_vocab_size=50), num_codebooks=2
    )
    torch.manual_seed(0)
    model = transformers.MoshiForCausalLM(config).eval()
    with pytest.raises(graft.Error, match="MoshiForCausalLM: expected layer 0 to see no more tokens.*cached steps"):
        graft.compile(model, release_weights=True)  # which only the fast route takes
    assert type(model) is transformers.MoshiForCausalLM and not hasattr(model, "graft")


def lying(name, change):
    model = llm_models.BY_NAME[name].make()
    change(model)
    return model


def reversed_positions(model):
    """None that graft knows."""
    kind = type(model)

    class Backwards(kind):
        def forward(self, input_ids=None, position_ids=None, **kwargs):
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1]).flip(0)[None]
            return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)

    model.__class__ = Backwards


def test_unknown_positions_must_be_given():
    eager = lying("llama", reversed_positions)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    ids, mask, positions, _ = llm_models.left_padded(2, 9, (0, 3))
    with pytest.raises(graft.InvalidArgument, match="position_ids: expected.*Backwards"):
        compiled(ids)
    with torch.no_grad():
        expected = eager(ids, attention_mask=mask, position_ids=positions).logits
    close(expected, compiled(ids, attention_mask=mask, position_ids=positions).logits, mask)


def blind_to_padding(model):
    layer = model.model.layers[1].self_attn
    before = type(layer).forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        if isinstance(attention_mask, torch.Tensor):  # in eager PyTorch alone
            attention_mask = torch.zeros_like(attention_mask)
        return before(self, hidden_states, position_embeddings, attention_mask, **kwargs)

    layer.forward = types.MethodType(forward, layer)


def cache_that_counts_twice(model):
    kind = type(model)

    class Twice(kind):
        def forward(self, input_ids=None, past_key_values=None, position_ids=None, **kwargs):
            """Sees that there are tokens in a cache, which the trace does not."""
            if position_ids is not None and past_key_values is not None and past_key_values.get_seq_length():
                position_ids = position_ids * 2
            return super().forward(
                input_ids=input_ids, past_key_values=past_key_values, position_ids=position_ids, **kwargs
            )

    model.__class__ = Twice


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (blind_to_padding, "LlamaForCausalLM: expected the logits of eager PyTorch .*found a difference of"),
        (cache_that_counts_twice, "Twice: .*padded on the left and a cached step"),
    ],
)
def test_what_does_not_agree_is_refused(change, message, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    model = lying("llama", change)
    for _ in range(2):  # from disk too
        with pytest.raises(graft.Unsupported, match=message):
            graft.compile(model, release_weights=True)  # which only the fast route takes


def test_what_does_not_agree_takes_the_general_route(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    eager = lying("llama", cache_that_counts_twice)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    assert compiled.graft.route == "general"
    ids, mask, *_ = llm_models.left_padded(2, 9, (0, 3))
    options = dict(attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(eager.generate(ids, **options), compiled.generate(ids, **options))


def test_the_verdict_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    calls = []
    eager = llm_models.BY_NAME["opt"].make()
    real = program.run_eagerly
    monkeypatch.setattr(program, "run_eagerly", lambda *args, **own: calls.append(1) or real(*args, **own))
    for _ in range(2):
        compiled = graft.compile(copy.deepcopy(eager), threads=1)
        assert len(calls) == 1 and compiled.graft.positions == "mask"
        assert compiled.graft.stats()["plans"] == [] and compiled.graft.stats()["runs"] == 0
    # Weights that make everything equal prove nothing.
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path / "zeros"))
    zeros = copy.deepcopy(eager)
    with torch.no_grad():
        zeros.lm_head.weight.zero_()
    graft.compile(zeros)
    graft.compile(copy.deepcopy(eager))
    assert len(calls) == 3


def test_the_cost_of_the_probe(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    tokens = []
    real = program.run_eagerly

    def counted(*args, **own):
        run = real(*args, **own)
        return lambda calls: tokens.append([call["input_ids"].numel() for call in calls]) or run(calls)

    monkeypatch.setattr(program, "run_eagerly", counted)
    graft.compile(llm_models.BY_NAME["llama"].make())
    assert tokens == [[6, 12, 12], [1, 2]]


def test_a_model_that_keeps_something_of_a_call_in_itself(tmp_path, monkeypatch):
    """Calls that go through it together disturb each other; then they run one after the other.
    Only linear layers whose weights are converted wait for other calls."""
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))

    def keeping(model):
        rows = [0]
        layer = model.model.layers[1].self_attn
        before = type(layer).forward

        class Keeping(type(model)):
            @functools.wraps(type(model).forward)
            def forward(self, input_ids=None, **kwargs):
                rows[0] = input_ids.shape[0]
                return super().forward(input_ids=input_ids, **kwargs)

        def forward(self, hidden_states, *args, **kwargs):
            if rows[0] != hidden_states.shape[0]:
                raise ValueError("of another call")
            return before(self, hidden_states, *args, **kwargs)

        layer.forward = types.MethodType(forward, layer)
        model.__class__ = Keeping

    together = []
    real = program.run_eagerly
    monkeypatch.setattr(program, "run_eagerly", lambda *args, **own: together.append(own["together"]) or real(*args, **own))
    compiled = graft.compile(lying("llama", keeping).bfloat16(), threads=1)
    assert compiled.graft.route == "fast" and together == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_compared_in_f32(dtype):
    model = llm_models.BY_NAME["gemma3"].make().to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compiled = graft.compile(model, threads=1)
    assert all(p.dtype == dtype for p in compiled.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in compiled.state_dict().items())
    assert all(not m._forward_pre_hooks for m in compiled.modules())


def test_float64_is_refused():
    model = llm_models.BY_NAME["llama"].make().double()
    config = transformers.BertConfig(**{**_COMMON, "intermediate_size": 80})
    for one in (model, transformers.BertModel(config).eval().double()):
        with pytest.raises(graft.Unsupported, match="float64.*model.float()"):
            graft.compile(one)
        assert not hasattr(one, "graft")
