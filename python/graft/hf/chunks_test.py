from __future__ import annotations

import pytest

from graft.errors import InvalidArgument
from graft.hf.chunks import Chunk, chunks


def sizes_of(*args):
    return [(chunk.end - chunk.begin, chunk.size) for chunk in chunks(*args)]


def test_the_smallest_that_holds_the_rest():
    assert sizes_of(1, (1, 8, 16)) == [(1, 1)]
    assert sizes_of(5, (1, 8, 16)) == [(5, 8)]
    assert sizes_of(16, (1, 8, 16)) == [(16, 16)]
    assert sizes_of(35, (1, 8, 16)) == [(16, 16), (16, 16), (3, 8)]
    assert sizes_of(0, (1, 8)) == []


def test_chunks_follow_each_other():
    assert list(chunks(20, (4, 16))) == [Chunk(0, 16, 16), Chunk(16, 20, 4)]
    assert Chunk(16, 18, 4).padding == 2


def test_padding_stays_within_the_room():
    assert sizes_of(5, (1, 4, 8), 7) == [(4, 4), (1, 1)]
    assert sizes_of(3, (1, 4), 3) == [(1, 1)] * 3
    with pytest.raises(InvalidArgument, match="room for 2 more columns"):
        sizes_of(3, (2, 4), 1)
