"""Models that `graft.compile` runs without a cache: what some compute and do not give back, parts of models with encoder and
decoder, and what generates but not through transformers' attention interface."""

import copy

import pytest
import torch
import transformers
from transformers.models.t5gemma2.configuration_t5gemma2 import T5Gemma2TextConfig
from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2TextEncoder
from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperEncoder

import graft

CLOSE = 1e-4
IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.usefixtures("one_thread")

_IMAGE = dict(vocab_size=65, n_positions=64, n_embd=32, n_layer=2, n_head=4)
_IMAGEGPT = lambda: transformers.ImageGPTConfig(**_IMAGE, pad_token_id=64, bos_token_id=64, eos_token_id=64)  # noqa: E731
_SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
_WINDOWED = T5Gemma2TextConfig(**_SIZES, num_key_value_heads=2, head_dim=8, vocab_size=60, sliding_window=4, dropout_rate=0.0)
_PIXELS = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))}
_FEATURES = {"input_features": torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(3))}
_STATES = torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(4))


def clip():
    vision = dict(_SIZES, image_size=32, patch_size=8)
    text = dict(_SIZES, vocab_size=60, max_position_embeddings=20)
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


def seq2seq(name, encoder_layers=2, decoder_layers=3, **own):
    heads = dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48)
    layers = dict(d_model=32, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    tokens = dict(vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return getattr(transformers, f"{name}Config")(**heads, **layers, **tokens, **own)


def whisper(encoder_layers=2, decoder_layers=3):
    sizes = dict(num_mel_bins=8, max_source_positions=30, max_target_positions=40)
    return seq2seq("Whisper", encoder_layers, decoder_layers, **sizes)


MODELS = {
    "imagegpt": (lambda: transformers.ImageGPTModel(_IMAGEGPT()), {"input_ids": IDS}),
    "imagegpt, pixels": (lambda: transformers.ImageGPTForCausalImageModeling(_IMAGEGPT()), {"input_ids": IDS}),
    "imagegpt, classes": (lambda: transformers.ImageGPTForImageClassification(_IMAGEGPT()), {"input_ids": IDS}),
    # Its vision model computes a pooled output from weights that nothing else reads.
    "clip, classes": (lambda: transformers.CLIPForImageClassification(clip()), _PIXELS),
    "whisper's encoder": (lambda: WhisperEncoder(whisper()), _FEATURES),
    "whisper's decoder": (lambda: WhisperDecoder(whisper()), {"input_ids": IDS}),
    "a causal whisper's decoder": (lambda: transformers.WhisperForCausalLM(whisper()).model.decoder, {"input_ids": IDS}),
    "whisper's decoder beside an encoder": (
        lambda: WhisperDecoder(whisper()),
        {"input_ids": IDS, "encoder_hidden_states": _STATES},
    ),
    "whisper": (lambda: transformers.WhisperModel(whisper()), {**_FEATURES, "decoder_input_ids": IDS[:, :5]}),
    # A mask by a rule that transformers maps over batch, head, row and column with torch.vmap.
    "t5gemma2's encoder": (lambda: T5Gemma2TextEncoder(_WINDOWED), {"input_ids": IDS}),
    "bart": (lambda: transformers.BartModel(seq2seq("Bart")), {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}),
}


def close(expected, found):
    assert found.shape == expected.shape
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


def random(made):
    torch.manual_seed(0)
    return made().eval().requires_grad_(False)


@pytest.mark.parametrize("name", MODELS)
def test_calls(name):
    made, inputs = MODELS[name]
    eager = random(made)
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    for rows in (1, 2):
        some = {key: tensor[:rows] for key, tensor in inputs.items()}
        expected, found = eager(**some), compiled(**some)
        assert type(found) is type(expected)
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                close(value, found[key])


def test_generation_of_pixels():
    eager = random(MODELS["imagegpt, pixels"][0])
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    assert compiled.graft.route == "general"
    options = dict(max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(eager.generate(IDS, **options), compiled.generate(IDS, **options))
    expected, found = eager(IDS, use_cache=True), compiled(IDS, use_cache=True)
    close(expected.logits, found.logits)
    assert found.past_key_values.get_seq_length() == IDS.shape[1]


def test_a_cache_of_an_encoder_is_refused():
    compiled = graft.compile(random(MODELS["imagegpt"][0]), threads=1)
    for call in (
        lambda: compiled(IDS, past_key_values=transformers.DynamicCache()),
        lambda: compiled(IDS, use_cache=True),
    ):
        with pytest.raises(graft.Unsupported, match="a compiled ImageGPTModel keeps no cache, which generate"):
            call()


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (transformers.WhisperForCausalLM, lambda: whisper(2, 3)),
        (transformers.WhisperForCausalLM, lambda: whisper(3, 2)),
        (transformers.BartForCausalLM, lambda: seq2seq("Bart", 3, 2, is_decoder=True, max_position_embeddings=40)),
    ],
)
def test_decoders_of_another_depth_than_the_encoder(kind, config):
    """Their configurations count the encoder's layers."""
    eager = random(lambda: kind(config()))
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    assert len(compiled.graft.layers) == config().decoder_layers
    close(eager(input_ids=IDS).logits, compiled(input_ids=IDS).logits)
    results = []
    for model in (eager, compiled):
        cache = model(input_ids=IDS, use_cache=True).past_key_values
        results.append(model(input_ids=IDS[:, :2], past_key_values=cache).logits)
    close(*results)
    options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    if config().decoder_layers <= config().encoder_layers:  # else generate() of eager PyTorch has too few layers in its cache
        assert torch.equal(eager.generate(IDS, **options), compiled.generate(IDS, **options))


class Branching(transformers.BertModel):
    def forward(self, input_ids=None, **kwargs):
        if input_ids.sum() > 5:
            return super().forward(input_ids=input_ids, **kwargs)
        return super().forward(input_ids=input_ids + 7, **kwargs)


def test_code_that_decides_by_values():
    config = transformers.BertConfig(**_SIZES, vocab_size=60)
    eager = random(lambda: Branching(config))
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    few = torch.zeros_like(IDS)
    for ids in (IDS, few, IDS - 1, few, IDS[:, :4], few[:, :4]):
        close(eager(ids).last_hidden_state, compiled(ids).last_hidden_state)
    assert compiled.graft.stats()["traced"] == 2  # one for each way


@pytest.mark.slow
def test_global_attention_of_a_longformer():
    """Where tokens have it decides how many rows the model computes."""
    sizes = dict(_SIZES, vocab_size=60, attention_window=8, max_position_embeddings=40) | dict(num_hidden_layers=1)
    eager = random(lambda: transformers.LongformerForSequenceClassification(transformers.LongformerConfig(**sizes)))
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    for places in ([(0, 0), (1, 0)], [(0, 0), (0, 3)], [(0, 0), (1, 0)]):
        everywhere = torch.zeros_like(IDS)
        for row, column in places:
            everywhere[row, column] = 1
        given = dict(input_ids=IDS, attention_mask=torch.ones_like(IDS), global_attention_mask=everywhere)
        close(eager(**given).logits, compiled(**given).logits)


class Marked(transformers.BertModel):
    def forward(self, input_ids=None, **kwargs):
        hidden = super().forward(input_ids=input_ids, **kwargs).last_hidden_state
        if not (input_ids == 3).any():
            return hidden
        rows, columns = (input_ids == 3).nonzero(as_tuple=True)
        hidden = hidden * len(torch.unique(input=input_ids[:, :1] * 0))
        counts = (input_ids == 3).sum(dim=1).tolist()
        return hidden[rows, columns] * max(counts)


def test_code_that_makes_sizes_of_values():
    config = transformers.BertConfig(**_SIZES, vocab_size=60)
    eager = random(lambda: Marked(config))
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    for places in ([(0, 1)], [(0, 1), (1, 2)], [], [(1, 0), (1, 1), (1, 2)], [(0, 1)]):
        ids = IDS.clamp(min=4)
        for row, column in places:
            ids[row, column] = 3
        close(eager(ids), compiled(ids))
    assert compiled.graft.stats()["traced"] == 4


class Squeezed(transformers.BertModel):
    def forward(self, input_ids=None, **kwargs):
        last = input_ids.gather(1, (input_ids.ne(0).sum(1) - 1).unsqueeze(-1)).squeeze()  # a number, of one row
        shifted = input_ids.clone()
        shifted[:, 0] = last
        return super().forward(input_ids=shifted, **kwargs).last_hidden_state


def test_code_that_drops_sizes_of_one():
    """As mBART shifts its source: a program traced for more rows is not for one."""
    config = transformers.BertConfig(**_SIZES, vocab_size=60)
    eager = random(lambda: Squeezed(config))
    compiled = graft.compile(copy.deepcopy(eager), threads=1)
    for rows in (2, 1, 3, 1):
        ids = torch.randint(3, 60, (rows, 7), generator=torch.Generator().manual_seed(rows))
        close(eager(ids), compiled(ids))
    assert compiled.graft.stats()["traced"] == 2


class Copying(transformers.BertModel):
    def forward(self, input_ids=None, **kwargs):
        return super().forward(input_ids=torch.from_numpy(input_ids.numpy()), **kwargs)


def test_what_cannot_be_traced_is_named():
    config = transformers.BertConfig(**_SIZES, vocab_size=60)
    compiled = graft.compile(random(lambda: Copying(config)), threads=1)
    with pytest.raises(graft.ExportError, match=r"Copying cannot be traced: Copying.forward \(.*numpy\(\).*\) raises"):
        compiled(IDS)
