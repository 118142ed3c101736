"""Prompts beyond what a configuration states, and rotary frequencies that follow from a prompt's length: as eager PyTorch
computes them, or an error that says why not."""

import copy

import pytest
import torch
import transformers
from transformers import DynamicCache

import graft
import llm_models
from llm_models import _COMMON, _LLAMA, _SEQ2SEQ, _of

STATED = 16  # max_position_embeddings
CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


def rope(kind, **own):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **own}}


_SHORT = dict(_LLAMA, max_position_embeddings=STATED)
_FACTORS = dict(short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[2.0, 5.0, 9.0, 14.0])
_LONGROPE = rope("longrope", original_max_position_embeddings=STATED, partial_rotary_factor=1.0, **_FACTORS)
_PHI3 = dict(_COMMON, num_key_value_heads=2, intermediate_size=80, max_position_embeddings=64)
CONFIGS = {
    "default": _of("Llama", _SHORT),
    "windowed": _of("Mistral", _SHORT, sliding_window=7),
    "linear": _of("Llama", _SHORT, **rope("linear", factor=3.0)),
    "yarn": _of("Qwen3", _SHORT, **rope("yarn", factor=2.0, original_max_position_embeddings=8)),
    "llama3": _of(
        "Llama",
        _SHORT,
        **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8),
    ),
    "longrope": _of("Phi3", _PHI3, original_max_position_embeddings=STATED, **_LONGROPE),
    "dynamic": _of("Llama", _SHORT, **rope("dynamic", factor=2.0)),
}
ANY_LENGTH = [name for name in CONFIGS if name != "dynamic"]


def random(config, kind=None):
    config._attn_implementation = "eager"
    torch.manual_seed(4)
    model = (kind or transformers.AutoModelForCausalLM.from_config)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if "embed" in name else 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.randn_like(parameter) * scale if parameter.dim() > 1 else 1 + 0.2 * torch.randn_like(parameter))
    return model.requires_grad_(False)


def pair(name, **options):
    eager = random(CONFIGS[name]())
    return eager, graft.compile(copy.deepcopy(eager), threads=1, **options)


def ids(tokens, rows=2):
    return torch.randint(3, llm_models.VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def close(expected, found):
    assert found.shape == expected.shape
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


def generated(model, prompt, **options):
    options = dict(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0, **options)
    made = model.generate(prompt, **options, return_dict_in_generate=True, output_logits=True)
    return made.sequences, torch.stack(made.logits, 1)


def steps(model, before, after):
    """Logits of a prompt and of three steps after it."""
    cache = DynamicCache(config=model.config)
    return torch.cat(
        [model(ids(n), past_key_values=cache, use_cache=True).logits for n in (before, after, 1, 1)], 1
    )


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_any_length(name):
    eager, compiled = pair(name)
    for tokens in (1, STATED - 1, STATED, STATED + 1, 3 * STATED):
        close(eager(ids(tokens)).logits, compiled(ids(tokens)).logits)
    _, mask, _, _ = llm_models.left_padded(3, 2 * STATED, (0, 5, STATED))
    options = {"attention_mask": mask}
    real = mask == 1
    close(eager(ids(2 * STATED, 3), **options).logits[real], compiled(ids(2 * STATED, 3), **options).logits[real])
    for before, after in ((STATED - 4, 9), (STATED + 3, 5), (STATED - 2, 1)):
        close(steps(eager, before, after), steps(compiled, before, after))
    for prompt in (STATED - 5, STATED + 5):
        expected, found = (generated(model, ids(prompt)) for model in (eager, compiled))
        assert torch.equal(expected[0], found[0])
        close(expected[1], found[1])


def test_the_lengths_change_the_frequencies():
    """A negative control: what the tests above would not notice otherwise."""
    eager = random(CONFIGS["longrope"]())
    other = copy.deepcopy(eager)
    other.config.rope_parameters["long_factor"] = other.config.rope_parameters["short_factor"]
    short, long = ids(STATED), ids(STATED + 1)
    assert torch.equal(eager(short).logits, other(short).logits)
    difference = (eager(long).logits - other(long).logits).abs().max()
    assert difference > 100 * CLOSE * eager(long).logits.abs().max()


def test_longrope_in_chunks():
    """Each token turns by the length of its call of the model, which is more than that of a chunk."""
    eager, compiled = pair("longrope", buckets=(4, 12))
    for tokens in (3, 9, STATED):
        close(eager(ids(tokens)).logits, compiled(ids(tokens)).logits)
    with pytest.raises(graft.Unsupported, match="'longrope': expected a prompt of more than 16 tokens in one call.*found 17"):
        compiled(ids(STATED + 1))
    _, wide = pair("longrope", buckets=(4, 40))
    close(eager(ids(STATED + 9)).logits, wide(ids(STATED + 9)).logits)


def test_dynamic_up_to_the_stated_length():
    eager, compiled = pair("dynamic")
    for tokens in (1, STATED - 1, STATED):
        close(eager(ids(tokens)).logits, compiled(ids(tokens)).logits)
    close(steps(eager, 5, 4), steps(compiled, 5, 4))
    expected, found = (generated(model, ids(4)) for model in (eager, compiled))
    assert torch.equal(expected[0], found[0])
    close(expected[1], found[1])
    for one in (compiled, copy.deepcopy(compiled)):
        with pytest.raises(graft.Unsupported, match="rope_type 'dynamic': expected positions below 16, found 16"):
            one(ids(STATED + 1))
        with pytest.raises(graft.Unsupported, match="rope_type 'dynamic'"):
            generated(one, ids(10))
        close(eager(ids(STATED)).logits, one(ids(STATED)).logits)


def test_dynamic_after_eager_calls():
    """What eager PyTorch left in the module from a longer prompt plays no part."""
    eager = random(CONFIGS["dynamic"]())
    expected = eager(ids(9)).logits
    eager(ids(3 * STATED))
    close(expected, graft.compile(copy.deepcopy(eager), threads=1)(ids(9)).logits)


_OLD = dict(vocab_size=llm_models.VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=STATED)
_DECODER = dict(_SEQ2SEQ, encoder_layers=2, decoder_layers=2, is_decoder=True, max_position_embeddings=STATED)
TABLES = {
    "gpt2": (_of("GPT2", _OLD), None),
    "opt": (_of("OPT", {**_COMMON, "max_position_embeddings": STATED}, ffn_dim=80, word_embed_proj_dim=48), None),
    "bart": (_of("Bart", _DECODER), transformers.BartForCausalLM),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_positions_end(name):
    config, kind = TABLES[name]
    eager = random(config(), kind)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    close(eager(ids(STATED)).logits, compiled(ids(STATED)).logits)
    close(steps(eager, 9, STATED - 11), steps(compiled, 9, STATED - 11))
    message = f"position_ids: expected positions below {STATED}, for which .* has embeddings, found {STATED}"
    for call in (lambda model: model(ids(STATED + 1)), lambda model: steps(model, 9, STATED - 9)):
        with pytest.raises(IndexError):
            call(eager)
        with pytest.raises(graft.InvalidArgument, match=message):
            call(compiled)
    with pytest.raises(graft.InvalidArgument, match=message):
        compiled.generate(ids(STATED - 3), max_new_tokens=9, do_sample=False, eos_token_id=None)
    close(eager(ids(STATED)).logits, compiled(ids(STATED)).logits)  # the engine still works


class Sliced(transformers.LlamaForCausalLM):
    """Adds zeros of a buffer, which has so many, to the positions."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("zeros", torch.zeros(1, config.max_position_embeddings, dtype=torch.long))

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        if position_ids is not None:
            position_ids = position_ids + self.zeros[:, : input_ids.shape[1]]
        return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)


def test_code_that_bounds_the_length(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    eager = random(CONFIGS["default"](), Sliced)
    for from_disk in (False, True):
        compiled = graft.compile(copy.deepcopy(eager), threads=1)
        assert compiled.graft.stats()["compiled"]["from_disk"] == from_disk
        close(eager(ids(STATED)).logits, compiled(ids(STATED)).logits)
        with pytest.raises(graft.InvalidArgument, match="expected at most 16 tokens in one call, .* Sliced .* found 17"):
            compiled(ids(STATED + 1))


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_static_programs_are_refused(name):
    """PyTorch would run them, and keep the frequencies of one call for the next."""
    with pytest.raises(graft.Unsupported, match=f"export_static: .*found rope_type '{name}' in"):
        graft.hf.export_static(random(CONFIGS[name]()), 2 * STATED, (8,))
