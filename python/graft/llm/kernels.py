"""Functions and methods of transformers' models that are computed by graft's operators in a trace.

transformers writes them as loops over tokens or chunks, which a trace would unroll: a program would hold one length of
prompt, and a node for each token. Those that hub kernels may take the place of
(`use_kernel_func_from_hub_with_fallback`) are the same in all models.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from graft.errors import ExportError
from graft.llm import interface, recurrence


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    tiled_heads: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """tiled_heads: heads share queries and keys in turns, not in groups."""
    dtype = query.dtype
    query, key, value, g, beta = (x.float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = _unit(query), _unit(key)
    if tiled_heads:
        query, key = (x.repeat(1, 1, value.shape[2] // key.shape[2], 1) for x in (query, key))
    operands = (query * key.shape[3] ** -0.5, key, value, g.exp(), beta)
    if cached := interface.recurrent_state():
        made = recurrence.cached_gated_delta_rule(*operands, cached.position, layer=cached.layer, index=cached.index)
        return made, value.new_empty(0)  # the model hands it to its cache
    if initial_state is None:
        initial_state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    made, state = recurrence.gated_delta_rule(*operands, initial_state.float())
    return made.to(dtype), state if output_final_state else None


def _mamba2(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    x = hidden_states.float()
    dt = _time_step(dt, dt_bias, dt_softplus).clamp(*dt_limit).float()
    made, state = _scan(x, dt, A.float().unsqueeze(-1), B.float(), C.float(), initial_states)
    if D is not None:
        made = made + D[..., None] * x
    return (made, state) if return_final_states else made


def _mamba(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Begins with zeros also where there is a state, as transformers does, but where the engine has it."""
    bias = None if delta_bias is None else delta_bias[..., None]
    dt = _time_step(dt, bias, delta_softplus).float()
    x = hidden_states.float().transpose(1, 2).unsqueeze(-1)
    b, c = (part.float().transpose(1, 2).unsqueeze(2) for part in (B, C))
    made, state = _scan(x, dt.transpose(1, 2), A.float(), b, c, None)
    made = made.squeeze(-1).transpose(1, 2)
    if D is not None:
        made = made + hidden_states * D[None, :, None]
    if z is not None:
        made = made * F.silu(z)
    return (made, state.squeeze(2)) if return_last_state else made


def _scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scan and its last state: nothing where the engine has it."""
    if cached := interface.recurrent_state():
        made = recurrence.cached_selective_scan(x, dt, a, b, c, cached.position, layer=cached.layer, index=cached.index)
        return made, x.new_empty(0, 0, 0, 0)
    first = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3]) if state is None else state.float()
    return recurrence.selective_scan(x, dt, a, b, c, first)


def _rg_lru(
    self: Any,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of RecurrentGemma."""
    x, decay = hidden_states.float(), (recurrent_gate * ~reset).float()
    if cached := interface.recurrent_state():
        made = recurrence.cached_diagonal_scan(x, decay, cached.position, layer=cached.layer, index=cached.index)
        return made.to(hidden_states.dtype), recurrent_states
    first = x.new_zeros(x.shape[0], x.shape[2]) if recurrent_states is None else recurrent_states.float()
    made, state = recurrence.diagonal_scan(x, decay, first)
    return made.to(hidden_states.dtype), state


def _wkv(
    time_decay: torch.Tensor,
    time_first: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: Sequence[torch.Tensor] | None = None,
    return_state: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
    """Of RWKV."""
    operands = (-torch.exp(time_decay.float()), time_first.float(), key.float(), value.float())
    if cached := interface.recurrent_state():
        made = recurrence.cached_wkv(*operands, cached.position, layer=cached.layer, index=cached.index)
        return made.to(key.dtype), None
    if state is None:
        sums = operands[2].new_zeros(key.shape[0], 2, key.shape[2])
        first = torch.cat([sums, torch.full_like(sums[:, :1], recurrence.NO_MAXIMUM)], 1)
    else:
        first = torch.stack(list(state), 1).float()
    made, last = recurrence.wkv(*operands, first)
    return made.to(key.dtype), list(last.unbind(1)) if return_state or state is not None else None


def _conv(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """Of channels [B, C, T], with the engine's state."""
    cached = interface.conv_state()
    if cached is None:
        raise ExportError("expected a convolution after update_conv_state of the model's cache, found one without")
    if activation not in (None, "silu", "swish"):
        raise ExportError(f"expected a convolution with the activation 'silu', or none, found '{activation}'")
    made = recurrence.causal_conv1d(
        hidden_states.transpose(1, 2),
        weight.t().contiguous(),  # transposed once, when the package is loaded
        bias,
        cached.position,
        layer=cached.layer,
        index=cached.index,
        silu=activation is not None,
    )
    return made.transpose(1, 2)


def _time_step(dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool) -> torch.Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return F.softplus(dt) if softplus else dt


#: By the names that the models' files give them, methods behind their class.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba,
    "rwkv_linear_attention": _wkv,
    "RecurrentGemmaRglru._rnn_scan": _rg_lru,
}
#: Where the engine has the states.
CACHED: dict[str, Callable[..., Any]] = {**FUNCTIONS, "causal_conv1d_fn": _conv}
# Arguments of packed sequences, which the models' own functions refuse.
_PACKED = ("cu_seqlens", "seq_idx")

_lock = threading.RLock()
_tracing = threading.local()


@contextlib.contextmanager
def in_place(model: torch.nn.Module, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Iterator[None]:
    """Within it, this thread's calls of these functions by modules of the model are graft's operators."""
    with _lock:
        changed: list[tuple[Any, str, Any]] = []
        before = getattr(_tracing, "on", False)
        _tracing.on = True
        try:
            for file in {type(module).__module__ for module in model.modules()}:
                for path, function in functions.items():
                    owner, _, name = path.rpartition(".")
                    space = getattr(sys.modules[file], owner, None) if owner else sys.modules[file]
                    own = getattr(space, name, None)
                    if own is not None and _takes_the_place_of(own, function):
                        changed.append((space, name, own))
                        setattr(space, name, _either(own, function))
            yield
        finally:
            _tracing.on = before
            for space, name, own in reversed(changed):
                setattr(space, name, own)


def _takes_the_place_of(own: Any, function: Callable[..., Any]) -> bool:
    """Whether it has the arguments that are known here, by name and order."""
    taken = [name for name in inspect.signature(function).parameters if name not in ("_", "tiled_heads")]
    return callable(own) and [name for name in inspect.signature(own).parameters if name in taken] == taken


def _either(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        ours = getattr(_tracing, "on", False) and all(kwargs.get(name) is None for name in _PACKED)
        return (function if ours else own)(*args, **kwargs)

    return call


__all__ = ["CACHED", "FUNCTIONS", "in_place"]
