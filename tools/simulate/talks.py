"""What people ask: talks of several turns, each after a prompt of the system that many share."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from events import TOKENS, Request


def digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())


@dataclass(frozen=True)
class Talks:
    """rate: talks that begin per second. systems: different prompts of the system, the k-th as often as 1/k.
    system, user, answer: tokens of each, the last two drawn from half to one and a half of these. turns: mean number, geometric.
    pause: mean seconds between an answer and the next turn, exponential."""

    rate: float
    seconds: float
    systems: int = 20
    system: int = 256
    user: int = 64
    answer: int = 48
    turns: float = 4.0
    pause: float = 10.0
    context: int = 2048
    seed: int = 0


class Talk:
    """The blocks of a talk so far are those of its system, then numbers of its own."""

    def __init__(self, talks: Talks, number: int, draw: random.Random) -> None:
        self.talks, self.number, self.draw = talks, number, random.Random(draw.random())
        weights = [1 / (k + 1) for k in range(talks.systems)]
        self.system = draw.choices(range(talks.systems), weights)[0]
        self.tokens, self.key = talks.system, digest("talk", number)
        self.turns = 1
        while self.draw.random() < 1 - 1 / talks.turns:
            self.turns += 1

    def turn(self, at: float) -> Request | None:
        if not self.turns or self.tokens + 2 * (self.talks.user + self.talks.answer) > self.talks.context:
            return None
        self.turns -= 1
        self.tokens += self._around(self.talks.user)
        answer = self._around(self.talks.answer)
        shared = self.talks.system // TOKENS
        blocks = [digest("system", self.system, i) for i in range(shared)]
        blocks += [digest("talk", self.number, i) for i in range(shared, self.tokens // TOKENS)]
        request = Request(at, blocks, self.key, self.tokens, answer, self._next)
        self.tokens += answer
        return request

    def _next(self, now: float) -> Request | None:
        return self.turn(now + self.draw.expovariate(1 / self.talks.pause)) if self.turns else None

    def _around(self, mean: int) -> int:
        return self.draw.randint(mean // 2, mean + mean // 2)


def arrivals(talks: Talks) -> Iterator[Request]:
    """The first turns; each brings the next one of its talk."""
    draw, now, number = random.Random(talks.seed), 0.0, 0
    while (now := now + draw.expovariate(talks.rate)) < talks.seconds:
        first = Talk(talks, number, draw).turn(now)
        number += 1
        if first is not None:
            yield first


__all__ = ["Talks", "arrivals"]
