"""Calls of a compiled model that are as usual elsewhere: `torch.compile`, tokenizers, types of tokens, classifiers."""

import copy

import pytest
import torch
import transformers

import graft
import llm_models

CLOSE = 1e-4
IDS = torch.randint(3, llm_models.VOCAB, (2, 9), generator=torch.Generator().manual_seed(9))
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    small = llm_models.BY_NAME["qwen3"].make()
    return small, graft.compile(copy.deepcopy(small), threads=1)


def close(expected, found):
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


def test_torch_compile(models):
    close(models[0](IDS).logits, torch.compile(models[1])(IDS).logits)
    call = models[1].get_compiled_call(None)
    close(models[0](IDS).logits, call(IDS).logits)


def test_a_tokenizer_among_the_arguments(models):
    """generate() takes it for stop strings; it is no argument of the model."""
    options = dict(max_new_tokens=4, do_sample=False, tokenizer=object())
    assert torch.equal(*(model.generate(IDS, **options) for model in models))


def test_early_exit_is_refused_and_changes_nothing(models):
    before = models[1].config.num_hidden_layers
    with pytest.raises(graft.Unsupported, match="assistant_early_exit.*assistant_model"):
        models[1].generate(IDS[:1], assistant_early_exit=1, max_new_tokens=4)
    with pytest.raises(graft.Unsupported, match="assistant_early_exit"):
        models[1].generate(IDS[:1], transformers.GenerationConfig(assistant_early_exit=1, max_new_tokens=4))
    assert models[1].config.num_hidden_layers == before
    models[1](IDS)


def test_types_of_tokens(models):
    close(models[0](IDS).logits, models[1](IDS, token_type_ids=torch.ones_like(IDS)).logits)  # Qwen3 has none
    gpt2 = graft.compile(llm_models.BY_NAME["gpt2"].make(), threads=1)
    for types in (torch.zeros_like(IDS), torch.ones_like(IDS)):  # embedded as tokens
        with pytest.raises(graft.InvalidArgument, match="no argument 'token_type_ids'"):
            gpt2(IDS, token_type_ids=types)
    config = transformers.BertConfig(
        **{**llm_models._COMMON, "intermediate_size": 80, "is_decoder": True}
    )
    torch.manual_seed(0)
    eager = transformers.BertLMHeadModel(config).eval().requires_grad_(False)
    bert = graft.compile(copy.deepcopy(eager), threads=1)
    close(eager(IDS, token_type_ids=torch.zeros_like(IDS)).logits, bert(IDS, token_type_ids=torch.zeros_like(IDS)).logits)
    with pytest.raises(graft.InvalidArgument, match="no argument 'token_type_ids'"):
        bert(IDS, token_type_ids=torch.ones_like(IDS))


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_classifiers_on_decoders(kind):
    torch.manual_seed(0)
    eager = getattr(transformers, f"LlamaFor{kind}")(transformers.LlamaConfig(**llm_models._LLAMA, num_labels=3)).eval()
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    with torch.no_grad():
        expected = eager(IDS, attention_mask=mask)
    close(expected[0], graft.compile(copy.deepcopy(eager))(IDS, attention_mask=mask)[0])
