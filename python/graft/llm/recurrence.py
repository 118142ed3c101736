"""Operators of linear attention that PyTorch does not have: a state per head or channel that each token decays, adds to
and reads; and the causal convolutions before it.

What is written here is their definition, which runs in eager PyTorch for tests. The engine computes all tokens in one
launch, so that one program serves prompts of any length.

Those with a `cache_position` [B, T] have their states in the engine's cache, one for each layer and index: there, a call
goes on from the tokens before. Their definitions know no cache, and the tokens are the first ones. A negative position is
padding, which comes before a row's tokens: it changes no state, and its results are zeros.
"""

from __future__ import annotations

import torch

torch.library.define(
    "graft::gated_delta_rule",
    "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor state) -> (Tensor, Tensor)",
)


@torch.library.impl("graft::gated_delta_rule", "default")
def _gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The delta rule with decay (Gated DeltaNet, arXiv 2412.06464; with a decay per key: Kimi Linear, arXiv 2510.26692).

    query, key [B, T, Hk, K], value [B, T, H, V], decay [B, T, H] or [B, T, H, K] in [0, 1], beta [B, T, H], state
    [B, H, K, V] -> y [B, T, H, V] and the state after the last token. Hk divides H: heads share keys in equal groups.
    """
    groups = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(groups, 2).unsqueeze(-1) for x in (query, key))
    decay = decay[..., None, None] if decay.dim() == 3 else decay.unsqueeze(-1)
    state, results = state.clone(), []
    for t in range(value.shape[1]):
        state = state * decay[:, t]
        delta = (value[:, t] - (state * key[:, t]).sum(-2)) * beta[:, t].unsqueeze(-1)
        state = state + key[:, t] * delta.unsqueeze(-2)
        results.append((state * query[:, t]).sum(-2))
    return (torch.stack(results, 1) if results else torch.zeros_like(value)), state


torch.library.define(
    "graft::selective_scan",
    "(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor state) -> (Tensor, Tensor)",
)


@torch.library.impl("graft::selective_scan", "default")
def _selective_scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scan of Mamba (arXiv 2312.00752: P = 1, a of H channels by N) and Mamba-2 (arXiv 2405.21060: a of H heads by 1).

    x [B, T, H, P], dt [B, T, H], a [H, N] or [H, 1], b and c [B, T, G, N], state [B, H, P, N] -> y [B, T, H, P] and the
    state after the last token. G divides H: heads share b and c in equal groups.
    """
    groups = x.shape[2] // b.shape[2]
    b, c = (part.repeat_interleave(groups, 2).unsqueeze(-2) for part in (b, c))
    given = (x * dt.unsqueeze(-1)).unsqueeze(-1)
    state, results = state.clone(), []
    for t in range(x.shape[1]):
        decay = (dt[:, t].unsqueeze(-1) * a).exp().unsqueeze(-2)
        state = state * decay + given[:, t] * b[:, t]
        results.append((state * c[:, t]).sum(-1))
    return (torch.stack(results, 1) if results else torch.zeros_like(x)), state


torch.library.define("graft::diagonal_scan", "(Tensor x, Tensor decay, Tensor state) -> (Tensor, Tensor)")


@torch.library.impl("graft::diagonal_scan", "default")
def _diagonal_scan(x: torch.Tensor, decay: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each channel's state times its decay, plus x (RG-LRU of Griffin, arXiv 2402.19427, equation 4).

    x and decay [B, T, C], state [B, C] -> the states after all tokens [B, T, C], and the last one.
    """
    state, results = state.clone(), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        results.append(state)
    return (torch.stack(results, 1) if results else torch.zeros_like(x)), state


torch.library.define(
    "graft::wkv", "(Tensor log_decay, Tensor bonus, Tensor key, Tensor value, Tensor state) -> (Tensor, Tensor)"
)
NO_MAXIMUM = -1e38  # of a WKV state before all tokens


@torch.library.impl("graft::wkv", "default")
def _wkv(
    log_decay: torch.Tensor, bonus: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The WKV of RWKV-4 (arXiv 2305.13048, appendix D): a mean of values, weighted by exponentials of their keys.

    log_decay and bonus [C], key and value [B, T, C], state [B, 3, C] -> y [B, T, C] and the state after the last token:
    numerator, denominator, and the maximum m of the exponents: both are in units of exp(m).
    """
    numerator, denominator, maximum = state.unbind(1)
    results = []
    for t in range(key.shape[1]):
        largest = torch.maximum(maximum, key[:, t] + bonus)
        before, now = (maximum - largest).exp(), (key[:, t] + bonus - largest).exp()
        results.append((before * numerator + now * value[:, t]) / (before * denominator + now))
        largest = torch.maximum(maximum + log_decay, key[:, t])
        before, now = (maximum + log_decay - largest).exp(), (key[:, t] - largest).exp()
        numerator, denominator = before * numerator + now * value[:, t], before * denominator + now
        maximum = largest
    last = torch.stack([numerator, denominator, maximum], 1)
    return (torch.stack(results, 1) if results else torch.zeros_like(key)), last


torch.library.define(
    "graft::gated_delta_rule.cached",
    "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor cache_position, *, int layer, "
    "int index=0) -> Tensor",
)


@torch.library.impl("graft::gated_delta_rule.cached", "default")
def _cached_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    cache_position: torch.Tensor,
    *,
    layer: int,
    index: int = 0,
) -> torch.Tensor:
    real = (cache_position >= 0).unsqueeze(-1)
    decay = torch.where(real if decay.dim() == 3 else real.unsqueeze(-1), decay, 1.0)
    state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    result = torch.ops.graft.gated_delta_rule.default(query, key, value, decay, beta * real, state)[0]
    return result * real.unsqueeze(-1)


torch.library.define(
    "graft::selective_scan.cached",
    "(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor cache_position, *, int layer, int index=0) -> Tensor",
)


@torch.library.impl("graft::selective_scan.cached", "default")
def _cached_selective_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    cache_position: torch.Tensor,
    *,
    layer: int,
    index: int = 0,
) -> torch.Tensor:
    real = (cache_position >= 0).unsqueeze(-1)
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])
    return torch.ops.graft.selective_scan.default(x, dt * real, a, b, c, state)[0] * real.unsqueeze(-1)


torch.library.define(
    "graft::diagonal_scan.cached", "(Tensor x, Tensor decay, Tensor cache_position, *, int layer, int index=0) -> Tensor"
)


@torch.library.impl("graft::diagonal_scan.cached", "default")
def _cached_diagonal_scan(
    x: torch.Tensor, decay: torch.Tensor, cache_position: torch.Tensor, *, layer: int, index: int = 0
) -> torch.Tensor:
    real = (cache_position >= 0).unsqueeze(-1)
    state = x.new_zeros(x.shape[0], x.shape[2])
    return torch.ops.graft.diagonal_scan.default(x * real, torch.where(real, decay, 1.0), state)[0] * real


torch.library.define(
    "graft::wkv.cached",
    "(Tensor log_decay, Tensor bonus, Tensor key, Tensor value, Tensor cache_position, *, int layer, int index=0) "
    "-> Tensor",
)


@torch.library.impl("graft::wkv.cached", "default")
def _cached_wkv(
    log_decay: torch.Tensor,
    bonus: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache_position: torch.Tensor,
    *,
    layer: int,
    index: int = 0,
) -> torch.Tensor:
    real = (cache_position >= 0).unsqueeze(-1)
    state = key.new_zeros(key.shape[0], 3, key.shape[2])
    state[:, 2] = NO_MAXIMUM
    # Padding comes first, and its weights are 0: what it leaves is the state of no tokens.
    hidden = torch.where(real, key, 2 * NO_MAXIMUM)
    result = torch.ops.graft.wkv.default(log_decay, bonus, hidden, value * real, state)[0]
    return torch.where(real, result, 0.0)  # of nothing but padding 0 / 0


torch.library.define(
    "graft::causal_conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor cache_position, *, int layer, int index=0, bool silu=False) -> Tensor",
)


@torch.library.impl("graft::causal_conv1d", "default")
def _causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cache_position: torch.Tensor,
    *,
    layer: int,
    index: int = 0,
    silu: bool = False,
) -> torch.Tensor:
    """Each channel's last K inputs by its K taps, as `causal_conv1d_fn` (github.com/Dao-AILab/causal-conv1d).

    x [B, T, C], weight [K, C], the last tap that of the token itself, bias [C] -> [B, T, C]. silu: of the results.
    """
    real = (cache_position >= 0).unsqueeze(-1)
    padded = torch.nn.functional.pad(x * real, (0, 0, weight.shape[0] - 1, 0))
    result = sum(padded[:, k : k + x.shape[1]] * weight[k] for k in range(weight.shape[0]))
    result = result if bias is None else result + bias
    return (torch.nn.functional.silu(result) if silu else result) * real


@torch.library.register_fake("graft::gated_delta_rule")
def _(query, key, value, decay, beta, state):
    return value.new_empty(value.shape), state.new_empty(state.shape)


@torch.library.register_fake("graft::gated_delta_rule.cached")
def _(query, key, value, decay, beta, cache_position, **_):
    return value.new_empty(value.shape)


@torch.library.register_fake("graft::selective_scan.cached")
def _(x, dt, a, b, c, cache_position, **_):
    return x.new_empty(x.shape)


@torch.library.register_fake("graft::diagonal_scan")
def _(x, decay, state):
    return x.new_empty(x.shape), state.new_empty(state.shape)


@torch.library.register_fake("graft::diagonal_scan.cached")
def _(x, decay, cache_position, **_):
    return x.new_empty(x.shape)


@torch.library.register_fake("graft::wkv")
def _(log_decay, bonus, key, value, state):
    return key.new_empty(key.shape), state.new_empty(state.shape)


@torch.library.register_fake("graft::wkv.cached")
def _(log_decay, bonus, key, value, cache_position, **_):
    return key.new_empty(key.shape)


@torch.library.register_fake("graft::causal_conv1d")
def _(x, weight, bias, cache_position, **_):
    return x.new_empty(x.shape)


@torch.library.register_fake("graft::selective_scan")
def _(x, dt, a, b, c, state):
    return x.new_empty(x.shape), state.new_empty(state.shape)


gated_delta_rule = torch.ops.graft.gated_delta_rule.default
selective_scan = torch.ops.graft.selective_scan.default
diagonal_scan = torch.ops.graft.diagonal_scan.default
wkv = torch.ops.graft.wkv.default
cached_gated_delta_rule = torch.ops.graft.gated_delta_rule.cached
cached_selective_scan = torch.ops.graft.selective_scan.cached
cached_diagonal_scan = torch.ops.graft.diagonal_scan.cached
cached_wkv = torch.ops.graft.wkv.cached
causal_conv1d = torch.ops.graft.causal_conv1d.default
CACHED = (cached_gated_delta_rule, cached_selective_scan, cached_diagonal_scan, cached_wkv, causal_conv1d)
