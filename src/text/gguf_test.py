"""Vocabularies of GGUF files: the same ids as from the tokenizer.json that they were made of."""

import json
import struct

import pytest

import graft
from text_cases import CASES, DATA, llama3, texts

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def _string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, (str, bytes)):
        return STRING, _string(value)
    kind = STRING if isinstance(value[0], str) else F32 if isinstance(value[0], float) else I32
    kind = STRING if isinstance(value[0], bytes) else kind
    items = b"".join(_string(v) if kind == STRING else struct.pack("<f" if kind == F32 else "<i", v) for v in value)
    return ARRAY, struct.pack("<IQ", kind, len(value)) + items


def write(path, **fields):
    """A GGUF file without tensors; `tokens` is the key tokenizer.ggml.tokens, and so on."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for name, value in fields.items():
        kind, data = _value(value)
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        out += _string(key) + struct.pack("<I", kind) + data
    path.write_bytes(out)
    return path


def of_json(hf, path, pre, **more):
    """A byte-level tokenizer.json as converters write it."""
    document = json.loads(hf.to_str())
    by_id = {i: t for t, i in document["model"]["vocab"].items()}
    added = {a["id"]: a for a in document["added_tokens"]}
    count = max([*by_id, *added]) + 1
    tokens = [added[i]["content"] if i in added else by_id.get(i, f"[PAD{i}]") for i in range(count)]
    types = [(3 if added[i]["special"] else 4) if i in added else 1 if i in by_id else 5 for i in range(count)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    return write(path, model="gpt2", pre=pre, tokens=tokens, token_type=types, merges=merges, **more)


@pytest.mark.parametrize(
    ("name", "pre"), [("qwen", "qwen2"), ("gpt2", "gpt-2"), ("llama3", "llama-bpe"), ("deepseek", "deepseek-v3")]
)
def test_byte_level(name, pre, tmp_path):
    needs = getattr(CASES[name], "needs", None)
    if needs is not None and not needs.exists():
        pytest.skip(f"{needs} is not there")
    hf = CASES[name]()
    mine = graft.Tokenizer.load(of_json(hf, tmp_path / "v.gguf", pre))
    given = texts(1500, 3, [t.content for t in hf.get_added_tokens_decoder().values()])
    expected = [e.ids for e in hf.encode_batch([t.decode("utf-8", "replace") for t in given], add_special_tokens=False)]
    assert mine.encode_all(given) == expected
    assert [mine.decode(ids) for ids in expected] == hf.decode_batch(expected, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("pre", "contraction", "digits"),
    [("gpt-4o", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), ("tekken", "", r"\p{N}")],
)
def test_expressions_with_large_letters(pre, contraction, digits, tmp_path):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    expression = (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    hf = llama3(expression)
    hf.model.ignore_merges = pre == "tekken"
    mine = graft.Tokenizer.load(of_json(hf, tmp_path / "v.gguf", pre))
    given = texts(1500, 4, [])
    expected = [e.ids for e in hf.encode_batch([t.decode("utf-8", "replace") for t in given], add_special_tokens=False)]
    assert mine.encode_all(given) == expected


def test_sentence_piece_with_real_weights_beside_it():
    folder = DATA / "stories260K"
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    mine = graft.Tokenizer.load(folder / "stories260K-f32.gguf")
    reference = graft.Tokenizer.load(folder)
    given = texts(3000, 5, ["<s>", "</s>"])
    for text, ids, expected in zip(given, mine.encode_all(given), reference.encode_all(given)):
        assert ids == expected, text
        assert mine.decode(ids) == reference.decode(ids)
    assert mine.encode("Once upon a time") == [1, 403, 407, 261, 378]
    assert mine.special_ids["bos"] == 1 and mine.special_ids["eos"] == 2


def test_word_piece(tmp_path):
    hf = CASES["word-piece"]()
    vocab = sorted(hf.get_vocab().items(), key=lambda item: item[1])
    special = {t.content for t in hf.get_added_tokens_decoder().values()}
    tokens = [t if t in special else t[2:] if t.startswith("##") else "▁" + t for t, _ in vocab]
    types = [3 if t in special else 1 for t, _ in vocab]
    mine = graft.Tokenizer.load(
        write(
            tmp_path / "v.gguf",
            model="bert",
            tokens=tokens,
            token_type=types,
            unknown_token_id=100,
            cls_token_id=101,
            seperator_token_id=102,
        )
    )
    given = texts(2000, 6, sorted(special))
    expected = [e.ids for e in hf.encode_batch([t.decode("utf-8", "replace") for t in given])]
    assert mine.encode_all(given) == expected


def test_what_stands_beside_the_vocabulary(tmp_path):
    fields = dict(model="gpt2", pre="gpt-2", tokens=["a", "b", "<s>", "</s>"], token_type=[1, 1, 3, 3], merges=["a a"])
    fields["tokens"] += ["aa"]
    fields["token_type"] += [1]
    path = write(
        tmp_path / "v.gguf", **fields, bos_token_id=2, eos_token_id=3, add_bos_token=True, add_eos_token=True,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )  # fmt: skip
    tokenizer = graft.Tokenizer.load(path)
    assert tokenizer.encode("aab") == [2, 4, 1, 3]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "<s>x"


def test_errors_name_the_file_and_the_thing(tmp_path):
    good = dict(model="gpt2", pre="gpt-2", tokens=["a"], token_type=[1], merges=["a a"])
    for fields, error, message in [
        ({"pre": "mystery"}, graft.Unsupported, "mystery"),
        ({"model": "rwkv"}, graft.Unsupported, "rwkv"),
        ({}, graft.InvalidProgram, "v.gguf.*'aa'"),
        ({"token_type": [1, 1]}, graft.InvalidProgram, "v.gguf.*2 token types"),
        ({"merges": ["a"]}, graft.InvalidProgram, "no two parts"),
        ({"bos_token_id": 7}, graft.InvalidProgram, "bos_token_id is 7"),
        ({"tokens": 3}, graft.InvalidProgram, "tokens should be of type arr"),
    ]:
        with pytest.raises(error, match=message):
            graft.Tokenizer.load(write(tmp_path / "v.gguf", **{**good, **fields}))
    with pytest.raises(graft.NotFound, match="no vocabulary"):
        graft.Tokenizer.load(write(tmp_path / "v.gguf", other="x"))
    (tmp_path / "v.gguf").write_bytes(b"GGUF????")
    with pytest.raises(graft.InvalidProgram, match="v.gguf"):
        graft.Tokenizer.load(tmp_path / "v.gguf")
    with pytest.raises(graft.NotFound):
        graft.Tokenizer.load(tmp_path / "none.gguf")


BYTES = b"\xff\x80"


@pytest.mark.parametrize("special", [3, 4])
def test_tokens_that_are_bytes(special, tmp_path):
    # The format says UTF-8, yet files with other tokens exist, and llama.cpp reads them: they decode to U+FFFD, and no
    # text encodes to them.
    path = write(
        tmp_path / "v.gguf", model="gpt2", pre="gpt-2", tokens=["a", "b", "aa", BYTES, b"\xa9"],
        token_type=[1, 1, 1, 1, special], merges=["a a"],
    )  # fmt: skip
    tokenizer = graft.Tokenizer.load(path)
    assert tokenizer.encode("aab") == [2, 1]
    assert tokenizer.decode([2, 3, 1]) == "aa\ufffd\ufffdb"
    assert tokenizer.decode([2, 4, 1]) == "aa\ufffdb"
    tokenizer.encode("é")  # its second byte is the last token
    assert list(tokenizer.stream([0, 3, 1], skip_special=False)) == ["a", "\ufffd\ufffdb"]


def test_words_are_not_cut_at_bytes(tmp_path):
    path = write(
        tmp_path / "v.gguf", model="bert", tokens=["[UNK]", "▁a", b"\xa9"], token_type=[3, 1, 4], unknown_token_id=0
    )  # fmt: skip
    assert graft.Tokenizer.load(path).encode("a éa") == [1, 0]


def test_special_tokens_that_are_bytes(tmp_path):
    good = dict(model="gpt2", pre="gpt-2", tokens=["a", BYTES], token_type=[1, 3], merges=["a a"])
    for key in ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"):
        with pytest.raises(graft.InvalidProgram, match=f"v.gguf.*{key} is 1, a token that is not UTF-8"):
            graft.Tokenizer.load(write(tmp_path / "v.gguf", **{**good, key: 1}))
    for fields, error, message in [
        ({"merges": [BYTES]}, graft.InvalidProgram, "v.gguf.*no two parts"),
        ({"merges": [b"\xff a"]}, graft.InvalidProgram, "v.gguf.*merge 0 .* needs the token '\ufffda'"),
        ({"pre": BYTES}, graft.Unsupported, "pre-tokenizer '\ufffd\ufffd'"),
        ({"model": BYTES}, graft.Unsupported, "unknown kind '\ufffd\ufffd'"),
    ]:
        with pytest.raises(error, match=message):
            graft.Tokenizer.load(write(tmp_path / "v.gguf", **{**good, **fields}))
    path = write(tmp_path / "v.gguf", **{**good, "merges": ["a a"], "tokens": ["a", "aa"]}, chat_template=BYTES)
    with pytest.raises(graft.InvalidProgram, match="chat template is not UTF-8"):
        graft.Tokenizer.load(path).apply_chat_template([])
