"""The session behind one cache of transformers: where its keys and values lie, and which of its columns are tokens.

A cache counts columns as transformers does (padding included); the engine's rows hold tokens only.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import cache_utils

from graft import _C
from graft._dtypes import NUMBER_OF
from graft.errors import InvalidArgument

_F32 = NUMBER_OF[torch.float32]


@dataclass(frozen=True)
class Layer:
    """Geometry of one layer's keys and values."""

    heads: int
    key_size: int
    value_size: int


class Sessions(Protocol):
    """What a state asks of the engine that it belongs to (`graft.hf.engine.Engine`)."""

    layers: tuple[Layer, ...]
    generation: int
    counts: dict[str, int]

    def room(self, tokens: int) -> int: ...

    def open(self, rows: int, length: int) -> _C.Session: ...

    def adopt(self, session: _C.Session) -> None: ...

    def give_back(self, session: _C.Session, generation: int) -> None: ...

    def run_chunks(
        self,
        session: _C.Session,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cached: torch.Tensor,
        keep: torch.Tensor,
        adapters: Sequence[Any] = (),
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Kind:
    """What a layer was before it became a handle, which decides what `keys` looks like."""

    static: bool = False
    size: int = -1  # window of a sliding layer, length of a static one; -1: neither
    sliding: bool = False

    @staticmethod
    def of(layer: Any) -> Kind:
        if isinstance(layer, cache_utils.StaticSlidingWindowLayer):
            return Kind(True, layer.max_cache_len, True)
        if isinstance(layer, cache_utils.StaticLayer):
            return Kind(True, layer.max_cache_len)
        if isinstance(layer, cache_utils.DynamicSlidingWindowLayer):
            return Kind(False, layer.sliding_window, True)
        return Kind()

    def layer(self, keys: torch.Tensor | None, values: torch.Tensor | None, columns: int) -> Any:
        """Such a layer of transformers that has seen so many columns, and holds what `shown` gives of them."""
        if self.static and self.sliding:
            made = cache_utils.StaticSlidingWindowLayer(max_cache_len=self.size, sliding_window=self.size)
        elif self.static:
            made = cache_utils.StaticLayer(max_cache_len=self.size)
        else:
            made = cache_utils.DynamicSlidingWindowLayer(self.size) if self.sliding else cache_utils.DynamicLayer()
        if columns:
            made.lazy_initialization(keys, values)
            made.keys, made.values = keys, values
            if self.static:
                made.cumulative_length.fill_(columns)
                if self.sliding:
                    made.cumulative_length_int = columns
            elif self.sliding:
                made.cumulative_length = columns
        return made

    def shown(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of all columns [B, H, n, D], what such a layer holds."""
        if not self.static:
            return tensor[:, :, -self.size + 1 :] if self.sliding else tensor
        tensor = tensor[:, :, -self.size :]
        return torch.nn.functional.pad(tensor, (0, 0, 0, self.size - tensor.shape[2]))

    def held(self, columns: int) -> int:
        """How many of the last columns such a layer holds."""
        if not self.sliding:
            return columns
        return min(columns, self.size if self.static else max(self.size - 1, 0))


class State:
    """The session behind one cache, and which of its columns are tokens."""

    def __init__(self, engine: Sessions, kinds: Sequence[Kind], dtype: torch.dtype) -> None:
        self.engine, self.kinds, self.dtype = engine, tuple(kinds), dtype
        self.rows = 0
        self.columns = 0
        self.real: torch.Tensor | None = None  # bool [rows, columns]; None: all are tokens
        self.session: _C.Session | None = None
        self.generation = 0  # of the engine's weights, those of the tokens held
        self.adapters: Sequence[Any] = ()  # of the next run: none, one, or one or None per row
        self._capacity = 0
        self._release: Any = None
        limits = [kind.size for kind in kinds if kind.static and not kind.sliding]
        self.limit = min(limits) if limits else None

    # --- the session ---

    def prepare(self, rows: int, columns: int) -> None:
        """Room for so many rows and columns."""
        if self.limit is not None and columns > self.limit:
            raise InvalidArgument(f"the static cache has room for {self.limit} tokens, {columns} are needed")
        if self.session is not None and rows != self.rows:
            if self.columns:
                raise InvalidArgument(f"the cache holds {self.rows} rows, the batch has {rows}")
            self.close()
        if self.session is not None and not self.columns and self.generation != self.engine.generation:
            self.close()
        if self.session is None:
            self.generation = self.engine.generation
            self._capacity = self.limit or self.engine.room(columns)
            self._hold(self.engine.open(rows, self._capacity))
            self.rows = rows
        elif columns > self._capacity:
            self._capacity = self.engine.room(columns)
            self.session.kv_resize(rows, self._capacity)
            self.engine.counts["resized"] += 1

    def _hold(self, session: _C.Session) -> None:
        self.session = session
        self._release = weakref.finalize(self, self.engine.give_back, session, self.generation)
        self._release.atexit = False

    def close(self) -> None:
        """Gives the session back at once."""
        if self.session is not None:
            self._release()
            self.session = None

    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [self.columns] * self.rows if self.real is None else self.real.sum(1).tolist()

    # --- what a cache does ---

    def reset(self) -> None:
        self.columns, self.real = 0, None

    def crop(self, removed: int) -> None:
        columns = max(self.columns - removed, 0)
        real = None if self.real is None else self.real[:, :columns]
        left = [columns] * self.rows if real is None else real.sum(1).tolist()
        for row, length in enumerate(left):
            if 0 < length < (shortest := self.session.kv_shortest(row)):
                raise InvalidArgument(
                    f"crop: row {row} of the cache can go back to {shortest} tokens, as many as its layers with a window "
                    f"still need, not to {length}"
                )
        self.columns, self.real = columns, real

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row rows[i] was; there are as many rows afterwards."""
        if self.session is None:
            return
        if list(rows) == list(range(self.rows)):
            return
        # The engine may still hold tokens that were cropped since.
        self.session.kv_set_lengths(self.lengths())
        if len(rows) > self.rows:
            self.session.kv_resize(len(rows), self._capacity)
        self.session.kv_select(list(rows))
        if len(rows) < self.rows:
            self.session.kv_resize(len(rows), self._capacity)
        if self.real is not None:
            self.real = self.real[list(rows)]
        self.rows = len(rows)
        self.engine.counts["reordered"] += 1

    def compute(
        self, ids: torch.Tensor, positions: torch.Tensor, real: torch.Tensor | None, keep: torch.Tensor
    ) -> torch.Tensor:
        """Runs new columns, ids and positions [rows, tokens]; real: of all columns, these included. Logits of the kept
        ones, [rows, kept, vocabulary]."""
        rows, tokens = ids.shape
        self.prepare(rows, self.columns + tokens)
        cached, order = self._cache_positions(real, tokens)
        if order is None:
            logits = self.engine.run_chunks(self.session, ids.contiguous(), positions, cached, keep, self.adapters)
        else:
            self.engine.counts["rearranged"] += 1
            moved = (t.gather(1, order).contiguous() for t in (ids, positions, cached))
            logits = self.engine.run_chunks(self.session, *moved, torch.arange(tokens), self.adapters)
            back = order.argsort(1)[:, keep]
            logits = logits.gather(1, back[:, :, None].expand(-1, -1, logits.shape[2]))
        self.columns += tokens
        self.real = real
        return logits

    def _cache_positions(self, real: torch.Tensor | None, tokens: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The token of the cache that each new column is [rows, tokens], -1 for padding; and the order in which the
        engine takes the columns, when that is another than theirs: padding comes first."""
        past = self.columns
        if real is None:
            return torch.arange(past, past + tokens).expand(self.rows, -1).contiguous(), None
        new = real[:, past:]
        before = real[:, :past].sum(1, keepdim=True)
        cached = (before + new.cumsum(1) - 1).masked_fill(~new, -1)
        if bool((new[:, :-1] & ~new[:, 1:]).any()):
            return cached, new.to(torch.int8).argsort(dim=1, stable=True)
        return cached, None

    def fork(self) -> State:
        copy = State(self.engine, self.kinds, self.dtype)
        copy.rows, copy.columns, copy.limit = self.rows, self.columns, self.limit
        copy.generation = self.generation
        copy.real = None if self.real is None else self.real.clone()
        copy._capacity = self._capacity
        if self.session is not None:
            self.session.kv_set_lengths(self.lengths())
            session = self.session.fork()
            self.engine.adopt(session)
            copy._hold(session)
        self.engine.counts["forked"] += 1
        return copy

    # --- keys and values as tensors ---

    def materialize(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer [rows, heads, columns, size] as its kind of layer shows them. Columns of padding
        are zeros."""
        shape = self.engine.layers[layer]
        kind = self.kinds[layer]
        self.engine.counts["materialized"] += 1
        widths = (shape.key_size, shape.value_size)
        sides = [torch.zeros(self.rows, shape.heads, self.columns, n, dtype=torch.float32) for n in widths]
        lengths = self.lengths()
        self.session.kv_set_lengths(lengths)
        held = kind.held(self.columns)
        for row, length in enumerate(lengths):
            columns = torch.arange(self.columns) if self.real is None else self.real[row].nonzero()[:, 0]
            columns = columns[columns >= self.columns - held]
            if not len(columns):
                continue
            pieces = [torch.empty(shape.heads, len(columns), n, dtype=torch.float32) for n in widths]
            self.session.kv_read(layer, row, length - len(columns), *(_described(piece) for piece in pieces))
            for side, piece in zip(sides, pieces):
                side[row, :, columns] = piece
        return tuple(kind.shown(side).to(self.dtype) for side in sides)

    def take_over(self, layers: Sequence[Any], columns: int, real: torch.Tensor | None) -> None:
        """Copies what an eager cache holds. real: bool [rows, columns], which of its columns are tokens."""
        if len(layers) != len(self.engine.layers):
            raise InvalidArgument(f"the cache has {len(layers)} layers, the model has {len(self.engine.layers)}")
        rows = layers[0].keys.shape[0]
        self.prepare(rows, columns)
        for number, (layer, kind, shape) in enumerate(zip(layers, self.kinds, self.engine.layers)):
            sides = [layer.keys, layer.values]
            expected = [[rows, shape.heads, n] for n in (shape.key_size, shape.value_size)]
            found = [[*side.shape[:2], side.shape[3]] for side in sides]
            if found != expected:
                raise InvalidArgument(f"layer {number} of the cache: expected sizes {expected}, found {found}")
            held = kind.held(columns)
            first = columns - held
            # Static layers hold their columns from the start; those of a full window are its last.
            sides = [side[:, :, :held] if kind.static else side[:, :, side.shape[2] - held :] for side in sides]
            for row in range(rows):
                columns_of_row = torch.arange(first, columns)
                before = first
                if real is not None:
                    before = int(real[row, :first].sum())
                    columns_of_row = columns_of_row[real[row, first:]]
                pieces = [side[row][:, columns_of_row - first].to("cpu", torch.float32) for side in sides]
                self._write(number, row, before, [piece.contiguous() for piece in pieces], columns_of_row)
        self.columns = columns
        self.real = None if real is None or bool(real.all()) else real.clone()
        self._finish_writing()
        self.engine.counts["imported"] += 1

    def _write(self, layer: int, row: int, first: int, sides: Sequence[torch.Tensor], columns: torch.Tensor) -> None:
        """Keys and values [heads, tokens, size] of a row's tokens from `first` on, which are in these columns."""
        self.session.kv_write(layer, row, first, *(_described(side) for side in sides))

    def _finish_writing(self) -> None:
        self.session.kv_set_lengths(self.lengths())


def _described(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    return (tensor.data_ptr(), _F32, tuple(tensor.shape))


__all__ = ["Kind", "Layer", "Sessions", "State"]
