"""Heavy launches are divided into several tasks per thread, or by work stealing; no number of tasks shows."""

import json

import graft
import torch
from torch import nn
from torch.nn import functional


class Heavy(nn.Module):
    """Of each kind of kernel that divides its work or its scratch memory by the number of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 96, 3, padding=1)
        self.depthwise = nn.Conv2d(96, 96, 3, padding=1, groups=96)
        self.narrow = nn.Conv2d(96, 5, 1)
        self.wide = nn.Conv2d(32, 96, 5)
        self.separable = nn.Sequential(
            nn.Conv2d(32, 96, 1), nn.ReLU6(), nn.Conv2d(96, 96, 3, padding=1, groups=96), nn.Conv2d(96, 24, 1)
        )
        self.up = nn.ConvTranspose2d(96, 24, 2, stride=2)
        self.linear = nn.Linear(96, 384)
        self.head = nn.Linear(384, 1003)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide, separable = self.wide(x), self.separable(x)
        x = self.depthwise(functional.relu(self.conv(x)))
        pooled = functional.max_pool2d(x, 3, stride=1, padding=1)
        rows = self.linear(x.flatten(2).transpose(1, 2))
        heads = rows.unflatten(2, (6, 64)).transpose(1, 2)[:, :, :700]
        attended = functional.scaled_dot_product_attention(heads, heads, heads)
        products = heads @ heads.transpose(2, 3)
        return (
            wide,
            separable,
            pooled,
            self.narrow(x),
            self.up(x),
            self.head(rows[:, :5]),
            self.head(rows[:, -1]),
            functional.layer_norm(rows, (384,)),
            attended,
            products.softmax(-1),
            rows.sum((0, 1)),
            rows.flatten()[: 24 * 40000].reshape(24, 40000).sum(1),
            rows.var(),
            rows.cumsum(1),
            rows.sort(-1)[0],
            torch.masked_scatter(rows, mask, pooled),
        )


# Parts of kernels' names: of those whose tasks steal work, and of those with several tasks per thread.
STEALING = ("winograd_conv", "separable_conv", "packed_conv", "packed_linear", "attention")
SEVERAL = (
    "depthwise",
    "max_pool",
    "matmul",
    "softmax",
    "layer_norm",
    "reduce",
    "scan",
    "sort",
    "scatter",
)


def test_numbers_of_threads_give_equal_bits(tmp_path):
    torch.manual_seed(0)
    model, x, mask = Heavy().eval(), torch.randn(1, 32, 56, 56), torch.rand(1, 56 * 56, 384) < 0.2
    path = tmp_path / "heavy.pte"
    graft.export(model, (x, mask), path=path)
    results = []
    for threads in (1, 2, 3, 5):
        run = graft.load(path, threads=threads)
        results.append(run(x, mask))
        (plan,) = json.loads(run._program.describe(True))["methods"][0]["plans"]
        divided = {launch["kernel"] for launch in plan["order"] if launch["tasks_per_thread"] > 1}
        stealing = {launch["kernel"] for launch in plan["order"] if launch["steals_work"]}
        for kinds, kernels in ((SEVERAL, divided), (STEALING, stealing)):
            assert [kind for kind in kinds if not any(kind in kernel for kernel in kernels)] == [], kernels
        assert not divided & stealing
        for again, first in zip(run(x, mask), results[-1], strict=True):
            assert torch.equal(again, first)
    for one, *others in zip(*results, strict=True):
        assert [torch.equal(one, other) for other in others] == [True] * 3
    for got, expected in zip(results[0], model(x, mask), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)
