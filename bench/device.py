"""What graft adds around a device of ggml: `python bench/device.py DEVICE [ROUNDS]`, after `make build`.

Exports the six layers of MiniLM's shape on hidden states, and a network of convolutions, and runs each in turns with
the same ggml graph computed by ggml itself (bench/device_overhead.cpp).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import transformers
from torch import nn

import graft

ROOT = Path(__file__).resolve().parents[1]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=10, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self.encoder = transformers.BertModel(config, add_pooling_layer=False).encoder

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.encoder(hidden).last_hidden_state


def convolutions() -> nn.Module:
    parts: list[nn.Module] = []
    for i, o, stride in ((3, 32, 2), (32, 64, 1), (64, 128, 2), (128, 128, 1)):
        parts += [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6()]
    return nn.Sequential(*parts)


CASES = {
    "MiniLM's layers, 64 tokens": (Layers, (1, 64, 384)),
    "four convolutions, 96 x 96": (convolutions, (1, 3, 96, 96)),
}


def main(device: str, rounds: str) -> None:
    folder = ROOT / "build" / "bench" / "device"
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for i, (name, (make, shape)) in enumerate(CASES.items()):
        path = graft.export(make().eval(), (torch.randn(shape),), path=folder / f"{i}.pte")
        print(f"{name}: ", end="", flush=True)
        subprocess.run([ROOT / "build/release/graft_device_overhead", path, device, rounds], check=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "40")
