"""Models that keep the states of their layers otherwise than in a cache of transformers: RecurrentGemma in attributes of
its modules, RWKV in an argument. For a trace their layers get forwards whose states are the engine's.

They know nothing of padding, which their own code takes for tokens; where the engine has the states it is none.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from graft.llm import interface, recurrence


def hand_over(skeleton: torch.nn.Module) -> bool:
    """Changes a model that nobody else has, so that the engine keeps its states. Returns whether it is called without a
    cache."""
    for path, module in skeleton.named_modules():
        if type(module).__name__ == "RecurrentGemmaRecurrentBlock":
            layer = int(re.findall(r"\.(\d+)\.", path)[-1])
            module.forward = functools.partial(_recurrent_block, module, layer)
    if skeleton.config.model_type != "rwkv":
        return False
    _hand_over_rwkv(skeleton.rwkv)
    return True


def _recurrent_block(
    self: Any, layer: int, input_states: torch.Tensor, position_ids: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """Of RecurrentGemma."""
    conv = self.conv_1d
    x = recurrence.causal_conv1d(
        self.linear_x(input_states),
        conv.weight.squeeze(1).t().contiguous(),  # transposed once, when the package is loaded
        conv.bias,
        interface.cache_position(),
        layer=layer,
    )
    interface.expect_recurrence(layer)
    x = self.rg_lru(x, position_ids)
    return self.linear_out(x * self.act_fn(self.linear_y(input_states))), None


def _hand_over_rwkv(model: Any) -> None:
    """What its layers know of tokens before is one token's shift, and the WKV (`kernels.FUNCTIONS`)."""
    for layer, block in enumerate(model.blocks):
        block.attention.time_shift = _Shift(layer, 0, recurs=True)
        block.feed_forward.time_shift = _Shift(layer, 1, recurs=False)
    if model.layers_are_rescaled or model.config.rescale_every <= 0:
        return
    # transformers halves these weights in the first call; halved results are the same to the bit.
    model.layers_are_rescaled = True
    for layer, block in enumerate(model.blocks):
        if times := layer // model.config.rescale_every:
            for linear in (block.attention.output, block.feed_forward.value):
                linear.register_forward_hook(functools.partial(_halved, times))


def _halved(times: int, module: Any, arguments: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 0.5**times


class _Shift(torch.nn.Module):
    """Each token [B, T, C] gives what the one before had."""

    def __init__(self, layer: int, index: int, recurs: bool) -> None:
        """recurs: the layer's WKV comes next."""
        super().__init__()
        self._layer, self._index, self._recurs = layer, index, recurs

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._recurs:
            interface.expect_recurrence(self._layer)
        before, own = (make(1, hidden.shape[2], dtype=hidden.dtype) for make in (torch.ones, torch.zeros))
        position = interface.cache_position()
        return recurrence.causal_conv1d(
            hidden, torch.cat([before, own]), None, position, layer=self._layer, index=self._index
        )


__all__ = ["hand_over"]
