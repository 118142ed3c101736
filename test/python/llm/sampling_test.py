"""The distribution that tokens are drawn from, against transformers' logits processors in the order of its generate()."""

import pytest
import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation.utils import GenerationMixin

from graft.errors import InvalidArgument
from graft.llm.generate import token_probabilities

VOCAB = 300


class Model(GenerationMixin):
    """Enough of a model to be asked for its processors."""

    config = PreTrainedConfig()


def reference(logits, tokens, **settings):
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **settings})
    processors = Model()._get_logits_processor(
        config, input_ids_seq_length=len(tokens), logits_processor=[], device="cpu", model_kwargs={}
    )
    return processors(torch.tensor([tokens]), logits[None].clone())[0].softmax(-1)


CASES = [
    {},
    {"temperature": 0.6},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": VOCAB + 5},
    {"top_p": 0.05},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.5, "min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1},
    {"temperature": 1.7, "top_k": 11, "top_p": 0.6, "repetition_penalty": 1.5},
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_probabilities_are_those_of_transformers(settings):
    generator = torch.Generator().manual_seed(3)
    settings = {"temperature": 1.0, **settings}
    for spread in (0.5, 3.0, 12.0):
        for _ in range(5):
            logits = torch.randn(VOCAB, generator=generator) * spread
            tokens = torch.randint(VOCAB, (40,), generator=generator).tolist()
            expected = reference(logits, tokens, **settings)
            found = token_probabilities(logits, tokens, **settings)
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-7)
            assert ((found > 0) == (expected > 0)).all()


def test_equal_logits_at_the_border_of_top_k_stay():
    logits = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0, -1.0])
    found = token_probabilities(logits, [], temperature=1.0, top_k=2)
    torch.testing.assert_close(found, reference(logits, [0], temperature=1.0, top_k=2))


def test_greedy_is_certain_and_penalized():
    logits = torch.tensor([1.0, 5.0, 4.9])
    assert token_probabilities(logits, []).tolist() == [0, 1, 0]
    assert token_probabilities(logits, [1], repetition_penalty=2.0).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 1.1}, {"min_p": -0.1}, {"repetition_penalty": 0.0}, {"beams": 3}],
    ids=str,
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(InvalidArgument, match=next(iter(settings))):
        token_probabilities(torch.zeros(4), [], **settings)
