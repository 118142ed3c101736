"""Which methods compute each row on its own (MethodInfo::independent_rows), so that `graft serve` may put calls together.
Where graft says so, every row of a batch is what it is alone, to the last bits of a product; where rows meet, it does not
say so."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import graft

ROWS = Dim("rows", min=1, max=64)


def normal(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Attention(nn.Module):
    """Heads, a mask by row, residual and norm, as in encoders."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(24, 72), nn.Linear(24, 24), nn.LayerNorm(24)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (p.view(b, t, 3, 8).transpose(1, 2) for p in self.qkv(x).chunk(3, dim=-1))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.norm(x + self.out(y.transpose(1, 2).reshape(b, t, 24)))


class ByHand(nn.Module):
    def forward(self, q, k):
        return torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / 3, dim=-1).sum(-1).cumsum(1)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
            nn.GroupNorm(2, 8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(30, 16), nn.Embedding(9, 16)

    def forward(self, ids):
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return x[:, 0], x.mean(1), x.amax(dim=-1), torch.cat([x, x], dim=1)[:, 2:], ids.to(torch.float32) * 0.5


def mask_of(mask):
    """As transformers makes it of the mask of tokens."""
    rows, columns = torch.arange(mask.shape[0])[:, None, None, None], torch.arange(mask.shape[1])
    return mask[rows, columns] & (columns[None, None, :, None] >= 0)


IDS = torch.randint(0, 30, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 2 + [0] * 5])
INDEPENDENT = {
    "linear": (nn.Sequential(nn.Linear(4, 9), nn.GELU(), nn.Linear(9, 3)), (normal(3, 4),)),
    "attention": (Attention(), (normal(3, 7, 24), MASK)),
    "attention_by_hand": (ByHand(), (normal(3, 2, 5, 8), normal(3, 2, 5, 8, seed=1))),
    "images": (Images(), (normal(3, 3, 16, 16),)),
    "tokens": (Tokens(), (IDS,)),
    "flattened": (Function(lambda x: (x.view(-1, 4) @ torch.ones(4, 2)).view(x.shape[0], 5, 2)), (normal(3, 5, 4),)),
    "pointwise": (Function(lambda x, y: torch.where(x > y, x.sigmoid() * y, (x - y).clamp(-1, 1)).exp()), (normal(3, 4), normal(3, 4, seed=1))),
    "broadcast": (Function(lambda x: x + torch.arange(4) + x.new_ones(1, 4)), (normal(3, 4),)),
    "constants": (Function(lambda x: torch.cat([x.new_zeros(x.shape[0], 1), x], dim=1)), (normal(3, 4),)),
    "expanded": (Function(lambda x: torch.cat([torch.ones(1, 2).expand(x.shape[0], 2), x], dim=1)), (normal(3, 4),)),
    "top": (Function(lambda x: (*x.topk(2, dim=1), x.argmax(-1), x.sort(dim=1)[0])), (normal(3, 6),)),
    "gathered": (Function(lambda x, i: x.gather(1, i)), (normal(3, 6), torch.tensor([[0, 5], [1, 1], [2, 3]]))),
    "padded": (Function(lambda x: F.pad(x, (1, 2))), (normal(3, 4),)),
    "split": (Function(lambda x: torch.stack(x.split(2, dim=1), dim=1).permute(0, 2, 1).unsqueeze(1).squeeze(1)), (normal(3, 4),)),
    "batched_product": (Function(lambda x, y: torch.bmm(x, y)), (normal(3, 2, 4), normal(3, 4, 5))),
    "own_element": (Function(lambda x: x[torch.arange(x.shape[0]), 2]), (normal(3, 4),)),
    "mask_of_transformers": (Function(lambda m: mask_of(m) & m[:, None, :, None]), (MASK > 0,)),
    "weight_on_the_left": (Function(lambda x: torch.ones(2, 4) @ x), (normal(3, 4, 5),)),
}  # fmt: skip
DEPENDENT = {
    "later_rows": (Function(lambda x: x[(torch.arange(x.shape[0]) + 1) % x.shape[0]]), (normal(3, 4),)),
    "numbers_from_one": (Function(lambda x: x[torch.arange(1, x.shape[0] + 1) - 1]), (normal(3, 4),)),
    "row_number_as_column": (Function(lambda x: x[:, torch.arange(x.shape[0]) % 4]), (normal(3, 4),)),
    "column_of_the_row_number": (Function(lambda x: x[torch.arange(x.shape[0]), torch.arange(x.shape[0]) % 4]), (normal(3, 4),)),
    "rows_by_rows": (Function(lambda x: x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[0])[None] % 4]), (normal(3, 4),)),
    "rows_of_all_columns": (Function(lambda x: x[torch.arange(x.shape[0])[None, :], torch.arange(2)[:, None]]), (normal(3, 4),)),
    "mean_of_rows": (Function(lambda x: x - x.mean(0)), (normal(3, 4),)),
    "mean_of_all": (Function(lambda x: x / x.sum()), (normal(3, 4),)),
    "softmax_over_rows": (Function(lambda x: x.softmax(0)), (normal(3, 4),)),
    "negative_dim": (Function(lambda x: x.softmax(-2)), (normal(3, 4),)),
    "running_sum": (Function(lambda x: x.cumsum(0)), (normal(3, 4),)),
    "sorted_rows": (Function(lambda x: x.sort(dim=0)[0]), (normal(3, 4),)),
    "flipped": (Function(lambda x: x.flip(0)), (normal(3, 4),)),
    "rolled": (Function(lambda x: x.roll(1, 0)), (normal(3, 4),)),
    "gathered_rows": (Function(lambda x, i: x.gather(0, i)), (normal(3, 2), torch.tensor([[0, 2], [1, 1], [2, 0]]))),
    "indexed_rows": (Function(lambda x, i: x[i]), (normal(3, 2), torch.tensor([2, 0, 1]))),
    "similarity": (Function(lambda x: (x @ x.T).sum(1)), (normal(3, 4),)),
    "attention_over_rows": (Function(lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0]), (normal(3, 8),)),
    "number_of_rows": (Function(lambda x: x / x.shape[0]), (normal(3, 4),)),
    "place_of_a_row": (Function(lambda x: x + torch.arange(x.shape[0])[:, None]), (normal(3, 4),)),
    "cumulative_view": (Function(lambda x: x.view(-1).cumsum(0).view(x.shape)), (normal(3, 4),)),
    "transposed": (Function(lambda x: x.T.reshape(-1).view(4, -1).T * 1.0), (normal(3, 4),)),
    "rows_as_columns": (Function(lambda x: x.T * 2), (normal(3, 4),)),
    "norm_of_all": (Function(lambda x: F.layer_norm(x, x.shape)), (normal(3, 4),)),
    "training": (nn.BatchNorm1d(4, track_running_stats=False), (normal(3, 4),)),
    "one_for_all": (Function(lambda x: x.sum(0)), (normal(3, 4),)),
    "shifted_slices": (Function(lambda x: torch.cat([x[1:], x[:1]])), (normal(3, 4),)),
}  # fmt: skip


def exported(tmp_path, module, inputs):
    try:
        dynamic = tuple({0: ROWS} for _ in inputs)
        return graft.export(module.eval(), inputs, dynamic_shapes=(dynamic,) if isinstance(module, Function) else dynamic, path=tmp_path / "model.pte")
    except (graft.ExportError, torch._dynamo.exc.UserError) as error:
        pytest.skip(f"is not exported: {error}")


def says(model):
    (method,) = model.describe()["methods"]
    return method["independent_rows"]


def flat(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_on_their_own(tmp_path, name):
    module, inputs = INDEPENDENT[name]
    model = graft.load(exported(tmp_path, module, inputs))
    assert says(model)
    many = [torch.cat([x, x.flip(0), x])[:8] for x in inputs]
    together = flat(model(*many))
    for row in range(8):
        alone = flat(model(*(x[row : row + 1] for x in many)))
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a, b[row : row + 1], rtol=1e-5, atol=1e-6)
    parts = [flat(model(*(x[begin : begin + 4] for x in many))) for begin in (0, 4)]
    for a, b, all_of_it in zip(*parts, together, strict=True):
        torch.testing.assert_close(torch.cat([a, b]), all_of_it, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_meet(tmp_path, name):
    model = graft.load(exported(tmp_path, *DEPENDENT[name]))
    assert not says(model)


def test_without_rows(tmp_path):
    """Fixed sizes, inputs of other sizes, numbers, and buffers that change."""
    module = nn.Linear(4, 2)
    assert not says(graft.load(graft.export(module, (normal(3, 4),), path=tmp_path / "fixed.pte")))

    class Shared(nn.Module):
        def forward(self, x, y):
            return x + y

    dynamic = ({0: ROWS}, None)
    assert not says(graft.load(graft.export(Shared(), (normal(3, 4), normal(4)), dynamic_shapes=dynamic, path=tmp_path / "shared.pte")))

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x * 2

    assert not says(graft.load(graft.export(Counting(), (normal(3, 4),), dynamic_shapes=({0: ROWS},), path=tmp_path / "counting.pte")))
