"""Models whose branches are too small for all threads: runs on two threads, where branches run side by side, against
runs on one thread.

usage: .venv/bin/python bench/branches.py      (`make bench-overhead` runs it)

A B A B: rounds of both in turns, the median of the ratios and their 10-90 range. All outputs are compared, bit for bit.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import graft

ROUNDS, CALLS = 60, 40


class Towers(nn.Module):
    """A small perceptron for each of several features, as in recommenders, and one on all of them."""

    def __init__(self, towers: int = 8, width: int = 192) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())))
            for _ in range(towers)
        )
        self.top = nn.Linear(towers * width, 1)

    def forward(self, *features: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.top(torch.cat([tower(x) for tower, x in zip(self.towers, features, strict=True)], -1)))


class Directions(nn.Module):
    """Both directions of a recurrent net: each is a launch that threads cannot divide."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(64, 64, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(x)[0])


MODELS = {
    "8 towers of 4 layers": (Towers, tuple((1, 192) for _ in range(8))),
    "LSTM in both directions": (Directions, ((1, 64, 64),)),
}


def main() -> None:
    for name, (make, shapes) in MODELS.items():
        torch.manual_seed(0)
        inputs = tuple(torch.randn(shape) for shape in shapes)
        model = make().eval()
        with tempfile.TemporaryDirectory() as folder:
            path = graft.export(model, inputs, path=Path(folder) / "model.pte")
            sessions = {threads: graft.load(path, threads=threads) for threads in (1, 2)}
        expected = sessions[1](*inputs)
        torch.testing.assert_close(expected, model(*inputs), rtol=1e-4, atol=1e-5)
        ratios, ms = [], {1: [], 2: []}
        for _ in range(ROUNDS):
            for threads, session in sessions.items():
                start = time.perf_counter()
                results = [session(*inputs) for _ in range(CALLS)]
                ms[threads].append((time.perf_counter() - start) / CALLS * 1e3)
                assert all(torch.equal(result, expected) for result in results)
            ratios.append(ms[1][-1] / ms[2][-1])
        ratios.sort()
        print(
            f"{name}: {statistics.median(ms[1]):.3f} ms on one thread, {statistics.median(ms[2]):.3f} on two, ratio "
            f"{statistics.median(ratios):.2f}, 10-90 range {ratios[ROUNDS // 10]:.2f} to {ratios[-ROUNDS // 10]:.2f}"
        )


if __name__ == "__main__":
    main()
