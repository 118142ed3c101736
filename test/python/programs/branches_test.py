"""Launches that run side by side: which ones the planner groups, and that results stay the same bits on any number of
threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import graft


class Towers(nn.Module):
    """A recommender: a small perceptron for each of several features, and one on what they give together."""

    def __init__(self, towers: int = 6, width: int = 128) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.Softmax(-1))
            for _ in range(towers)
        )
        self.top = nn.Linear(towers * width, 1)

    def forward(self, *features: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.top(torch.cat([tower(x) for tower, x in zip(self.towers, features, strict=True)], -1)))


class Inception(nn.Module):
    """Two blocks of GoogLeNet: four branches of convolutions and a pooling, concatenated."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()

        class Block(nn.Module):
            def __init__(self, into: int) -> None:
                super().__init__()
                conv = lambda a, b, k: nn.Sequential(nn.Conv2d(a, b, k, padding=k // 2), nn.BatchNorm2d(b), nn.ReLU())
                self.one = conv(into, 16, 1)
                self.three = nn.Sequential(conv(into, 16, 1), conv(16, 16, 3))
                self.five = nn.Sequential(conv(into, 16, 1), conv(16, 16, 5))
                self.pool = conv(into, 16, 1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                pooled = self.pool(F.max_pool2d(x, 3, stride=1, padding=1))
                return torch.cat([self.one(x), self.three(x), self.five(x), pooled], 1)

        self.blocks = nn.Sequential(Block(channels), Block(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).mean((2, 3))


class Attention(nn.Module):
    """Queries, keys and values of grouped-query attention, with the norms of Qwen3."""

    def __init__(self, width: int = 128, heads: int = 8, shared: int = 2, size: int = 32) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, shared, shared))
        self.q_norm, self.k_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.o = nn.Linear(heads * size, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = lambda y, n: y.view(*y.shape[:2], n, self.size)
        q = self.q_norm(split(self.q(x), self.heads)).transpose(1, 2)
        k = self.k_norm(split(self.k(x), self.shared)).transpose(1, 2)
        v = split(self.v(x), self.shared).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Directions(nn.Module):
    """Both directions of a recurrent net: threads cannot divide either, and their results interleave."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(24, 24, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(x)[0])


MODELS = {
    "towers": (lambda: Towers(), tuple((2, 128) for _ in range(6))),
    "inception": (lambda: Inception(), ((1, 64, 14, 14),)),
    "directions": (lambda: Directions(), ((1, 40, 24),)),
    "attention": (lambda: Attention(), ((1, 8, 128),)),
}


def order(path: Path, threads: int) -> list[dict]:
    """The launches of the plan for the example's sizes."""
    command = [str(Path(sys.executable).with_name("graft")), "inspect", str(path), "--json", "--plan", "--threads", str(threads)]
    described = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    return described["methods"][0]["plans"][0]["order"]


def branches(launches: list[dict]) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    for launch in launches:
        if place := launch["side_by_side"]:
            groups.setdefault(place["group"], set()).add(place["branch"])
    return groups


@pytest.mark.parametrize("name", MODELS)
def test_branches_run_side_by_side(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shapes = MODELS[name]
    model, inputs = make().eval(), tuple(torch.randn(shape) for shape in shapes)
    path = graft.export(model, inputs, path=tmp_path / "model.pte")
    assert branches(order(path, 1)) == {}
    groups = branches(order(path, 2))
    most = max(map(len, groups.values()), default=0)
    assert most >= {"towers": 6, "inception": 2, "directions": 2, "attention": 2}[name], groups
    results = [graft.load(path, threads=threads)(*inputs) for threads in (1, 2, 3, 8)]
    for result in results:
        assert torch.equal(result, results[0])
    torch.testing.assert_close(results[0], model(*inputs), rtol=1e-4, atol=1e-5)
