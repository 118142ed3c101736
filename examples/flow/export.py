"""Exports an encoder and a decoder of random weights as two methods of one package: export.py PACKAGE.pte"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.export import Dim

import graft

VOCABULARY, WIDTH, OUTPUTS = 100, 32, 6


class Encoder(nn.Module):
    """Tokens [n] to their memory [n, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0])


class Decoder(nn.Module):
    """Memory [n, 32] to logits [6, 100], of learned queries that attend to it."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(OUTPUTS, WIDTH))
        self.kv = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        k, v = self.kv(memory).chunk(2, -1)
        return self.out(nn.functional.scaled_dot_product_attention(self.queries[None], k[None], v[None])[0])


def modules() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return Encoder().eval(), Decoder().eval()


def export(path: str) -> None:
    encoder, decoder = modules()
    n = Dim("n", min=1, max=128)
    tokens = torch.zeros(5, dtype=torch.int64)
    graft.export(
        methods={
            "encode": {"model": encoder, "args": (tokens,), "dynamic_shapes": ({0: n},)},
            "decode": {"model": decoder, "args": (torch.zeros(5, WIDTH),), "dynamic_shapes": ({0: n},)},
        },
        path=path,
    )


if __name__ == "__main__":
    export(sys.argv[1])
