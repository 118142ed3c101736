"""Tokenizers against Hugging Face `tokenizers`: the same ids and the same text, on generated texts."""

import base64
import json
import struct

import pytest
import tokenizers

import graft
from text_cases import CASES, texts

# Over all cases 104,000 strings.
COUNT = 8_000


def reference(name):
    make = CASES[name]
    needs = getattr(make, "needs", None)
    if needs is not None and not needs.exists():
        pytest.skip(f"{needs} is not there")
    return make()


def compare(hf, mine, given):
    as_text = [t.decode("utf-8", "replace") for t in given]
    for add_special in (True, False):
        expected = [e.ids for e in hf.encode_batch(as_text, add_special_tokens=add_special)]
        ids = mine.encode_all(given, add_special=add_special)
        wrong = [i for i in range(len(given)) if ids[i] != expected[i]]
        assert (
            not wrong
        ), f"{len(wrong)} of {len(given)}: {given[wrong[0]]!r}: {ids[wrong[0]]}, not {expected[wrong[0]]}"
        for skip in (True, False):
            decoded = hf.decode_batch(expected, skip_special_tokens=skip)
            back = [mine.decode(i, skip_special=skip) for i in ids]
            wrong = [i for i in range(len(given)) if back[i] != decoded[i]]
            assert (
                not wrong
            ), f"{len(wrong)} of {len(given)}: {ids[wrong[0]]}: {back[wrong[0]]!r}, not {decoded[wrong[0]]!r}"


@pytest.mark.parametrize("name", CASES)
def test_same_as_hugging_face(name):
    hf = reference(name)
    mine = graft.Tokenizer.from_json(hf.to_str())
    special = [t.content for t in hf.get_added_tokens_decoder().values()][:40]
    compare(hf, mine, texts(COUNT, 1, special))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("name", CASES)
def test_same_as_hugging_face_at_length(name, seed):
    hf = reference(name)
    mine = graft.Tokenizer.from_json(hf.to_str())
    special = [t.content for t in hf.get_added_tokens_decoder().values()][:40]
    compare(hf, mine, texts(20_000, seed, special))


def named(**parts):
    """A small BPE tokenizer.json; `parts` replace its parts."""
    vocab = {c: i for i, c in enumerate("abc")} | {"ab": 3}
    model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
    return {"version": "1.0", "model": model, "added_tokens": [], "decoder": {"type": "Fuse"}, **parts}


def make(document, config=""):
    return graft.Tokenizer.from_json(json.dumps(document), config and json.dumps(config))


def test_small():
    tokenizer = make(named())
    assert tokenizer.encode("abcab") == [3, 2, 3]
    assert tokenizer.decode([3, 2, 3]) == "abcab"
    assert (
        len(tokenizer) == 4 and tokenizer.piece(3) == "ab" and tokenizer.find("ab") == 3 and tokenizer.find("x") is None
    )


def test_merges_as_lines():
    document = named()
    document["model"]["merges"] = ["#version: 0.2", "a b"]
    assert make(document).encode("abcab") == [3, 2, 3]


def test_special_tokens_and_identity():
    document = named(
        added_tokens=[{"id": 4, "content": "<s>", "special": True}, {"id": 5, "content": "</s>", "special": True}]
    )
    tokenizer = make(document, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None})
    assert tokenizer.special_ids == {"bos": 4, "eos": 5, "unk": None, "pad": None}
    assert tokenizer.is_special(4) and not tokenizer.is_special(0)
    assert tokenizer.encode("<s>ab</s>") == [4, 3, 5]
    assert tokenizer.decode([4, 3, 5], skip_special=True) == "ab"
    assert tokenizer.identity == make(document).identity != make(named()).identity


def test_the_longest_added_token_is_taken():
    tokens = [{"id": 4, "content": "<a"}, {"id": 5, "content": "<a>"}, {"id": 6, "content": "<a>>"}]
    assert make(named(added_tokens=tokens)).encode("<a>><a>b<ac") == [6, 5, 1, 4, 2]


def test_white_space_goes_to_one_added_token():
    tokens = [{"id": 5, "content": "<x>", "rstrip": True}, {"id": 6, "content": "<y>", "lstrip": True}]
    document = named(added_tokens=tokens)
    document["model"]["vocab"][" "] = 4
    assert make(document).encode("a <x>  <y> b") == [0, 4, 5, 6, 4, 1]


def test_tokens_of_the_configuration():
    config = {
        "added_tokens_decoder": {"5": {"content": "<b>", "special": True}, "4": {"content": "<a>", "special": True}}
    }
    assert make(named(), config).encode("<b><a>") == [5, 4]


def test_limit_of_length():
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[C]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[S]", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            "[C]": {"id": "[C]", "ids": [0], "tokens": ["[C]"]},
            "[S]": {"id": "[S]", "ids": [1], "tokens": ["[S]"]},
        },
    }
    tokenizer = make(
        named(post_processor=processor, truncation={"max_length": 3, "stride": 0, "strategy": "LongestFirst"})
    )
    assert tokenizer.truncation == 3
    assert tokenizer.encode("cccc") == [0, 2, 2, 2, 2, 1]
    assert tokenizer.encode("cccc", max_length=4) == [0, 2, 2, 1]
    assert tokenizer.encode("cccc", max_length=3, add_special=False) == [2, 2, 2]
    with pytest.raises(graft.InvalidArgument, match="max_length"):
        tokenizer.encode("c", max_length=1)
    with pytest.raises(graft.InvalidArgument, match="max_length"):
        tokenizer.encode("c", max_length=0)


def test_bytes_that_are_no_text():
    hf = CASES["gpt2"]()
    tokenizer = graft.Tokenizer.from_json(hf.to_str())
    for bad in (
        b"a\xffb",
        b"\xe2\x82",
        b"\xf0\x9f\x98x",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\x80\x80",
        b"\xf4\x90\x80\x80",
    ):
        assert tokenizer.encode(bad) == hf.encode(bad.decode("utf-8", "replace")).ids, bad


@pytest.mark.parametrize("name", CASES)
def test_stream_gives_whole_characters(name):
    hf = reference(name)
    tokenizer = graft.Tokenizer.from_json(hf.to_str())
    for given in texts(300, 7, []):
        ids = tokenizer.encode(given.decode("utf-8", "ignore"))
        for skip in (False, True):
            parts = list(tokenizer.stream(ids, skip_special=skip))
            assert "".join(parts) == tokenizer.decode(ids, skip_special=skip)
            assert all(parts)


def test_stream_waits_for_the_end_of_a_character():
    tokenizer = graft.Tokenizer.from_json(CASES["gpt2"]().to_str())
    ids = tokenizer.encode("x🤦y")
    assert len(ids) == 6  # four bytes, one token each
    detokenizer = graft.Detokenizer(tokenizer)
    assert [detokenizer.add(i) for i in ids] == ["x", "", "", "", "🤦", "y"]
    assert detokenizer.finish() == ""
    assert [detokenizer.add(i) for i in ids[:3]] == ["x", "", ""] and detokenizer.finish() == "\ufffd"
    with pytest.raises(graft.InvalidArgument):
        detokenizer.add(10**6)
    assert detokenizer.add(ids[0]) == "x"


@pytest.mark.parametrize("token", [-1, 4, 2**40])
def test_ids_out_of_range(token):
    tokenizer = make(named())
    for call in (lambda: tokenizer.decode([0, token]), lambda: tokenizer.piece(token)):
        with pytest.raises(graft.InvalidArgument, match=f"no token {token}; its ids are below 4"):
            call()


UNKNOWN = [
    ({"normalizer": {"type": "Mystery"}}, "normalizer .*'Mystery'"),
    ({"pre_tokenizer": {"type": "Mystery"}}, "pre-tokenizer .*'Mystery'"),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]}}, "'UnicodeScripts'"),
    ({"decoder": {"type": "Mystery"}}, "decoder .*'Mystery'"),
    ({"post_processor": {"type": "Mystery"}}, "post-processor .*'Mystery'"),
    ({"model": {"type": "Mystery"}}, "model .*'Mystery'"),
    (
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Mystery", "invert": False}},
        "'Mystery'",
    ),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "mystery"}}, "'mystery'"),
    ({"version": "2.0"}, "version"),
    ({"model": {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}}, "dropout"),
]


@pytest.mark.parametrize(("parts", "message"), UNKNOWN)
def test_unknown_parts_are_named(parts, message):
    with pytest.raises(graft.Unsupported, match=message):
        make(named(**parts))


DAMAGED = [
    ({"model": None}, "no model"),
    ({"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}, "vocabulary has 'a'"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "id -1"),
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "same id"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "no vocabulary"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "two tokens"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, "merge 0"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [1]}}, "merges have 1"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "x"]]}}, "'ax'"),
    (
        {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}},
        "UNK",
    ),
    ({"model": {"type": "Unigram", "vocab": [["a"]]}}, "pairs"),
    ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 3}}, "unk_id"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}}, r"'\('"),
    ({"pre_tokenizer": {"type": "Split", "pattern": "x", "behavior": "Isolated", "invert": False}}, "pattern"),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}}, "one character"),
    ({"pre_tokenizer": {}}, "type"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!!"}}, "base64"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}, "precompiled_charsmap"),
    ({"post_processor": {"type": "BertProcessing", "cls": ["[C]", 9], "sep": ["[S]", 0]}}, "token 9"),
    ({"added_tokens": [{"id": 1}]}, "content"),
    ({"added_tokens": 3}, "added_tokens"),
    ({"truncation": {"max_length": "x"}}, "max_length"),
    (
        {
            "model": {
                "type": "WordPiece",
                "vocab": {"a": 0},
                "unk_token": "a",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": -1,
            }
        },
        "max_input_chars_per_word is -1",
    ),
]


@pytest.mark.parametrize(("parts", "message"), DAMAGED)
def test_damage_is_named(parts, message):
    with pytest.raises(graft.InvalidProgram, match=message):
        make(named(**parts))


def test_an_id_beyond_the_limit():
    with pytest.raises(graft.Unsupported, match="'a' has the id 1000000000, at most 4194304 ids .*max_vocabulary"):
        make(named(model={"type": "BPE", "vocab": {"a": 10**9}, "merges": []}))


@pytest.mark.parametrize("config", ['{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_a_configuration_in_itself(config):
    with pytest.raises(graft.InvalidProgram, match="tokenizer_config.json is nested too deeply"):
        graft.Tokenizer.from_json(json.dumps(named()), config)


def test_equal_pieces_of_a_unigram_model():
    # As in Hugging Face, a piece that occurs twice has its last id.
    vocab = [["<unk>", 0.0], ["a", -1.0], ["ab", -9.0], ["ab", -1.5], ["abc", -2.0], ["abc", -2.0], ["c", -1.0]]
    document = named(model={"type": "Unigram", "unk_id": 0, "vocab": vocab}, normalizer=None)
    mine = make(document)
    hf = tokenizers.Tokenizer.from_str(json.dumps(document))
    for text in ("ab", "abc", "ababcab", "a", "abx"):
        assert mine.encode(text) == hf.encode(text).ids, text


def charsmap_into_a_character():
    """A precompiled_charsmap whose replacement for "a" begins in the middle of "é"."""
    pool = "é\0".encode()
    # A darts-clone array: the node of "a" is 1 ^ 0x61, its leaf 0 ^ that.
    units = [0] * 256
    units[0] = 1 << 10
    units[1 ^ 0x61] = (0x61) | 1 << 8 | (3 << 10)
    units[(1 ^ 0x61) ^ 3] = 1 << 31 | 1
    trie = struct.pack("<256I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + pool).decode()


@pytest.mark.parametrize(
    "model",
    [
        {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["b", -1.0]]},
        {
            "type": "WordPiece",
            "vocab": {"[UNK]": 0, "b": 1},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 100,
        },
    ],
)
def test_replacements_that_are_parts_of_characters(model):
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap_into_a_character()}
    tokenizer = make(named(model=model, normalizer=normalizer))
    assert tokenizer.encode("b") == [1]
    with pytest.raises(graft.InvalidProgram, match="middle of a character"):
        tokenizer.encode("a")


@pytest.mark.parametrize(
    "document", ["", "{", "[]", "7", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [', "\xff"]
)
def test_what_is_no_json(document):
    with pytest.raises(graft.InvalidProgram, match="tokenizer.json"):
        graft.Tokenizer.from_json(document.encode("latin-1"))
    with pytest.raises(graft.InvalidProgram, match="tokenizer.json"):
        graft.Tokenizer.from_json("[" * 100_000)


def test_a_byte_fewer_is_an_error_not_a_crash():
    whole = CASES["gemma"]().to_str().encode()
    for cut in range(0, len(whole), 997):
        with pytest.raises(graft.InvalidProgram):
            graft.Tokenizer.from_json(whole[:cut])


def test_files(tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(named(added_tokens=[{"id": 4, "content": "<e>", "special": True}]))
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>", "chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = graft.Tokenizer.load(path)
        assert tokenizer.encode("ab") == [3]
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi<e>"
    with pytest.raises(graft.NotFound):
        graft.Tokenizer.load(tmp_path / "none.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(graft.NotFound, match="tokenizer.json"):
        graft.Tokenizer.load(tmp_path / "empty")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(graft.InvalidProgram, match="bad.json"):
        graft.Tokenizer.load(tmp_path / "bad.json")
