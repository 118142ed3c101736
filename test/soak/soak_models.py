"""Packages of the soak, made with torch and transformers: python soak_models.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import graft

VOCABULARY = 199
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


class Counting(nn.Module):
    """Its buffer depends on all calls before."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
        self.register_buffer("total", torch.zeros(16, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        self.total.copy_(self.total * 0.5 + y.sum(0))
        return y + self.total


class Chosen(nn.Module):
    """The size of its result depends on data: it runs in segments."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0) * 2


def language_model(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().save_pretrained(folder)
    vocabulary = {f"{i}w": i for i in range(VOCABULARY)}
    model = {"type": "WordLevel", "unk_token": "0w", "vocab": vocabulary}
    (folder / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"type": "Whitespace"}, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = Dim("rows", min=1, max=64)
    for name, seed in (("first", 1), ("second", 2)):
        x = torch.randn(3, 32)
        graft.export(Counting(seed).eval(), (x,), dynamic_shapes=({0: rows},), path=folder / f"{name}.pte")
    graft.export(Chosen(), (torch.randn(9),), dynamic_shapes=({0: rows},), path=folder / "chosen.pte")
    language_model(folder / "language")
    for name, how in (("language", {}), ("quantized", {"quantize": "q8_0"})):
        graft.export_llm(folder / "language", folder / f"{name}.pte", context=256, **how)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
