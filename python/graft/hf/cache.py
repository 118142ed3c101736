"""Cache objects of transformers as handles: keys and values lie in a session of the engine, and nowhere else.

`adopt` replaces the layers of a cache in place, so that whoever holds it keeps a working cache.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import cache_utils

from graft.errors import InvalidArgument, Unsupported
from graft.hf.engine import Engine
from graft.hf.state import Kind, State


class HandleLayer(cache_utils.CacheLayerMixin):
    """One layer of an adopted cache. What concerns all layers is done by the first."""

    is_compileable = False  # generate() then passes masks unchanged, and compiles nothing
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
        pass  # already in place

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


def release(cache: Any, engine: Engine) -> None:
    """Makes a handle a cache of transformers again, in place, with copies of its keys and values. Columns of padding are
    zeros."""
    state = state_of(cache, engine)
    if state is None:
        return
    columns = state.columns
    cache.layers = [
        kind.layer(*(state.materialize(i) if columns else (None, None)), columns) for i, kind in enumerate(state.kinds)
    ]
    state.close()


def _length(layer: Any) -> int:
    return int(layer.get_seq_length() if hasattr(layer, "get_seq_length") else 0)


def adopt(cache: Any, engine: Engine, dtype: torch.dtype, real: torch.Tensor | None) -> State:
    """Makes the cache a handle, in place. real: bool [rows, columns] of the tokens that it holds already."""
    count = len(engine.layers)
    # Of a decoder, transformers counts the layers of the encoder in its configuration: there may be more.
    layers = [*cache.layers[:count], *(layer for layer in cache.layers[count:] if _length(layer))]
    for layer in layers:
        if type(layer) not in _ADOPTED and _length(layer):
            raise Unsupported(
                f"past_key_values: a cache with tokens in {type(layer).__name__} cannot be taken over; start with an "
                "empty one"
            )
    columns = int(cache.get_seq_length()) if layers else 0
    kinds = [Kind.of(layer) for layer in layers] or [Kind()] * count
    if len(kinds) != count:
        raise InvalidArgument(f"past_key_values: the cache has {len(kinds)} layers, the model {count}")
    state = engine.new_state(kinds, dtype)
    if columns:
        state.take_over(layers, columns, real)
    cache.layers = [HandleLayer(state, i) for i in range(count)]
    cache.layer_class_to_replicate = None
    cache.offloading = False
    return state


__all__ = ["HandleLayer", "adopt", "release", "state_of"]
