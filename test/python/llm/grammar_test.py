"""Texts that have a form, from Python: grammars, masks of one's own, and engines of others behind `graft.TokenMask`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import graft

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["é", "x"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
EOS = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model of random weights whose tokens are single bytes, and </s>."""
    folder = tmp_path_factory.mktemp("grammar")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    config = transformers.Qwen3Config(vocab_size=260, max_position_embeddings=256, eos_token_id=EOS, bos_token_id=None, **sizes)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def batch(folder, tmp_path_factory):
    return graft.BatchGenerator(graft.export_llm(folder, tmp_path_factory.mktemp("grammar") / "m.pte"), rows=4, threads=1)


def texts_of(batch, masks, **settings):
    ids = [batch.submit("Say:", mask=mask, max_new_tokens=60, temperature=1.0, seed=i, **settings) for i, mask in enumerate(masks)]
    while batch.step():
        pass
    return [batch.take(i) for i in ids]


def test_texts_have_the_form(batch):
    forms = [
        graft.Grammar.json_schema(SCHEMA, batch.grammar_vocabulary),
        graft.Grammar.regex("[a-c]{3}é", batch.grammar_vocabulary),
        graft.Grammar.ebnf('root ::= "x" | "(" root ")"', batch.grammar_vocabulary),
        graft.Grammar.lark('start: start "," A | A\nA: "1".."3"', batch.grammar_vocabulary),
        graft.Grammar.choice(["yes", "no"], batch.grammar_vocabulary),
        graft.Grammar.json_schema(json.dumps({"const": [1, None]}), batch.grammar_vocabulary),
    ]
    results = texts_of(batch, [form.mask() for form in forms])
    ended = 0
    for form, result in zip(forms, results, strict=True):
        text = result.text.removesuffix("</s>")
        assert form.begins(text), text
        assert not form.begins(text + "\0")
        if result.reason != "length":
            ended += 1
            assert form.matches(text), text
    assert ended >= 4
    made = json.loads(results[0].text)
    assert list(made) == ["a", "b"] and 0 <= made["a"] <= 99 and made["b"] in ("é", "x")


class Fixed(graft.TokenMask):
    """One text alone, and one token that it counts."""

    def __init__(self, tokens):
        self.tokens, self.at, self.words = tokens, 0, 0

    def allowed(self, words):
        assert words.dtype == np.uint32 and not words.any()
        self.words = len(words)
        words[self.tokens[self.at] // 32] = 1 << self.tokens[self.at] % 32

    def accept(self, token):
        assert token == self.tokens[self.at]
        self.at += 1

    def done(self):
        return self.at == len(self.tokens)


def test_a_mask_of_ones_own(batch):
    mask = Fixed([7, 200, 7, 3])
    (result,) = texts_of(batch, [mask])
    assert result.tokens == [7, 200, 7, 3] and result.reason == "complete" and mask.words * 32 >= 260


@pytest.mark.parametrize("method", ["allowed", "accept", "done"])
def test_an_exception_ends_its_request_alone(batch, method):
    class Wrong(Fixed):
        pass

    def fail(*_):
        raise KeyError("of the caller")

    setattr(Wrong, method, fail)
    alone = texts_of(batch, [None])[0]
    bad = batch.submit("Say:", mask=Wrong([1, 2, 3]))
    good = batch.submit("Say:", max_new_tokens=60, temperature=1.0, seed=0)
    with pytest.raises(KeyError, match="of the caller"):
        while batch.step():
            pass
    while batch.step():
        pass
    assert batch.take(bad).reason == "cancelled"
    assert batch.take(good) == alone


def test_a_mask_that_allows_nothing(batch):
    class Nothing(Fixed):
        def allowed(self, words):
            pass

    bad = batch.submit("Say:", mask=Nothing([1]))
    with pytest.raises(graft.ExecutionError, match="the mask allows no token"):
        while batch.step():
            pass
    assert batch.take(bad).reason == "cancelled"


def test_what_is_refused(batch):
    of = batch.grammar_vocabulary
    with pytest.raises(TypeError, match="expected a graft.TokenMask, found Grammar"):
        batch.submit("Say:", mask=graft.Grammar.choice(["a"], of))
    with pytest.raises(graft.Unsupported, match="'oneOf'"):
        graft.Grammar.json_schema({"oneOf": [{}, {}]}, of)
    with pytest.raises(graft.InvalidArgument, match="regular expression"):
        graft.Grammar.regex("(", of)
    with pytest.raises(graft.InvalidArgument, match="no rule 'start'"):
        graft.Grammar.lark("", of)
    with pytest.raises(graft.InvalidArgument):
        graft.Grammar.json_object(of).mask().accept(3)


def test_vocabularies(folder, batch):
    """Of a tokenizer and of the tokens' bytes: the masks are those of the model's own."""
    tokenizer = graft.Tokenizer.load(folder)
    tokens = [bytes(tokenizers.decoders.ByteLevel().decode([piece]), "utf-8") if len(piece) == 1 and piece.isascii() else b"" for piece in map(tokenizer.piece, range(256))]
    for of in (batch.grammar_vocabulary, graft.GrammarVocabulary(tokenizer, [EOS]), graft.GrammarVocabulary([*tokens, b""], [EOS])):
        mask = graft.Grammar.regex("[ab]?", of).mask()
        words = np.zeros(9, np.uint32)
        mask.allowed(words)
        allowed = [i for i in range(288) if words[i // 32] >> np.uint32(i % 32) & 1]
        assert allowed == sorted([*tokenizer.encode("ab"), EOS])
        mask.accept(tokenizer.encode("a")[0])
        assert mask.done()


def check_texts(batch, masks):
    """Texts by masks for SCHEMA, whose spaces may be others than those of graft's grammar."""
    form = graft.Grammar.json_schema(SCHEMA, batch.grammar_vocabulary)
    for result in texts_of(batch, masks):
        made = json.loads(result.text.removesuffix("</s>"))
        assert form.matches(json.dumps(made, ensure_ascii=False))


def test_llguidance(folder, batch):
    llguidance = pytest.importorskip("llguidance")
    hf, numpy = pytest.importorskip("llguidance.hf"), pytest.importorskip("llguidance.numpy")
    tokenizer = hf.from_tokenizer(transformers.AutoTokenizer.from_pretrained(folder))

    class Mask(graft.TokenMask):
        def __init__(self, schema):
            self.matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema))

        def allowed(self, words):
            bits = numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
            numpy.fill_next_token_bitmask(self.matcher, bits, 0)
            words[: bits.shape[1]] = bits[0].view(np.uint32)

        def accept(self, token):
            if not self.matcher.consume_token(token):
                raise ValueError(f"token {token} may not come")

        def done(self):
            return self.matcher.is_stopped()

    check_texts(batch, [Mask(SCHEMA) for _ in range(6)])


def test_xgrammar(folder, batch):
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo.from_huggingface(transformers.AutoTokenizer.from_pretrained(folder), vocab_size=260)
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA))

    class Mask(graft.TokenMask):
        def __init__(self):
            self.matcher = xgrammar.GrammarMatcher(compiled)

        def allowed(self, words):
            bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)
            self.matcher.fill_next_token_bitmask(bits)
            words[: bits.shape[1]] = bits[0].numpy().view(np.uint32)

        def accept(self, token):
            if not self.matcher.accept_token(token):
                raise ValueError(f"token {token} may not come")

        def done(self):
            return self.matcher.is_terminated()

    check_texts(batch, [Mask() for _ in range(6)])
