"""Writes golden.pte and golden.npz beside this file: a package that must keep loading and giving the stored numbers.

    python test/golden/make_golden.py

They are made again only when the version of schema/graft.fbs changes in a way that old files cannot follow (a new major
version). A test that fails on the committed files means that the engine no longer reads what users have on disk: mend
the engine. When the format does change, move the old files to golden_v<version>.* and keep testing what of them is
promised to load.

golden.npz holds `<method>.<call>.in.<i>` and `<method>.<call>.out.<i>`, as eager PyTorch computed them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.export import Dim

import graft

HERE = Path(__file__).resolve().parent
WORDS, HIDDEN, HEADS = 20, 16, 2


class Shared(torch.nn.Module):
    """Weights that both methods with floats use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.words = torch.nn.Embedding(WORDS, HIDDEN)
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.register_buffer("steps", torch.tensor([2**40 + 1, -3, 2**24 + 1, 7]))
        self.register_buffer("ramp", torch.linspace(-2, 2, HIDDEN).half())
        self.eval()


class Encode(torch.nn.Module):
    """ids [B, T], mask [B, T] -> pooled [B, 16], hidden states [B, T, 16], B * T."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, ids, mask):
        own = self.shared
        batch, length = ids.shape
        # Depends on weights alone: folded when the package is loaded.
        scale = torch.softmax(own.down.weight.sum(1), 0) + own.ramp.float().abs().sqrt()
        hidden = own.words(ids) * scale
        q, k, v = own.qkv(own.norm(hidden)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        seen = mask.bool()[:, None, None, :]
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.5)
        hidden = hidden + attended.transpose(1, 2).reshape(batch, length, HIDDEN)
        hidden = hidden + own.down(torch.nn.functional.gelu(own.up(hidden), approximate="tanh"))
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        return {"pooled": torch.nn.functional.normalize(pooled, dim=-1), "hidden": hidden, "count": batch * length}


class Numbers(torch.nn.Module):
    """x i64 [N], y f32 [N, 4] -> integers, booleans, halves; sizes that follow N."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x, y):
        n = x.shape[0]
        places = torch.arange(n)
        later = places[None] >= places[:, None]
        table = self.shared.steps[x % 4] * 3 - x
        values, order = torch.sort(y, dim=0, stable=True)
        top, which = torch.topk(y, 2, dim=1)
        picked = torch.gather(y, 1, (x % 4)[:, None])
        written = torch.zeros_like(y).index_put([places, x % 4], picked[:, 0], accumulate=True)
        half = (y.to(torch.float16) * self.shared.ramp[:4]).round()
        brain = (y.to(torch.bfloat16) + 1).float()
        chosen = torch.where(y > 0, torch.log(y), float("-inf"))
        return (
            later,
            table,
            table.to(torch.int32),
            values,
            order,
            top,
            which,
            written,
            half,
            brain,
            chosen,
            torch.cumsum(x, 0),
            torch.clamp(y, min=-0.5).mean(0),
            y.amax(1) - y.std(1),
            n * 2 + 1,
        )


class Shapes(torch.nn.Module):
    """x f32 [R, C, 3] -> views, copies and parts; weights and constants as results."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x):
        rows, columns = x.shape[0], x.shape[1]
        turned = x.permute(1, 2, 0)
        padded = torch.nn.functional.pad(x, (1, 0, 0, 2), value=-7.5)
        shifted = torch.roll(x.flip(1), 1, 0)
        joined = torch.cat([turned.reshape(3 * columns, rows), x.reshape(rows, -1).t()])
        matrix = x.reshape(rows * columns, 3) @ torch.tril(x[0, :1].t() @ x[-1, :1])
        halves = joined.split([columns, 2 * columns + 3 * columns])
        replaced = torch.slice_scatter(x, x[:, :1] * 2, 1, 0, 1)
        return turned, padded, shifted, matrix, halves[1], replaced, self.shared.norm.weight, None, columns, 0.25


def methods() -> dict[str, dict[str, object]]:
    shared = Shared()
    batch, length = Dim("batch", min=1, max=4), Dim("length", min=1, max=64)
    sizes = {0: batch, 1: length}
    n = Dim("n", min=2, max=100)
    torch.manual_seed(5)
    return {
        "encode": {
            "model": Encode(shared),
            "args": (torch.randint(0, WORDS, (2, 9)), torch.ones(2, 9, dtype=torch.int64)),
            "dynamic_shapes": {"ids": sizes, "mask": sizes},
        },
        "numbers": {
            "model": Numbers(shared),
            "args": (torch.arange(6), torch.randn(6, 4)),
            "dynamic_shapes": {"x": {0: n}, "y": {0: n}},
        },
        "shapes": {
            "model": Shapes(shared),
            "args": (torch.randn(3, 5, 3),),
            "dynamic_shapes": {"x": {0: Dim("rows", min=2, max=16), 1: Dim("columns", min=2, max=16)}},
        },
    }


def calls() -> dict[str, list[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(6)

    def text(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, (length + 1) // 2 :] = 0
        return torch.randint(0, WORDS, (batch, length)), mask

    def numbers(n: int) -> tuple[torch.Tensor, ...]:
        y = torch.randn(n, 4)
        y[n // 2] = torch.tensor([2.5, -0.0, 1e30, float("inf")])
        return torch.randint(0, 1000, (n,)), y

    return {
        "encode": [text(2, 9), text(1, 1), text(4, 33), text(3, 7)],
        "numbers": [numbers(6), numbers(2), numbers(37)],
        "shapes": [(torch.randn(3, 5, 3),), (torch.randn(16, 2, 3),), (torch.randn(2, 16, 3),)],
    }


def main() -> None:
    kinds = methods()
    graft.export(methods=kinds, path=HERE / "golden.pte")
    arrays = {}
    for name, found in calls().items():
        for i, args in enumerate(found):
            with torch.no_grad():
                results = kinds[name]["model"](*args)
            results = list(results.values()) if isinstance(results, dict) else results
            for side, items in (("in", args), ("out", results)):
                for k, item in enumerate(items):
                    if item is not None:
                        arrays[f"{name}.{i}.{side}.{k}"] = np.asarray(item.detach() if isinstance(item, torch.Tensor) else item)
    np.savez_compressed(HERE / "golden.npz", **arrays)
    print(*(f"{path.name}: {path.stat().st_size} bytes" for path in sorted(HERE.glob("golden.*"))), sep="\n")


if __name__ == "__main__":
    main()
