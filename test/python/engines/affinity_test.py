"""Which replica a prompt goes to, without a server."""

from __future__ import annotations

import collections
import json

import pytest

import graft
from graft.ray.affinity import Affinity, blocks
from graft.ray.requests import described

REPLICAS = [f"r{i}" for i in range(10)]


def a_prompt(number: int, length: int = 2000) -> bytes:
    return (f"{number} " * length).encode()[:length]


def test_blocks_know_all_before_them():
    one, two = blocks(b"a" * 600), blocks(b"a" * 600 + b"b" * 600)
    assert len(one) == 2 and two[:2] == one and len(two) == 4
    assert blocks(b"b" * 256 + b"a" * 344)[1] != one[1]
    assert len(blocks(b"short")) == 1 and len(blocks(b"")) == 1
    assert blocks(b"short") != blocks(b"other")


def test_the_ring_is_even_and_moves_little():
    place = {i: next(Affinity(REPLICAS, points=64).order(blocks(a_prompt(i)))) for i in range(2000)}
    counts = collections.Counter(place.values())
    assert set(counts) == set(REPLICAS) and max(counts.values()) < 2 * 200
    fewer = Affinity(REPLICAS)
    fewer.update(REPLICAS[1:])
    moved = [i for i, replica in place.items() if next(fewer.order(blocks(a_prompt(i)))) != replica]
    assert len(moved) == counts["r0"]  # those of the one that went


def test_a_known_beginning_comes_first_where_it_is_most_of_a_prompt():
    affinity = Affinity(REPLICAS)
    talk = a_prompt(1)
    affinity.record(blocks(talk), "r3")
    affinity.record(blocks(talk[:512] + b"another" * 100), "r5")
    assert next(affinity.order(blocks(talk + b"more" * 200))) == "r3"
    assert next(affinity.order(blocks(talk[:600]))) == "r5"  # the last that computed these two
    other = blocks(talk[:256] + b"some other text. " * 200)
    assert [next(affinity.order(other, i << 60)) for i in range(16)] == [next(Affinity(REPLICAS).order([i << 60])) for i in range(16)]
    assert sorted(affinity.order(blocks(talk))) == sorted(REPLICAS)
    affinity.update([r for r in REPLICAS if r != "r3"])
    assert "r3" not in list(affinity.order(blocks(talk)))


def test_loads_are_bounded():
    affinity, loads = Affinity(REPLICAS, bound=1.25, free=3), collections.Counter()
    for number in range(1000):
        prompt = blocks(a_prompt(0))  # all want the same
        chosen = affinity.choose(prompt, loads.__getitem__, number)
        assert chosen is not None
        loads[chosen] += 1
        affinity.record(prompt, chosen)
        assert max(loads.values()) <= affinity.limit(number)
        assert number > 2 or loads[chosen] == number + 1
    assert max(loads.values()) <= 126
    assert Affinity().choose([1], loads.__getitem__, 0) is None


def test_only_what_was_used_last_is_remembered():
    affinity = Affinity(REPLICAS, remembered=3)
    ring = {block: next(affinity.order([block])) for block in (1, 2)}
    other = {block: next(r for r in REPLICAS if r != ring[block]) for block in (1, 2)}
    affinity.record([1], other[1])
    affinity.record([2], other[2])
    affinity.record([7, 8], "r0")
    assert next(affinity.order([1])) == ring[1] and next(affinity.order([2])) == other[2]


@pytest.mark.parametrize("settings", [{"bound": 1.0}, {"bound": float("nan")}, {"free": -1}, {"points": 0}, {"remembered": -1}])
def test_wrong_settings(settings):
    with pytest.raises(graft.InvalidArgument, match="must be"):
        Affinity(REPLICAS, **settings)


def test_what_is_read_of_requests():
    def request(body: str, headers=()):
        return described("POST", "/v1/chat/completions", tuple(headers), body.encode())

    def prompt(body: str, headers=()):
        return request(body, headers).prompt

    words = "one two three " * 60
    first = f'{{"model": "m", "messages": [{{"role": "user", "content": "{words}"}}'
    turn, later = prompt(first + "]}"), prompt(first + ', {"role": "assistant", "content": "' + words + '"}]}')
    assert len(turn) >= 3 and later[: len(turn) - 1] == turn[:-1] and len(later) > len(turn)
    more = first + ', {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}'
    assert request(more).talk == request(first + "]}").talk != request(first.replace("two", "2") + "]}").talk
    assert prompt(first.replace('"m"', '"n"') + "]}")[0] != turn[0]
    assert prompt(first + "]}", [("Authorization", "Bearer x")])[0] != turn[0]
    assert described("POST", "/v1/completions", (), b'{"model": "m", "prompt": [1, 2]}').model == "m"
    assert described("GET", "/v2/models/net?x=1", (), b"").model == "net"
    assert described("POST", "/v2/models/net/infer", (), b"{").model == "net"
    named = described("POST", "/v1/completions", (), b'{"prompt": "x"}', "m")
    assert named.model == "m" and json.loads(named.body) == {"model": "m", "prompt": "x"}
    assert described("POST", "/v1/completions", (), b'{"model": "n"}', "m").body == b'{"model": "n"}'
    for body in (b"", b"{", b"[]", b'"text"', b'{"model": 3}', b"\xff"):
        assert described("POST", "/v1/completions", (), body).model == ""
        assert described("POST", "/v1/completions", (), body).prompt == []
