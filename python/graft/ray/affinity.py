"""Which replica a prompt goes to: the one that knows its beginning, unless it has too much to do.

Consistent hashing with bounded loads, over what was routed before. A prompt is a list of blocks, each known by a digest of
itself and all before it. The replica that computed the longest run of these is asked first where that is most of the
prompt. Else a ring of hashes says which by the talk, the same for all its turns, in every router and, but for a fraction,
after replicas came or went: a beginning that many talks share (a prompt of the system) is soon known everywhere.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from graft.errors import InvalidArgument

BLOCK = 256  # bytes of a prompt; a block of 64 tokens is about as long


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def blocks(prompt: bytes, size: int = BLOCK) -> list[int]:
    """A digest for each whole block of a prompt and, of a prompt shorter than one, for all of it."""
    chained, found = b"", list[int]()
    for begin in range(0, max(len(prompt) - size, 0) + 1, size):
        chained = hashlib.blake2b(chained + prompt[begin : begin + size], digest_size=8).digest()
        found.append(int.from_bytes(chained))
    return found


class Affinity:
    """Chooses among replicas, which are known by texts.

    bound: a replica may have `bound` times the mean load, rounded up, before a prompt that it knows goes elsewhere; above 1.
    free: it may have this much in any case.
    points: of each replica on the ring. remembered: blocks, those used last, whose replica is kept in mind.
    """

    def __init__(
        self,
        replicas: Iterable[str] = (),
        *,
        bound: float = 1.25,
        free: int = 4,
        points: int = 64,
        remembered: int = 1 << 16,
    ) -> None:
        if not bound > 1 or not math.isfinite(bound):
            raise InvalidArgument(f"bound must be above 1, got {bound}")
        for name, value, least in (("free", free, 0), ("points", points, 1), ("remembered", remembered, 0)):
            if value < least:
                raise InvalidArgument(f"{name} must be at least {least}, got {value}")
        self.bound, self.free, self.points, self.remembered = bound, free, points, remembered
        self._known: OrderedDict[int, str] = OrderedDict()
        self.replicas: frozenset[str] = frozenset()
        self._ring: list[tuple[int, str]] = []
        self.update(replicas)

    def update(self, replicas: Iterable[str]) -> None:
        """These are there now."""
        now = frozenset(replicas)
        if now == self.replicas:
            return
        added = [(_hash(f"{r}/{i}".encode()), r) for r in now - self.replicas for i in range(self.points)]
        self._ring = sorted([*(point for point in self._ring if point[1] in now), *added])
        self.replicas = now

    def order(self, prompt: Sequence[int], talk: int | None = None) -> Iterator[str]:
        """All replicas, best first, whatever their loads. talk: a digest that all turns of one have; None: the first block."""
        half = prompt[len(prompt) // 2 :]
        first = next((r for block in reversed(half) if (r := self._known.get(block)) in self.replicas), None)
        if first is not None:
            yield first
        seen = {first} if first is not None else set[str]()
        start = bisect.bisect(self._ring, (talk if talk is not None else prompt[0] if prompt else 0, ""))
        for i in range(len(self._ring)):
            if len(seen) == len(self.replicas):
                return
            replica = self._ring[(start + i) % len(self._ring)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica

    def limit(self, total: int) -> int:
        """What a replica may have of `total` requests, the new one included."""
        return max(self.free, math.ceil(self.bound * (total + 1) / max(len(self.replicas), 1)))

    def choose(
        self, prompt: Sequence[int], load: Callable[[str], int], total: int, talk: int | None = None
    ) -> str | None:
        """The first in order whose load stays within the limit; None without replicas. load: requests that a replica has;
        total: that all have."""
        limit, last = self.limit(total), None
        for replica in self.order(prompt, talk):
            last = last or replica
            if load(replica) < limit:
                return replica
        return last  # loads that are known late may add up to more than the total

    def record(self, prompt: Sequence[int], replica: str) -> None:
        """It computes this prompt now."""
        for block in prompt:
            self._known[block] = replica
            self._known.move_to_end(block)
        while len(self._known) > self.remembered:
            self._known.popitem(last=False)


__all__ = ["BLOCK", "Affinity", "blocks"]
