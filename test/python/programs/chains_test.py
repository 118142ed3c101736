"""Chains of elementwise operators run as one launch: eager's numbers, as few launches as there should be."""

import math

import pytest
import torch
from torch.export import Dim
from torch.nn.functional import softplus

import graft

X = (6, 300)


def _gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _lstm_step(gates, c):
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


# name: (function, shapes of its inputs, launches)
CHAINS = {
    "gelu": (_gelu, [X], 1),
    "six": (lambda x, y: torch.tanh((x * 0.5 + y) * 1.5 - x) * y.abs(), [X, X], 1),
    "row": (lambda x, row: (x.exp() + row).sigmoid() / 3 - x, [X, (300,)], 1),
    "column": (lambda x, column: torch.where(x > column, x * column, softplus(x)), [X, (6, 1)], 1),
    "short rows": (lambda x, row: (x - row).abs().sqrt() * row, [(400, 5), (5,)], 1),
    "transposed": (lambda x, y: (x.t() * 2 + y).abs() - y, [X, (300, 6)], 1),
    "mask": (lambda x: x * ((x > 0) & (x < 1)).float() + x.isnan().float(), [X], 1),
    "seen": (lambda x: (x.sigmoid(), x.sigmoid().exp() * 2 - x), [X], 2),
    "grown": (lambda x, row: x * row.exp().neg(), [X, (300,)], 2),  # the part on the row is not repeated per row of x
    "lstm": (_lstm_step, [(3, 48), (3, 12)], 2),
}


class Chain(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = CHAINS[name][0]

    def forward(self, *inputs):
        return self.function(*inputs)


def _inputs(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) * 2 for shape in shapes]
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 100.0, -100.0, 1e-30])
    flat = tensors[0].view(-1)
    flat[: len(special)] = flat[-len(special) :] = special.to(dtype)
    return tuple(tensors)


def _close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_eager_numbers(tmp_path, name, threads):
    _, shapes, launches = CHAINS[name]
    net, inputs = Chain(name), _inputs(shapes)
    path = graft.export(net, inputs, path=tmp_path / "m.pte")
    model = graft.load(path, threads=threads)
    found = model(*inputs)
    _close(found, net(*inputs))
    assert model.counters()["kernels_launched"] == launches
    plain = graft.load(path, threads=threads, options=graft.LoadOptions(fast_kernels=False))
    _close(plain(*inputs), found)
    assert plain.counters()["kernels_launched"] > launches


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_step_is_rounded(tmp_path, dtype):
    """As eager rounds: what comes out is the same to the bit where the functions are exact."""

    class Net(torch.nn.Module):
        def forward(self, x, y):
            return ((x * 0.375 + y) * x - y).abs()

    inputs = _inputs([X, X], dtype)
    model = graft.load(graft.export(Net(), inputs, path=tmp_path / "m.pte"))
    _close(model(*inputs), Net()(*inputs), atol=0, rtol=0)
    assert model.counters()["kernels_launched"] == 1


def test_any_size(tmp_path):
    net = Chain("row")
    rows = Dim("rows", min=1, max=5000)
    inputs = _inputs(CHAINS["row"][1])
    model = graft.load(graft.export(net, inputs, dynamic_shapes={"inputs": ({0: rows}, None)}, path=tmp_path / "m.pte"))
    for count in (1, 2, 77, 1000):
        x = torch.randn(count, 300)
        _close(model(x, inputs[1]), net(x, inputs[1]))


def test_buffers_are_read_before_they_are_written(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(X))

        def forward(self, x):
            before = self.state * 2 - 1
            self.state.copy_((self.state + x).tanh() * 0.5)
            return before.exp() + self.state

    net, x = Net(), torch.randn(X)
    model = graft.load(graft.export(Net(), (x,), path=tmp_path / "m.pte"), threads=2)
    for _ in range(3):
        _close(model(x), net(x))
