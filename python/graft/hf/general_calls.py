"""Calls of a model of the fast route that only the general one computes: states and attention weights of its layers,
embeddings in the place of tokens, masks that say more than padding, packed sequences, and prompts that end in padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graft.errors import Unsupported
from graft.hf.cache import release, state_of
from graft.hf.masks import ends_in_padding, real_columns

_BETWEEN_LAYERS = ("output_attentions", "output_hidden_states")


def is_general(config: Any, call: Mapping[str, Any]) -> bool:
    """Whether the arguments of a forward, without those that are None, are for the general route whatever the mask's
    values are."""
    between = any(call.get(name, getattr(config, name, False)) for name in _BETWEEN_LAYERS)
    return between or bool(call.get("output_router_logits")) or "inputs_embeds" in call or is_packed(config, call)


def is_packed(config: Any, call: Mapping[str, Any]) -> bool:
    """Without mask and cache, transformers takes positions that do not follow each other as several sequences in a row,
    which do not see each other."""
    positions = call.get("position_ids")
    if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or "attention_mask" in call:
        return False
    cached = "past_key_values" in call or call.get("use_cache", getattr(config, "use_cache", True))
    return not cached and bool((positions.diff(dim=-1) != 1).any())


def generates(model: Any, inputs: Any, config: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether generate() of these arguments is for the general route. config: its generation_config, or None."""
    configs = (config or model.generation_config, model.config)
    between = any(
        arguments[name] if arguments.get(name) is not None else any(getattr(one, name, False) for one in configs)
        for name in _BETWEEN_LAYERS
    )
    return between or arguments.get("inputs_embeds") is not None or ends_in_padding(_mask(inputs, configs[0], arguments))


def _mask(inputs: Any, config: Any, arguments: Mapping[str, Any]) -> Any:
    """As generate() makes it of the padding's token where none is given."""
    given = arguments.get("attention_mask")
    ids = arguments.get("input_ids") if inputs is None else inputs
    if given is not None or not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point():
        return given
    pad, eos = (arguments.get(name, getattr(config, name, None)) for name in ("pad_token_id", "eos_token_id"))
    ends = set(eos) if isinstance(eos, (list, tuple)) else {eos}
    return None if pad is None or pad in ends else ids != pad


def take_cache(model: Any, cache: Any, mask: Any, tokens: int) -> Any:
    """Makes the cache one of transformers, for new tokens. Returns the mask, which says what the cache's padding is."""
    state = None if cache is None else state_of(cache, model.graft)
    if state is None:
        return mask
    if state.real is not None:
        if mask is None:
            mask = torch.nn.functional.pad(state.real, (0, tokens), value=True).long()
        elif isinstance(mask, torch.Tensor) and mask.dim() == 2:
            columns = min(mask.shape[1] - state.columns, tokens)
            real_columns(mask, state.rows, state.columns, columns, state.real, model._graft_windows)
        else:
            raise Unsupported(
                "attention_mask: expected [batch, columns] for a cache with padding, whose keys graft does not keep, found "
                f"{list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__}"
            )
    release(cache, model.graft)
    return mask


__all__ = ["generates", "is_general", "is_packed", "take_cache"]
