"""What normalizers and pre-tokenizers make of every character, against Hugging Face `tokenizers`."""

import json
import unicodedata

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import graft

# Han beyond the first plane is sampled, one in 61.
CODES = [
    *range(1, 0xD800),
    *range(0xE000, 0x20000),
    *range(0x20000, 0x2F800, 61),
    *range(0x2F800, 0x2FA20),
    *range(0x30000, 0x110000, 61),
]
CHARS = [chr(c) for c in CODES + [*range(0xE0000, 0xE0200)]]
# Letters whose lowercase form was added after Unicode 15.
NEW_CASES = {
    chr(c)
    for c in [
        0x1C89,
        0xA7CB,
        0xA7CC,
        0xA7CE,
        0xA7D2,
        0xA7D4,
        0xA7DA,
        0xA7DC,
        *range(0x10D50, 0x10D66),
        *range(0x16EA0, 0x16EB9),
    ]
}


def byte_tokenizer(**parts):
    """One token per byte, so that ids show the normalized text."""
    t = Tokenizer(models.BPE({f"<0x{b:02X}>": b for b in range(256)}, [], byte_fallback=True))
    for name, part in parts.items():
        setattr(t, name, part)
    return t


def normalized(normalizer, texts):
    mine = graft.Tokenizer.from_json(byte_tokenizer(normalizer=normalizer).to_str())
    return [bytes(ids).decode() for ids in mine.encode_all(texts)]


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents(),
        normalizers.Nmt(), normalizers.Strip(), normalizers.ByteLevel(), normalizers.BertNormalizer(),
        normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False),
        normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False),
    ],
    ids=str,
)  # fmt: skip
def test_every_character(normalizer):
    wrong = [c for c, text in zip(CHARS, normalized(normalizer, CHARS)) if text != normalizer.normalize_str(c)]
    assert set(wrong) <= NEW_CASES, [hex(ord(c)) for c in wrong][:20]
    assert all(unicodedata.category(c) == "Cn" for c in wrong)  # not in Unicode 14


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_every_mark_on_letters(form):
    """The order of marks and what they compose to."""
    normalizer = getattr(normalizers, form)()
    marks = [c for c in CHARS if unicodedata.category(c)[0] == "M"]
    given = [f"{base}\u0301{mark}\u0323\u0308" for base in "aΩк가" for mark in marks]
    given += [f"{c}\u0301\u0327" for c in CHARS if unicodedata.category(c)[0] == "L"][::7]
    for text, mine in zip(given, normalized(normalizer, given)):
        assert mine == normalizer.normalize_str(text), ascii(text)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(),
    ],
    ids=str,
)  # fmt: skip
def test_every_character_between_letters(pre_tokenizer):
    document = json.loads(byte_tokenizer(pre_tokenizer=pre_tokenizer).to_str())
    # A word that is not split is one token.
    document["model"] |= {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}
    given = [f"a{c}a" for c in CHARS]
    mine = graft.Tokenizer.from_json(json.dumps(document)).encode_all(given)
    wrong = []
    for c, text, ids in zip(CHARS, given, mine):
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]
        if ids != [1 if word == "a" else 0 for word in words]:
            wrong.append(c)
    # Characters added to Unicode after 14 are letters in one library and unassigned in the other.
    assert all(unicodedata.category(c) == "Cn" for c in wrong), [hex(ord(c)) for c in wrong][:20]
