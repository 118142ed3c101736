"""What transformers' models are told while they are traced: attention, masks, experts and cache of graft.

Models that dispatch through AttentionInterface then have one `graft::attention` per layer, and no mask: which keys a
token sees follows from `cache_position`, the window and the chunk. A model whose mask says anything else is an error.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.moe import ExpertsInterface

from graft.errors import ExportError
from graft.llm import ops

NAME = "graft"

# cache_position is common to all layers, but not an argument of a model's layers.
_cache_position: contextvars.ContextVar[torch.Tensor] = contextvars.ContextVar("graft_cache_position")
_blocks: contextvars.ContextVar[torch.Tensor | None] = contextvars.ContextVar("graft_blocks", default=None)


@contextlib.contextmanager
def positions(cache_position: torch.Tensor, blocks: torch.Tensor | None = None) -> Iterator[None]:
    """Within it, attention uses this cache_position [B, T], and where tokens see each other in blocks these [B, T, 2]."""
    token, of_blocks = _cache_position.set(cache_position), _blocks.set(blocks)
    try:
        yield
    finally:
        _cache_position.reset(token)
        _blocks.reset(of_blocks)
        for noted in (_conv, _recurrent, _handed_over):
            noted.set(None)


def cache_position() -> torch.Tensor:
    return _cache_position.get()


_whole_blocks: contextvars.ContextVar[bool] = contextvars.ContextVar("graft_whole_blocks", default=False)


@contextlib.contextmanager
def whole_blocks() -> Iterator[None]:
    """Within it, layers with a window keep the keys of all tokens: in another program tokens see all of their blocks."""
    token = _whole_blocks.set(True)
    try:
        yield
    finally:
        _whole_blocks.reset(token)


# Other attention functions by module: encoder self-attention and cross-attention.
_instead: contextvars.ContextVar[Mapping[torch.nn.Module, Any]] = contextvars.ContextVar("graft_instead", default={})


@contextlib.contextmanager
def instead(functions: Mapping[torch.nn.Module, Any]) -> Iterator[None]:
    """Within it, these functions (module, query, key, value, mask, scaling, position_bias) -> [B, T, H, D] serve their
    modules."""
    token = _instead.set({**_instead.get(), **functions})
    try:
        yield
    finally:
        _instead.reset(token)


@dataclass(frozen=True)
class Unpadded:
    """A mask in words: everything but padding. padding [B, S] is 0 there; None: there is none."""

    padding: torch.Tensor | None


@dataclass(frozen=True)
class Visible:
    """A mask in words: causal, and within a window or chunk (0: none). Models hand it through like a tensor.

    blocks: tokens see those of their block too, within the window; whole_blocks: all of them."""

    window: int = 0
    chunk: int = 0
    blocks: bool = False
    whole_blocks: bool = False
    ndim: ClassVar[int] = 4  # as of a mask that is complete: a model inside of another one asks


# The functions that transformers builds masks from, recognized by code: equal code with known cells means the same
# mask.
_CAUSAL = masking_utils.causal_mask_function
_BOTH = masking_utils.and_masks().__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_CHUNK = masking_utils.chunked_overlay(1, torch.zeros(1, dtype=torch.long)).__code__
_EITHER = masking_utils.or_masks().__code__
_BLOCKS = masking_utils.blockwise_overlay(torch.zeros(1, 1, dtype=torch.long)).__code__


def _without_blocks(function: Any) -> tuple[Any, bool]:
    """Of a mask that is a union with blocks, the rest."""
    if getattr(function, "__code__", None) is not _EITHER or _blocks.get() is None:
        return function, False
    parts = function.__closure__[0].cell_contents
    rest = [part for part in parts if getattr(part, "__code__", None) is not _BLOCKS]
    return (rest[0], True) if len(rest) == 1 and len(parts) == 2 else (function, False)


def _visible(function: Any) -> Visible:
    window, chunk, causal = 0, 0, False
    function, whole_blocks = _without_blocks(function)
    blocks = whole_blocks
    left = [function]
    while left:
        part, in_blocks = _without_blocks(left.pop())
        blocks = blocks or in_blocks
        code = getattr(part, "__code__", None)
        cells = dict(zip(code.co_freevars, (cell.cell_contents for cell in part.__closure__ or ()))) if code else {}
        if part is _CAUSAL:
            causal = True
        elif code is _BOTH:
            left.extend(cells["mask_functions"])
        elif code is _WINDOW:
            window = min(window, cells["sliding_window"]) if window else cells["sliding_window"]
        elif code is _CHUNK and chunk in (0, cells["chunk_size"]):
            chunk = cells["chunk_size"]
        else:
            raise ExportError(
                "expected masks that are causal, with a window or in chunks, found "
                f"{getattr(part, '__qualname__', part)}"
            )
    if not causal:
        raise ExportError("expected a causal mask, found one that looks ahead")
    return Visible(window, chunk, blocks, whole_blocks and window > 0)


def _mask(
    *_: Any, mask_function: Any = _CAUSAL, attention_mask: torch.Tensor | Visible | None = None, **__: Any
) -> Visible | Unpadded:
    if isinstance(attention_mask, Visible):
        return attention_mask
    if mask_function is masking_utils.bidirectional_mask_function:
        return Unpadded(attention_mask)
    # An attention_mask among the arguments is all ones, made by a model that got none: padding is negative in
    # cache_position.
    return _visible(mask_function)


def _source_of(module: Any) -> int:
    """The layer whose keys and values a layer without its own attends to: the last one of its kind that has some."""
    config = module.config
    modes = zip(config.kv_sharing_modes, config.layer_types)
    return next(i for i, (mode, kind) in enumerate(modes) if mode == "store" and kind == module.layer_type)


def attend_all(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    scaling: float | None,
    position_bias: torch.Tensor | None,
) -> torch.Tensor:
    """For `instead`: everybody sees everybody but padding, or what a mask of the model's own hides; a position_bias is
    added to scores."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if (padding := getattr(mask, "padding", None)) is not None:
        mask = torch.where(padding != 0, 0.0, -torch.inf)[:, None, None, :]
    mask = mask if torch.is_tensor(mask) else None
    if position_bias is not None:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -torch.inf)
        mask = position_bias if mask is None else mask + position_bias
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return found.transpose(1, 2).contiguous()


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    # Of models that have one module in several places the tracer hands out proxies.
    own = module.get_base() if hasattr(module, "get_base") else module
    if function := _instead.get().get(own):
        return function(module, query, key, value, attention_mask, scaling, position_bias), None
    layer = getattr(module, "layer_idx", None)
    if getattr(module, "is_kv_shared_layer", False):
        layer = _source_of(module)
    if layer is None or layer < 0:  # of a block that several layers share
        layer = _handed_over.get()
    where = f"attention {type(module).__name__} of layer {layer}"
    if layer is None:
        raise ExportError(f"{where}: expected a layer_idx, found none")
    if not isinstance(attention_mask, Visible):
        raise ExportError(f"{where}: expected the mask of graft, found {type(attention_mask).__name__}")
    if position_bias is not None and position_bias.dim() != 2:
        raise ExportError(f"{where}: expected a position_bias that depends on the distance alone, found another")
    # A module that is causal says False where it hands a mask over, which is (Moonshine).
    if getattr(module, "is_causal", is_causal) is False:
        raise ExportError(f"{where}: expected causal attention, found is_causal=False")
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        raise ExportError(
            f"{where}: expected query heads in equal groups for each KV head, found {query.shape[1]} and {key.shape[1]}"
        )
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    result = ops.attention(
        query,
        key,
        value,
        _cache_position.get(),
        sinks=s_aux,
        bias=position_bias,
        blocks=_blocks.get() if attention_mask.blocks else None,
        whole_blocks=attention_mask.whole_blocks or (_whole_blocks.get() and attention_mask.window > 0),
        layer=layer,
        scale=scale,
        window=attention_mask.window,
        chunk=attention_mask.chunk,
        softcap=float(softcap or 0.0),
    )
    return result, None


def _experts(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """tokens x k rows, each times the matrices of its expert: hidden_states [N, H], top_k_index and -weights [N, K]."""

    def product(rows: torch.Tensor, name: str) -> torch.Tensor:
        weight = getattr(module, name)
        if module.is_transposed:  # [E, in, out] in the checkpoint; transposed once, when the package is loaded
            weight = weight.transpose(1, 2).contiguous()
        bias = getattr(module, f"{name}_bias") if module.has_bias else None
        return ops.expert_linear(rows, top_k_index, weight, bias)

    rows = hidden_states.unsqueeze(1)
    if module.has_gate:
        inner = module._apply_gate(product(rows, "gate_up_proj"))
    else:
        inner = module.act_fn(product(rows, "up_proj"))
    result = product(inner, "down_proj")
    if module.has_post_expert_norm:
        result = module.post_expert_norm(result)
    return (result * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)


class _NoCacheLayer(DynamicLayer):
    """Hands keys and values through: the cache is the engine's."""

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def _looked_at(self) -> torch.Tensor:
        raise ExportError(
            "expected a model that reads its cache through attention alone, found one that looks at the keys and values in it"
        )

    # The constructor of the base sets them.
    keys = property(_looked_at, lambda self, value: None)
    values = property(_looked_at, lambda self, value: None)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class _AskedLayer(_NoCacheLayer):
    """Of models that ask of each layer whether there are keys and values of what lies beside a sequence, which attention
    reads in the engine's cache: there are where there is a stand-in for them."""

    keys = values = None

    def __init__(self, stand_in: torch.Tensor | None) -> None:
        super().__init__()
        self.is_initialized = stand_in is not None
        self.keys = self.values = stand_in


@dataclass(frozen=True)
class RecurrentState:
    """A state that the engine has for a layer: that of a recurrence, or of the convolution before it."""

    position: torch.Tensor  # cache_position [B, T]
    layer: int
    index: int  # within the layer


class _NoCache(Cache):
    """A cache that never holds anything. It notes which layer attends, and which state comes next: layers ask for the one
    of a recurrence, and hand over keys, values and what they convolve, right before they compute it."""

    is_initialized = True

    def __init__(
        self, layers: int, *, first_call: bool = False, sources: Sequence[int] = (), stand_in: torch.Tensor | None = None
    ) -> None:
        if sources:
            made = [_AskedLayer(stand_in if i in sources else None) for i in range(layers)]
        else:
            made = [_NoCacheLayer() for _ in range(layers)]
        super().__init__(layers=made)
        self.is_initialized = not first_call

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _handed_over.set(layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> torch.Tensor:
        _conv.set(RecurrentState(_cache_position.get(), layer_idx, state_idx))
        return conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        expect_recurrence(layer_idx, state_idx)

    def update_recurrent_state(self, recurrent_states: Any, layer_idx: int, state_idx: int = 0, **_: Any) -> Any:
        _recurrent.set(None)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


_conv: contextvars.ContextVar[RecurrentState | None] = contextvars.ContextVar("graft_conv", default=None)
_recurrent: contextvars.ContextVar[RecurrentState | None] = contextvars.ContextVar("graft_recurrent", default=None)
_handed_over: contextvars.ContextVar[int | None] = contextvars.ContextVar("graft_handed_over", default=None)


def conv_state() -> RecurrentState | None:
    """The state of the convolution that comes next, once; None where the engine has none."""
    state = _conv.get()
    _conv.set(None)
    return state


def expect_recurrence(layer: int, index: int = 0) -> None:
    """The recurrence that comes next is the layer's."""
    _recurrent.set(RecurrentState(_cache_position.get(), layer, index))


def recurrent_state() -> RecurrentState | None:
    """The state of the recurrence that comes next; None where the engine has none. A layer that computes several, head by
    head, before it hands over what is left has one for each."""
    state = _recurrent.get()
    if state is not None:
        _recurrent.set(replace(state, index=state.index + 1))
    return state


def no_cache(
    layers: int, *, first_call: bool = False, sources: Sequence[int] = (), stand_in: torch.Tensor | None = None
) -> Cache:
    """Without any cache object, models look for packed sequences in the positions. first_call: for models that ask whether
    there were calls before, of one that reads a prompt. sources: layers that attend to what lies beside a sequence, which
    are skipped where there is no stand-in for its keys and values."""
    return _NoCache(layers, first_call=first_call, sources=sources, stand_in=stand_in)


def become(model: torch.nn.Module, kind: type, forward: Callable[..., Any]) -> None:
    """Gives the model of that class another forward, under the class's own name: its parameters' names stay."""
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


@contextlib.contextmanager
def registered(model: torch.nn.Module) -> Iterator[None]:
    """Within it, the model's attention, masks and experts are those of graft."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    names = ("_attn_implementation_internal", "_experts_implementation_internal")
    before = [(config, {name: getattr(config, name, None) for name in names}) for config in configs.values()]
    try:
        for config, _ in before:
            for name in names:
                setattr(config, name, NAME)
        yield
    finally:
        for config, values in before:
            for name, value in values.items():
                setattr(config, name, value)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
ExpertsInterface.register(NAME, _experts)
