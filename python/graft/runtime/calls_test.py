"""What a call of a loaded model does once: describing its inputs, padding them, placing its results."""

import pytest
import torch
from torch.export import Dim

import graft


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return (x + y).exp(), x.sum()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    sizes = {0: Dim("n", min=2, max=64)}
    path = tmp_path_factory.mktemp("calls") / "sum.pte"
    return graft.export(Sum(), (torch.randn(5), torch.randn(5)), path=path, dynamic_shapes=(sizes, sizes))


def described(model, call):
    """How many inputs the call described and padded."""
    before = model.counters()
    call()
    after = model.counters()
    return tuple(after[name] - before[name] for name in ("inputs_described", "inputs_padded", "runs"))


def test_inputs_are_described_once_per_call(package):
    model = graft.load(package)
    x, y = torch.randn(5), torch.randn(5)
    out = (torch.empty(5), torch.empty(()))
    for call in (
        lambda: model(x, y),  # torch tensors, passed directly
        lambda: model(x, y, timeout=10.0),
        lambda: model(x, y, out=out),
        lambda: model(torch.randn(5, 2)[:, 0], y),  # copied by torch, as it is not contiguous
    ):
        assert described(model, call) == (2, 0, 1)
    torch.testing.assert_close(out, Sum()(x, y))


def test_inputs_are_padded_once_per_call(tmp_path):
    class Exp(torch.nn.Module):
        def forward(self, x, y, z):
            return (x + y + z).exp()

    sizes = {0: Dim("n", min=2, max=64)}
    args = (torch.randn(5), torch.randn(5), torch.randn(1))
    path = graft.export(Exp(), args, path=tmp_path / "exp.pte", dynamic_shapes=(sizes, sizes, None))
    model = graft.load(path, buckets={"x.0": [8]})
    out = torch.empty(5)
    assert described(model, lambda: model(*args)) == (3, 2, 1)
    assert described(model, lambda: model(*args, out=out)) == (3, 2, 1)
    torch.testing.assert_close(out, Exp()(*args))
    eight = (torch.randn(8), torch.randn(8), torch.randn(1))
    assert described(model, lambda: model(*eight)) == (3, 0, 1)


def test_each_segment_describes_its_inputs_once(tmp_path):
    class Found(torch.nn.Module):
        def forward(self, x):
            return x[x > 0] * 2

    model = graft.load(graft.export(Found(), (torch.randn(6),), path=tmp_path / "found.pte"))
    x = torch.tensor([1.0, -1.0, 2.0, 3.0, -2.0, 0.0])
    # The method takes x; so does the segment up to nonzero; the one after it takes x and the positions found.
    for call in (lambda: model(x), lambda: model(x, out=torch.empty(3))):
        assert described(model, call) == (1 + 1 + 2, 0, 1)
    torch.testing.assert_close(model(x), Found()(x))


def test_out_is_checked(package):
    model = graft.load(package)
    x = torch.randn(5)
    with pytest.raises(graft.InvalidArgument, match="has 2 outputs, out= holds 1"):
        model(x, x, out=(torch.empty(5),))
    with pytest.raises(graft.InvalidArgument, match=r"out\[0\] of method 'forward' must be a contiguous CPU tensor"):
        model(x, x, out=(torch.empty(4), torch.empty(())))
    assert described(model, lambda: model(x, x)) == (2, 0, 1)  # the session is free again
