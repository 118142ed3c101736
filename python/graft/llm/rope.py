"""Rotary frequencies that follow from the length of a call: rope types 'dynamic' and 'longrope' of transformers.

transformers computes them anew in each call and keeps them in the module, which no program can. While a model is traced,
'longrope' chooses between its two sets by the call's largest position, as transformers does, and 'dynamic' has the
frequencies that it has up to max_position_embeddings: whoever runs the program refuses larger positions (`lengths_of`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

LONGROPE, DYNAMIC = "longrope", "dynamic"


def scaled(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str]]:
    """Modules with such frequencies: (module, kind of its layers, rope type). The kind is "" where there is one alone."""
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        for layers, rope in types.items() if isinstance(types, dict) else [("", types)]:
            if rope == LONGROPE or (isinstance(rope, str) and DYNAMIC in rope):
                yield module, layers, LONGROPE if rope == LONGROPE else DYNAMIC


def lengths_of(model: torch.nn.Module) -> dict[str, int]:
    """By rope type, the most tokens (largest position + 1) of a call that turn by the frequencies of short prompts."""
    found: dict[str, int] = {}
    for module, layers, rope in scaled(model):
        length = _switch(module, layers) if rope == LONGROPE else int(module.original_max_seq_len)
        found[rope] = min(found.get(rope, length), length)
    return found


def make_traceable(skeleton: torch.nn.Module) -> None:
    """Of a copy of a model."""
    choices: dict[torch.nn.Module, dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {}
    for module, layers, rope in scaled(skeleton):
        short = getattr(module, f"{_prefix(layers)}original_inv_freq")
        choices.setdefault(module, {})[layers] = (
            functools.partial(_of_length, short, _long(module, layers), _switch(module, layers))
            if rope == LONGROPE
            else functools.partial(_always, short)
        )
    for module, of_layers in choices.items():
        module.forward = functools.partial(_rotate, inspect.unwrap(type(module).forward), module, of_layers)


def _prefix(layers: str) -> str:
    return f"{layers}_" if layers else ""


def _switch(module: torch.nn.Module, layers: str) -> int:
    parameters = module.config.rope_parameters
    return int((parameters[layers] if layers else parameters)["original_max_position_embeddings"])


def _long(module: torch.nn.Module, layers: str) -> torch.Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    of_layers = {"layer_type": layers} if layers else {}
    return ROPE_INIT_FUNCTIONS[LONGROPE](module.config, None, seq_len=_switch(module, layers) + 1, **of_layers)[0]


def _of_length(short: torch.Tensor, long: torch.Tensor, switch: int, positions: torch.Tensor) -> torch.Tensor:
    return torch.where(positions.amax() + 1 > switch, long, short)


def _always(short: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return short


def _rotate(
    forward: Callable[..., Any],
    module: torch.nn.Module,
    choices: dict[str, Callable[[torch.Tensor], torch.Tensor]],
    x: torch.Tensor,
    position_ids: torch.Tensor,
    layer_type: str | None = None,
) -> Any:
    of_layers = {"layer_type": layer_type} if layer_type is not None else {}
    choose = choices.get(layer_type or "")
    if choose is None:
        return forward(module, x, position_ids, **of_layers)
    name = f"{_prefix(layer_type or '')}inv_freq"
    before = module._buffers[name]
    module._buffers[name] = choose(position_ids)
    try:
        return forward(module, x, position_ids, **of_layers)
    finally:
        module._buffers[name] = before


__all__ = ["DYNAMIC", "LONGROPE", "lengths_of", "make_traceable", "scaled"]
