"""Adapters of peft with random numbers, for models of `llm_models`."""

from __future__ import annotations

import copy
from typing import Any

import peft
import torch

ALL = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def fill(adapted: Any, name: str, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Random numbers for A and B, large enough to change every logit."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if f".{name}." in key and "lora_" in key:
                scale = 1.0 / parameter.shape[1] ** 0.5
                parameter.copy_((torch.randn(parameter.shape, generator=generator) * scale).to(dtype))


def adapted(model: Any, kind: str, seed: int = 1, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """A copy of the model with one adapter, "default"."""
    config = {"r": 4, "lora_alpha": 6, "target_modules": ALL.get(kind, LLAMA), **config}
    made = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**config)).eval()
    fill(made, "default", seed, dtype)
    return made.requires_grad_(False)


def saved(adapted_model: Any, folder: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The folder that save_pretrained writes, with matrices of this type."""
    if dtype != torch.float32:
        adapted_model = copy.deepcopy(adapted_model).to(dtype)
    adapted_model.save_pretrained(folder)
    return folder


def same(expected: torch.Tensor, found: torch.Tensor, close: float = 1e-4) -> None:
    assert found.shape == expected.shape
    assert (expected - found).abs().max() <= close * expected.abs().max()


def differs(expected: torch.Tensor, found: torch.Tensor) -> None:
    assert (expected - found).abs().max() > 0.01 * expected.abs().max()
