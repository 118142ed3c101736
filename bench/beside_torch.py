"""How much graft's workers slow down PyTorch operators that run between two graft runs, and the other way round.

usage: .venv/bin/python bench/beside_torch.py PACKAGE.pte      (a MiniLM package; `make bench-overhead` runs it)

A B A B: a PyTorch matrix product alone, and the same product right after a graft run, both with 2 threads; then the
median of the ratios and their 10-90 range. The outputs timed are compared.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import graft

ROUNDS = 300


def main() -> None:
    torch.set_num_threads(2)
    model = graft.load(sys.argv[1], threads=2)
    ids = torch.full((1, 32), 101, dtype=torch.int64)
    mask = torch.ones_like(ids)
    a = torch.randn(512, 512)
    expected = a @ a
    reference = model(ids, mask)

    def product() -> float:
        start = time.perf_counter()
        result = a @ a
        elapsed = time.perf_counter() - start
        assert torch.equal(result, expected)
        return elapsed

    ratios = []
    for _ in range(ROUNDS):
        time.sleep(0.002)  # PyTorch's own workers are asleep again
        product()
        alone = product()
        time.sleep(0.002)
        product()
        assert torch.equal(torch.utils._pytree.tree_leaves(model(ids, mask))[0], torch.utils._pytree.tree_leaves(reference)[0])
        after = product()
        ratios.append(after / alone)
    ratios.sort()
    print(
        f"PyTorch product of 512 x 512 right after a graft run, divided by the same alone: "
        f"median {statistics.median(ratios):.3f}, 10-90 range {ratios[ROUNDS // 10]:.3f} to {ratios[-ROUNDS // 10]:.3f}"
    )


if __name__ == "__main__":
    main()
