"""How many more runs a second a flow of two models gives than calling one after the other.

usage: .venv/bin/python bench/flow.py      (`make bench-overhead` runs it)

Two models of one thread each, the output of the first is the input of the second. A B A B: calls one after another, then
the same through a `graft.Flow`; the median of the ratios and their 10-90 range. All outputs are compared bit for bit.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import graft

ROUNDS, RUNS, ROWS, WIDTH = 15, 60, 64, 512


def main() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    inputs = [torch.randn(ROWS, WIDTH) for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as folder:
        path = graft.export(net, (inputs[0],), path=Path(folder) / "net.pte")
        first = graft.load(path, threads=1)
    second = first.fork()
    flow = graft.Flow(
        inputs=["x"],
        stages={"first": first.fork(), "second": first.fork()},
        connections={"first.0": "x", "second.0": "first.0"},
        outputs=["second.0"],
    )

    def one_after_another() -> list[torch.Tensor]:
        return [second(first(x)) for x in inputs]

    def in_a_flow() -> list[torch.Tensor]:
        return [run.result() for run in [flow.submit(x) for x in inputs]]

    def timed(function) -> tuple[float, list[torch.Tensor]]:
        start = time.perf_counter()
        outputs = function()
        return time.perf_counter() - start, outputs

    expected = one_after_another()
    in_a_flow()
    ratios, rates = [], []
    for _ in range(ROUNDS):
        alone, plain = timed(one_after_another)
        together, flowed = timed(in_a_flow)
        for outputs in (plain, flowed):
            assert all(map(torch.equal, outputs, expected)), "outputs differ"
        ratios.append(alone / together)
        rates.append(RUNS / together)
    ratios.sort()
    rates.sort()
    counters = flow.counters()
    print(
        f"two models as a flow, runs a second divided by those of calls one after another: median "
        f"{ratios[ROUNDS // 2]:.2f}, 10-90 range {ratios[ROUNDS // 10]:.2f} to {ratios[-1 - ROUNDS // 10]:.2f} "
        f"({rates[ROUNDS // 2]:.0f} runs a second; {counters['finished']} runs, {counters['buffers']} buffers, "
        f"{counters['copies']} copies; outputs equal)"
    )
    flow.shutdown()


if __name__ == "__main__":
    main()
