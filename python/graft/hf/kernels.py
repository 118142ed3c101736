"""Functions of transformers' models that hub kernels may take the place of, computed by graft's operators in a trace.

transformers writes them as loops over tokens or chunks, which a trace would unroll: a program would hold one length of
prompt, and a node for each token. They are the same in all models (`use_kernel_func_from_hub_with_fallback`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from graft.llm import recurrence


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
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    dtype = query.dtype
    query, key, value, g, beta = (x.float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = _unit(query), _unit(key)
    if initial_state is None:
        initial_state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    scaled = query * key.shape[3] ** -0.5
    made, state = recurrence.gated_delta_rule(scaled, key, value, g.exp(), beta, initial_state.float())
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
    if initial_states is None:
        initial_states = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3])
    state = initial_states.float()
    made, state = recurrence.selective_scan(x, dt, A.float().unsqueeze(-1), B.float(), C.float(), state)
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
    """Begins with zeros also where there is a state, as transformers does."""
    bias = None if delta_bias is None else delta_bias[..., None]
    dt = _time_step(dt, bias, delta_softplus).float()
    x = hidden_states.float().transpose(1, 2).unsqueeze(-1)
    b, c = (part.float().transpose(1, 2).unsqueeze(2) for part in (B, C))
    state = x.new_zeros(x.shape[0], x.shape[2], 1, A.shape[1])
    made, state = recurrence.selective_scan(x, dt.transpose(1, 2), A.float(), b, c, state)
    made = made.squeeze(-1).transpose(1, 2)
    if D is not None:
        made = made + hidden_states * D[None, :, None]
    if z is not None:
        made = made * F.silu(z)
    return (made, state.squeeze(2)) if return_last_state else made


def _time_step(dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool) -> torch.Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return F.softplus(dt) if softplus else dt


#: By the names that the models' files give them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba,
}
# Arguments of packed sequences, which the models' own functions refuse.
_PACKED = ("cu_seqlens", "seq_idx")

_lock = threading.RLock()
_tracing = threading.local()


@contextlib.contextmanager
def in_place(model: torch.nn.Module) -> Iterator[None]:
    """Within it, this thread's calls of these functions by modules of the model are graft's operators."""
    with _lock:
        changed: list[tuple[dict[str, Any], str, Any]] = []
        before = getattr(_tracing, "on", False)
        _tracing.on = True
        try:
            for file in {type(module).__module__ for module in model.modules()}:
                names = vars(sys.modules[file])
                for name, function in FUNCTIONS.items():
                    if name in names and _takes_the_place_of(names[name], function):
                        changed.append((names, name, names[name]))
                        names[name] = _either(names[name], function)
            yield
        finally:
            _tracing.on = before
            for names, name, own in reversed(changed):
                names[name] = own


def _takes_the_place_of(own: Any, function: Callable[..., Any]) -> bool:
    """Whether it has the arguments that are known here, by name and order."""
    taken = [name for name in inspect.signature(function).parameters if name != "_"]
    return callable(own) and [name for name in inspect.signature(own).parameters if name in taken] == taken


def _either(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        ours = getattr(_tracing, "on", False) and all(kwargs.get(name) is None for name in _PACKED)
        return (function if ours else own)(*args, **kwargs)

    return call


__all__ = ["FUNCTIONS", "in_place"]
