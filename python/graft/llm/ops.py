"""Operators that PyTorch does not have: attention over a cache, over what an encoder left, and `graft::expert_linear`.

What is written here is their definition. It runs in eager PyTorch for tests of exported programs and knows no cache:
there, all keys are those of the call itself. The engine keeps the keys and values of earlier calls.
"""

from __future__ import annotations

import torch


torch.library.define(
    "graft::attention",
    "(Tensor query, Tensor key, Tensor value, Tensor cache_position, *, Tensor? sinks=None, Tensor? bias=None, "
    "Tensor? blocks=None, bool whole_blocks=False, int layer, float scale, int window=0, int chunk=0, float softcap=0.0) -> Tensor",
)


@torch.library.impl("graft::attention", "default")
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache_position: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    blocks: torch.Tensor | None = None,
    whole_blocks: bool = False,
    layer: int,
    scale: float,
    window: int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Causal attention of one layer over its cache.

    query [B, H, T, D], key [B, Hkv, T, D], value [B, Hkv, T, Dv], cache_position [B, T] -> [B, T, H, Dv].
    cache_position: the row of the cache that a token has; it sees the keys of its row and of smaller ones. A negative
    one is padding: nobody sees it, and its result is zeros. window w: only keys s with p - w < s. chunk c: only keys
    with s // c == p // c. softcap c: scores become c * tanh(scores / c). sinks [H]: a score per head that joins the
    softmax's sum and has no value. bias [H, N]: added to the scores; of a key n rows back element min(n, N - 1).
    blocks [B, T, 2]: the first and the last row of the block that a token is in, of one token its own; it sees the keys of
    its block too, those that the window shows or, with whole_blocks, all. Without blocks, whole_blocks says that tokens of
    the layer have some in another program.
    """
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, 1)
    value = value.repeat_interleave(groups, 1)
    of_query, of_key = cache_position[:, None, :, None], cache_position[:, None, None, :]
    together = of_key == of_query
    if blocks is not None:
        first, last = blocks.unsqueeze(1).unbind(-1)
        together = (of_key >= first.unsqueeze(-1)) & (of_key <= last.unsqueeze(-1))
    seen = (of_key <= of_query) | together
    if window:
        seen = seen & (of_key > of_query - window)
    if blocks is not None and whole_blocks:
        seen = seen | together
    seen = seen & (of_key >= 0)
    if chunk:
        seen = seen & (of_key // chunk == of_query // chunk)
    scores = (query @ key.transpose(2, 3)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        distance = (of_query - of_key)[:, 0].clamp(0, bias.shape[1] - 1)
        scores = scores + bias[:, distance].transpose(0, 1)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        weights = torch.cat([scores, column.to(scores.dtype)], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.masked_fill(of_query < 0, 0.0)
    return (weights @ value).transpose(1, 2).contiguous()


@torch.library.register_fake("graft::attention")
def _(query, key, value, cache_position, **_):
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


torch.library.define(
    "graft::store_source", "(Tensor key, Tensor value, Tensor position, *, int layer, bool append=False) -> Tensor"
)
torch.library.define(
    "graft::source_attention",
    "(Tensor query, *, Tensor? ranges=None, int layer, int kv_heads, float scale) -> Tensor",
)

# In eager PyTorch, the last stored encoder output: keys, values and positions by layer.
_sources: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


@torch.library.impl("graft::store_source", "default")
def _store_source(
    key: torch.Tensor, value: torch.Tensor, position: torch.Tensor, *, layer: int, append: bool = False
) -> torch.Tensor:
    """Keeps what an encoder hands to one layer of a decoder, for `source_attention`.

    key, value [B, Hkv, S, D]; position [B, S]: 0, 1, 2, ... for the tokens of each row, negative for padding. The
    result is the position. A row begins anew, and its decoder's tokens are gone. append: the first position of a row is
    any up to what it has; what it has from there on is replaced, and the decoder's tokens stay.
    """
    if append and (first := int(position.max(1).values[0]) + 1 - position.shape[1]) > 0:
        held = _sources[layer]
        key, value = (torch.cat([old[:, :, :first], new], 2) for old, new in zip(held, (key, value)))
        _sources[layer] = (key, value, torch.cat([held[2][:, :first], position], 1))
    else:
        _sources[layer] = (key, value, position)
    return position.clone()


@torch.library.register_fake("graft::store_source")
def _(key, value, position, **_):
    return torch.empty_like(position)


@torch.library.impl("graft::source_attention", "default")
def _source_attention(
    query: torch.Tensor, *, ranges: torch.Tensor | None = None, layer: int, kv_heads: int, scale: float
) -> torch.Tensor:
    """Attention over all that was stored for the layer and is no padding: query [B, H, T, D] -> [B, T, H, D].

    ranges [B, T, 2]: the first and the last position that a token sees; 0 and -1: none, and its result is zeros.
    """
    key, value, position = _sources[layer]
    groups = query.shape[1] // kv_heads
    scores = (query @ key.repeat_interleave(groups, 1).transpose(2, 3)) * scale
    unseen = (position < 0)[:, None, None, :]
    if ranges is not None:
        first, last = ranges.unsqueeze(1).unbind(-1)
        places = position[:, None, None, :]
        unseen = unseen | (places < first.unsqueeze(-1)) | (places > last.unsqueeze(-1))
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    if ranges is not None:
        weights = weights.masked_fill(unseen, 0.0)  # not a number where nothing is seen
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous()


@torch.library.register_fake("graft::source_attention")
def _(query, **_):
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], query.shape[3])


torch.library.define(
    "graft::expert_linear",
    "(Tensor input, Tensor experts, Tensor weight, Tensor? bias=None) -> Tensor",
)


@torch.library.impl("graft::expert_linear", "default")
def _expert_linear(
    input: torch.Tensor,
    experts: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row times the matrix of its own expert.

    input [N, K, in], or [N, 1, in] for one row used by all K experts; experts [N, K], numbers of experts; weight
    [E, out, in], bias [E, out] -> [N, K, out].
    """
    result = input.new_empty(*experts.shape, weight.shape[1])
    rows = input.expand(*experts.shape, input.shape[2])
    for expert in experts.unique().tolist():
        chosen = experts == expert
        product = rows[chosen] @ weight[expert].t()
        result[chosen] = product if bias is None else product + bias[expert]
    return result


@torch.library.register_fake("graft::expert_linear")
def _(input, experts, weight, bias=None):
    return input.new_empty(experts.shape[0], experts.shape[1], weight.shape[1])


attention = torch.ops.graft.attention.default
store_source = torch.ops.graft.store_source.default
source_attention = torch.ops.graft.source_attention.default
expert_linear = torch.ops.graft.expert_linear.default
