"""Layers with recurrent states in packages: what callers do to rows between runs, runs that fail, the parts of the library that
cannot work with them. Their numbers are compared in package_test.py."""

import copy

import pytest
import torch

import graft
import llm_models
from llm_models import RECURRENT
from package_test import check, make_pair, tokens

CASES = [pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.slow else []) for m in RECURRENT]


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory):
    return tmp_path_factory.mktemp(request.param.name), request.param


@pytest.fixture(scope="module")
def pair(folder):
    return make_pair(folder[0], folder[1].make())


@pytest.fixture
def package(folder, pair):
    return folder[0] / "model.pte"


def one_row(pair, ids, row, first):
    """Logits of more tokens of a row that has `first`."""
    rows = torch.full((row + 1, ids.shape[1]), -1)
    rows[row] = torch.arange(first, first + ids.shape[1])
    return pair.run(ids.expand(row + 1, -1).contiguous(), rows=rows)[row:]


def ahead(pair):
    """Three rows of 9 tokens, the first of which is a run ahead, with 20: it is in the other half."""
    pair.package.reset()
    ids = tokens(20, 3)
    pair.run(ids[:, :9])
    one_row(pair, ids[:1, 9:], 0, 9)
    assert pair.package.kv_lengths() == [20, 9, 9]
    return [ids[0], ids[1, :9], ids[2, :9]]


def check_rows(pair, texts):
    """Each row goes on from its tokens."""
    for row, text in enumerate(texts):
        more = tokens(4 + row)
        expected = pair.expected(torch.cat([text[None], more], 1))[:, len(text) :]
        check(one_row(pair, more, row, len(text)), expected)


@pytest.mark.parametrize("rows", [[2, 0, 1], [0, 0, 0], [1, 1, 0], [1, 2]], ids=str)
def test_rows_are_selected(pair, rows):
    texts = ahead(pair)
    pair.package.kv_select(rows)
    check_rows(pair, [texts[row] for row in rows])


def test_a_cache_is_resized(pair):
    texts = ahead(pair)
    for rows, length in ((5, 64), (3, llm_models.CONTEXT)):
        pair.package.kv_resize(rows, length)
    check_rows(pair, texts)


def test_a_copy_goes_its_own_way(pair):
    texts = ahead(pair)
    fork = pair.package.fork()
    check_rows(pair, texts)
    pair.package, first = fork, pair.package
    try:
        check_rows(pair, texts)
    finally:
        pair.package = first


def test_states_are_saved(pair, tmp_path):
    texts = ahead(pair)
    pair.package.save(tmp_path / "states")
    pair.package.reset()
    pair.run(tokens(30, 3))
    pair.package.restore(tmp_path / "states")
    assert pair.package.kv_lengths() == [20, 9, 9]
    check_rows(pair, texts)


def test_a_row_begins_anew(pair):
    texts = ahead(pair)
    more = tokens(11)
    check(one_row(pair, more, 0, 0), pair.expected(more))
    check_rows(pair, [more[0], *texts[1:]])


def test_a_row_goes_on_or_begins_anew(pair):
    texts = ahead(pair)
    for first in (5, 19):
        with pytest.raises(graft.ExecutionError, match=f"row 0: position {first} goes back from 20 tokens; the recurrent"):
            one_row(pair, tokens(4), 0, first)
    with pytest.raises(graft.ExecutionError, match="row 1: position 10 leaves a gap: the cache holds 9 tokens"):
        one_row(pair, tokens(4), 1, 10)
    with pytest.raises(graft.InvalidArgument, match="row 0 of 20 tokens cannot have 8: its recurrent states"):
        pair.package.kv_truncate(8)
    assert pair.package.kv_lengths() == [20, 9, 9]
    check_rows(pair, texts)


def test_weights_that_transformers_has_halved(tmp_path):
    """RWKV's first call halves weights of later layers, and from then on what goes into them."""
    model = llm_models.BY_NAME["rwkv"].make()
    assert not model.rwkv.layers_are_rescaled
    fresh = make_pair(tmp_path, copy.deepcopy(model))
    ids = tokens(20)
    expected = fresh.expected(ids)
    assert fresh.eager.rwkv.layers_are_rescaled
    check(fresh.run(ids), expected)
    check(make_pair(tmp_path, fresh.eager).run(ids), expected)


# Generators -----------------------------------------------------------------------------------------------------------

SETTINGS = dict(max_new_tokens=20, ignore_eos=True)


def greedy(model, ids, count=20):
    settings = dict(do_sample=False, max_new_tokens=count, eos_token_id=-1, pad_token_id=0)
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **settings)
    return out[0, len(ids) :].tolist()


def test_generators_say_what_transformers_says(pair, package):
    prompts = [tokens(n)[0].tolist() for n in (3, 40, 17, 9, 64)]
    expected = [greedy(pair.eager, prompt) for prompt in prompts]
    alone = graft.TextGenerator(package, prefill_chunk_size=16)
    assert [alone.generate(prompt, **SETTINGS).tokens for prompt in prompts] == expected
    # A second turn goes on from the first one's state; one that leaves it begins anew.
    turn = [*prompts[1], *expected[1], 5, 6, 7]
    alone.generate(prompts[1], **SETTINGS)
    before = alone.stats["reused_tokens"]
    assert alone.generate(turn, **SETTINGS).tokens == greedy(pair.eager, turn)
    assert alone.stats["reused_tokens"] - before == len(prompts[1]) + len(expected[1]) - 1
    assert alone.generate(turn[:30], **SETTINGS).tokens == greedy(pair.eager, turn[:30])
    # Two rows at a time: rows join while others are in their prompts.
    batch = graft.BatchGenerator(package, rows=2, prefill_chunk_size=16)
    ids = [batch.submit(prompt, **SETTINGS) for prompt in prompts]
    while batch.step():
        pass
    assert [batch.take(one).tokens for one in ids] == expected


def test_what_generators_refuse(package):
    generator = graft.TextGenerator(package)
    with pytest.raises(graft.Unsupported, match="prompt_lookup_num_tokens is 3; a model with recurrent states cannot take"):
        generator.generate([5, 6, 7], prompt_lookup_num_tokens=3, max_new_tokens=4)
    with pytest.raises(graft.Unsupported, match="a prefix cache keeps keys and values of tokens; the model has recurrent"):
        graft.BatchGenerator(package, prefix_cache_bytes=1 << 20)
    assert len(generator.generate([5, 6, 7], max_new_tokens=4, ignore_eos=True).tokens) == 4
