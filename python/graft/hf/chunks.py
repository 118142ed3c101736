"""How a prompt is divided into calls of fixed lengths, so that few plans or programs serve all prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graft.errors import InvalidArgument


@dataclass(frozen=True)
class Chunk:
    """Columns [begin, end) of a prompt, computed by a call of `size` columns: size - (end - begin) of these are padding."""

    begin: int
    end: int
    size: int

    @property
    def padding(self) -> int:
        return self.size - (self.end - self.begin)


def chunks(tokens: int, sizes: Sequence[int], room: int | None = None) -> Iterator[Chunk]:
    """Chunks of a prompt of so many tokens. sizes: that calls may have, in ascending order. Each chunk takes the smallest
    size that holds the rest of the prompt, or else the largest.

    room: columns, padding included, that the cache has left; sizes beyond are not used. None: no limit.
    """
    begin = 0
    while begin < tokens:
        fitting = sizes if room is None else [size for size in sizes if size <= room - begin]
        if not fitting:
            raise InvalidArgument(f"expected room for {sizes[0]} more columns of the cache, found {room - begin}")
        size = next((size for size in fitting if size >= tokens - begin), fitting[-1])
        end = min(begin + size, tokens)
        yield Chunk(begin, end, size)
        begin = end


__all__ = ["Chunk", "chunks"]
