"""Tokenizers against Hugging Face `tokenizers`: the same ids and the same text, on generated texts."""

import json

import pytest

import graft
from text_cases import CASES, texts

# Over all cases 104,000 texts.
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
        assert not wrong, f"{len(wrong)} of {len(given)}: {given[wrong[0]]!r}: {ids[wrong[0]]}, not {expected[wrong[0]]}"
        for skip in (True, False):
            decoded = hf.decode_batch(expected, skip_special_tokens=skip)
            back = [mine.decode(i, skip_special=skip) for i in ids]
            wrong = [i for i in range(len(given)) if back[i] != decoded[i]]
            assert not wrong, f"{len(wrong)} of {len(given)}: {ids[wrong[0]]}: {back[wrong[0]]!r}, not {decoded[wrong[0]]!r}"


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
