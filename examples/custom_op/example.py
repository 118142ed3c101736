"""A model with operators of its own, exported and run by graft.

    cmake -S . -B build -DCMAKE_PREFIX_PATH=... && cmake --build build
    python example.py build/libcustom_op.so
"""

import sys
import tempfile
from pathlib import Path

import torch

import graft


@torch.library.custom_op("example::soft_shrink", mutates_args=())
def soft_shrink(x: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
    return torch.nn.functional.softshrink(x, threshold)


@soft_shrink.register_fake
def _(x, threshold=0.5):
    return torch.empty_like(x)


@torch.library.custom_op("example::runs", mutates_args=())
def runs(parts: list[torch.Tensor], counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [part.sum() * count for part, count in zip(parts, counts, strict=True)]
    return torch.stack(rows), torch.stack([part.max() for part in parts])


@runs.register_fake
def _(parts, counts):
    return parts[0].new_empty(len(counts)), parts[0].new_empty(len(counts))


class Model(torch.nn.Module):
    def forward(self, x):
        y = soft_shrink(x * 2, 0.25)
        sums, largest = runs([y, x], [3, 2])
        return y, sums, largest


def main(library: str) -> None:
    graft.load_ops(library)  # for export and for runs
    x = torch.randn(4, 5)
    with tempfile.TemporaryDirectory() as folder:
        path = graft.export(
            Model(), (x,), dynamic_shapes=({0: torch.export.Dim("rows", max=100)},), path=Path(folder) / "model.pte"
        )
        model = graft.load(path)
        for rows in (4, 1, 90):
            x = torch.randn(rows, 5)
            for found, expected in zip(model(x), Model()(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    print("the same as eager PyTorch")


if __name__ == "__main__":
    main(sys.argv[1])
