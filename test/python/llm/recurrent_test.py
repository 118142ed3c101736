"""Layers with recurrent states in packages: what callers do to rows between runs, runs that fail, the parts of the library that
cannot work with them. Their numbers are compared in package_test.py."""

import pytest
import torch

import graft
import llm_models
from llm_models import RECURRENT
from package_test import check, make_pair, tokens

CASES = [pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.slow else []) for m in RECURRENT]


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp(request.param.name), request.param.make())


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
