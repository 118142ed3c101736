"""Cache objects of transformers as handles: keys and values lie in a session of the engine, and nowhere else.

`adopt` replaces the layers of a cache in place, so that whoever holds it keeps a working cache. A handle counts columns
as transformers does (padding included); the engine's rows hold real tokens only.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import cache_utils

from graft import _C
from graft._dtypes import NUMBER_OF
from graft.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from graft.hf.engine import Engine

_F32 = NUMBER_OF[torch.float32]


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

    def __init__(self, engine: Engine, kinds: Sequence[Kind], dtype: torch.dtype) -> None:
        self.engine, self.kinds, self.dtype = engine, tuple(kinds), dtype
        self.rows = 0
        self.columns = 0
        self.real: torch.Tensor | None = None  # bool [rows, columns]; None: all are tokens
        self.session: _C.Session | None = None
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
        if self.session is None:
            self._capacity = self.limit or self.engine.room(columns)
            self._hold(self.engine.open(rows, self._capacity))
            self.rows = rows
        elif columns > self._capacity:
            self._capacity = self.engine.room(columns)
            self.session.kv_resize(rows, self._capacity)
            self.engine.counts["resized"] += 1

    def _hold(self, session: _C.Session) -> None:
        self.session = session
        self._release = weakref.finalize(self, self.engine.give_back, session)
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
        # The engine may hold tokens that were cropped away since.
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
            logits = self.engine.run_pieces(self.session, ids.contiguous(), positions, cached, keep)
        else:
            self.engine.counts["rearranged"] += 1
            moved = (t.gather(1, order).contiguous() for t in (ids, positions, cached))
            logits = self.engine.run_pieces(self.session, *moved, torch.arange(tokens))
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


class HandleLayer(cache_utils.CacheLayerMixin):
    """One layer of an adopted cache. What concerns all layers is done by the first."""

    is_compileable = False  # generate() then hands over masks as they are, and compiles nothing
    is_croppable = True
    is_sliding = False
    supports_early_init = False
    is_initialized = True
    device = torch.device("cpu")

    def __init__(self, state: State, index: int) -> None:
        self.state, self.index = state, index

    def __repr__(self) -> str:
        return f"graft layer {self.index}, {self.state.rows} x {self.state.columns} tokens"

    def __deepcopy__(self, memo: dict[int, Any]) -> HandleLayer:
        state = memo.get(id(self.state))
        if state is None:
            state = memo[id(self.state)] = self.state.fork()
        return HandleLayer(state, self.index)

    @property
    def keys(self) -> torch.Tensor | None:
        """A copy of what the engine holds."""
        return self.state.materialize(self.index)[0] if self.state.columns else None

    @property
    def values(self) -> torch.Tensor | None:
        return self.state.materialize(self.index)[1] if self.state.columns else None

    @property
    def dtype(self) -> torch.dtype:
        return self.state.dtype

    @property
    def batch_size(self) -> int:
        return self.state.rows

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._not_written()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._not_written()

    def _not_written(self) -> None:
        raise Unsupported(
            "this cache belongs to a model compiled with graft: its keys and values are in the engine, which alone "
            "writes them; give other models a cache of their own"
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.state.columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.state.columns

    def get_max_length(self) -> int:
        return self.state.kinds[self.index].size

    def offload(self) -> None:
        pass  # it is where it belongs

    def prefetch(self) -> None:
        pass

    def reset(self) -> None:
        if self.index == 0:
            self.state.reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.index == 0:
            self.state.select(beam_idx.tolist())

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(f"crop: expected a number of tokens to remove, at most 0, found {tokens_to_remove}")
        if self.index == 0:
            self.state.crop(-tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.index == 0:
            self.state.select([row for row in range(self.state.rows) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.index == 0:
            self.state.select(torch.arange(self.state.rows)[indices].tolist())


_ADOPTED = (
    cache_utils.DynamicLayer,
    cache_utils.DynamicSlidingWindowLayer,
    cache_utils.StaticLayer,
    cache_utils.StaticSlidingWindowLayer,
)


def state_of(cache: Any, engine: Engine) -> State | None:
    """The state of a cache that was adopted; None for one that was not."""
    if not isinstance(cache, cache_utils.Cache) or isinstance(cache, cache_utils.EncoderDecoderCache):
        raise InvalidArgument(f"past_key_values: expected a Cache of transformers, found {type(cache).__name__}")
    if not cache.layers or not isinstance(cache.layers[0], HandleLayer):
        return None
    state = cache.layers[0].state
    if state.engine is not engine:
        raise InvalidArgument("past_key_values: expected a cache of this model, found one of another compiled model")
    return state


def adopt(cache: Any, engine: Engine, dtype: torch.dtype, real: torch.Tensor | None) -> State:
    """Makes the cache a handle, in place. real: bool [rows, columns] of the tokens that it holds already."""
    layers = list(cache.layers)
    for layer in layers:
        if type(layer) not in _ADOPTED and int(layer.get_seq_length() if hasattr(layer, "get_seq_length") else 0):
            raise Unsupported(
                f"past_key_values: a cache with tokens in {type(layer).__name__} cannot be taken over; start with an "
                "empty one"
            )
    kinds = [Kind.of(layer) for layer in layers] or [Kind()] * len(engine.layers)
    if len(kinds) != len(engine.layers):
        raise InvalidArgument(f"past_key_values: the cache has {len(kinds)} layers, the model {len(engine.layers)}")
    state = engine.new_state(kinds, dtype)
    columns = int(cache.get_seq_length()) if layers else 0
    if columns:
        state.take_over(layers, columns, real)
    cache.layers = [HandleLayer(state, i) for i in range(len(kinds))]
    cache.layer_class_to_replicate = None
    cache.offloading = False
    return state


__all__ = ["HandleLayer", "State", "adopt", "state_of"]
