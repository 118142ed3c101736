"""Calls of a compiled model that are as usual elsewhere: `torch.compile`, tokenizers, types of tokens, classifiers."""

import copy

import pytest
import tokenizers
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


def tokenizer():
    """A token for each printable character, and pairs of letters for the other ids."""
    characters = [chr(i) for i in range(32, 127)]
    pairs = [a + b for a in "abcdefghijklmnop" for b in "qrstuvwxyz"]
    words = ["<pad>", "<s>", "</s>", *characters, *pairs][: llm_models.VOCAB]
    model = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, []))
    model.decoder = tokenizers.decoders.Fuse()
    special = dict(pad_token="<pad>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special)


@pytest.mark.parametrize(
    ("rows", "way"),
    [(1, dict(do_sample=False)), (2, dict(do_sample=False)), (1, dict(do_sample=True)), (1, dict(do_sample=False, num_beams=2))],
)
def test_stop_strings(models, rows, way):
    """Of characters that are not one token: in the middle of what is generated without them."""
    words, prompts = tokenizer(), IDS[:rows, :5]
    options = dict(max_new_tokens=24, eos_token_id=llm_models.VOCAB - 1, pad_token_id=0, **way)

    def texts(model, **stop):
        torch.manual_seed(0)
        made = model.generate(prompts, **options, **stop)[:, 5:]
        return made, "".join(words.convert_ids_to_tokens(made[0][made[0] > 2].tolist()))

    _, free = texts(models[0])
    stop = dict(stop_strings=[free[9:12]], tokenizer=words)
    expected, found = (texts(model, **stop) for model in models)
    assert torch.equal(expected[0], found[0])
    assert free[9:12] in found[1] and len(found[1]) < len(free)
    with pytest.raises(ValueError, match="tokenizer"):
        models[1].generate(prompts, **options, stop_strings=[free[9:12]])


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
    config = transformers.BertConfig(
        **{**llm_models._COMMON, "intermediate_size": 80, "is_decoder": True}
    )
    torch.manual_seed(0)
    eager = transformers.BertLMHeadModel(config).eval().requires_grad_(False)
    bert = graft.compile(copy.deepcopy(eager), threads=1)
    for types in (torch.zeros_like(IDS), torch.ones_like(IDS)):
        close(eager(IDS, token_type_ids=types).logits, bert(IDS, token_type_ids=types).logits)
    assert bert.graft.stats()["general_calls"] == 1
    with pytest.raises(graft.InvalidArgument, match="no argument 'token_types'"):
        bert(IDS, token_types=torch.ones_like(IDS))


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_classifiers_on_decoders(kind):
    torch.manual_seed(0)
    eager = getattr(transformers, f"LlamaFor{kind}")(transformers.LlamaConfig(**llm_models._LLAMA, num_labels=3)).eval()
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    with torch.no_grad():
        expected = eager(IDS, attention_mask=mask)
    close(expected[0], graft.compile(copy.deepcopy(eager))(IDS, attention_mask=mask)[0])


def test_no_images_for_a_model_of_images_and_text(models):
    """generate() then gives an empty `mm_encoder_outputs`."""
    assert torch.equal(models[0](IDS).logits.argmax(-1), models[1](IDS, mm_encoder_outputs={}).logits.argmax(-1))
    with pytest.raises(graft.InvalidArgument, match="no argument 'mm_encoder_outputs'"):
        models[1](IDS, mm_encoder_outputs={"image": object()})
