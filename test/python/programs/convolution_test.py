"""Convolutions with weights of the model: packed at load, with the norm, the activation and the sum behind them in them."""

import json
import random

import graft
import pytest
import torch
from torch import nn

ACTIVATIONS = [nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, lambda: nn.Hardtanh(-0.5, 0.7)]
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


class Block(nn.Module):
    """activation(norm(conv(x)) + short(x)), then perhaps a pool."""

    def __init__(self, choose: random.Random, spatial: int) -> None:
        super().__init__()
        groups = choose.choice([1, 1, 1, 2])
        depthwise = choose.random() < 0.3
        inputs = groups * choose.choice([1, 3, 8, 17, 33])
        outputs = inputs if depthwise else groups * choose.choice([8, 16, 24, 33, 70])
        kernel, stride, dilation = choose.choice([1, 3, 3, 5]), choose.choice([1, 1, 2]), choose.choice([1, 1, 2])
        padding = choose.choice([0, (kernel - 1) * dilation // 2])
        geometry = {"stride": stride, "padding": padding, "dilation": dilation}
        self.channels = inputs
        self.conv = CONVS[spatial](
            inputs, outputs, kernel, groups=inputs if depthwise else groups, bias=choose.random() < 0.5, **geometry
        )
        self.norm = NORMS[spatial](outputs, affine=choose.random() < 0.7) if choose.random() < 0.6 else nn.Identity()
        self.short = CONVS[spatial](inputs, outputs, kernel, **geometry) if choose.random() < 0.5 else None
        self.activation = choose.choice(ACTIVATIONS)() if choose.random() < 0.8 else nn.Identity()
        self.pool = POOLS[spatial](2, ceil_mode=True) if choose.random() < 0.3 else nn.Identity()
        # Weights that would leave panels nearly empty are not packed.
        self.packed = outputs // (1 if depthwise else groups) >= 16
        # One for each convolution and the pool, and a copy of the result, whose channels are last; depthwise ones need
        # their input so, too.
        self.launches = 2 + depthwise + (self.short is not None) + (not isinstance(self.pool, nn.Identity))

    def forward(self, x):
        y = self.norm(self.conv(x))
        if self.short is not None:
            y = y + self.short(x)
        return self.pool(self.activation(y))


def alive(block: nn.Module) -> nn.Module:
    for norm in block.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            if norm.affine:
                nn.init.uniform_(norm.weight, -2, 2)
                nn.init.uniform_(norm.bias, -1, 1)
    return block.eval().requires_grad_(False)


@pytest.mark.parametrize("seed", range(36))
def test_blocks_equal_eager(tmp_path, seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    spatial = choose.choice([1, 2, 2, 2, 3])
    block = alive(Block(choose, spatial))
    size = {1: 61, 2: 29, 3: 13}[spatial]
    last = choose.random() < 0.5 and spatial > 1

    def image(batch: int, n: int) -> torch.Tensor:
        x = torch.randn(batch, block.channels, *[n + 2 * d for d in range(spatial)])
        return x.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[spatial]) if last else x

    batch = torch.export.Dim("batch", min=1, max=8)
    file = tmp_path / "block.pte"
    graft.export(block, (image(2, size),), dynamic_shapes={"x": {0: batch}}, path=file)
    model = graft.load(file, threads=choose.choice([1, 2]))
    for n in (1, 3):
        x = image(n, size)
        expected = block(x)
        before = model.counters()["kernels_launched"]
        torch.testing.assert_close(model(x), expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-5)
        if block.packed:
            assert model.counters()["kernels_launched"] - before <= block.launches


class Shared(nn.Module):
    """A convolution whose result is read twice keeps its norm and its activation apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return torch.relu(self.norm(y)), y, torch.relu(y) + y


def test_what_is_read_twice_is_there(tmp_path):
    torch.manual_seed(0)
    model = alive(Shared())
    x = torch.randn(2, 3, 17, 19)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    for found, expected in zip(graft.load(tmp_path / "m.pte")(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_elements_outside_and_not_numbers(tmp_path):
    """NaN and infinity reach exactly the outputs that see them, and a clamp keeps NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU6(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU()
    ).eval().requires_grad_(False)
    x = torch.randn(1, 8, 12, 14)
    x[0, 3, 0, 0], x[0, 5, 11, 13], x[0, 0, 6, 6] = torch.nan, torch.inf, -torch.inf
    graft.export(model, (x,), path=tmp_path / "m.pte")
    torch.testing.assert_close(graft.load(tmp_path / "m.pte")(x), model(x), atol=1e-5, rtol=1e-5, equal_nan=True)


def kernels(loaded) -> list[str]:
    (plan,) = json.loads(loaded._program.describe(True))["methods"][0]["plans"]
    return [launch["kernel"].removeprefix("graft ") for launch in plan["order"]]


class Inverted(nn.Module):
    """MobileNetV2's: expand, depthwise, project, the input added where the sizes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, bias: bool = True) -> None:
        super().__init__()
        middle = 6 * inputs
        self.adds = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, middle, 1, bias=bias),
            nn.BatchNorm2d(middle),
            nn.ReLU6(),
            nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=bias),
            nn.BatchNorm2d(middle),
            nn.ReLU6(),
            nn.Conv2d(middle, outputs, 1, bias=bias),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


@pytest.mark.parametrize("batch", [1, 3])
def test_depthwise_convolutions_with_those_around_them(tmp_path, batch):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU6(), nn.Conv2d(24, 24, 3, 1, 1, groups=24))
    model = alive(nn.Sequential(first, nn.Hardswish(), Inverted(24, 24, 1), Inverted(24, 24, 1, bias=False), Inverted(24, 40, 2)))
    x = torch.randn(batch, 3, 160, 132)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    loaded = graft.load(tmp_path / "m.pte")
    expected = model(x)
    torch.testing.assert_close(loaded(x), expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)
    assert [kernel for kernel in kernels(loaded) if "conv" in kernel] == 4 * ["separable_conv"]
    plain = graft.load(tmp_path / "m.pte", options=graft.LoadOptions(fast_kernels=False))
    torch.testing.assert_close(plain(x), expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)


def test_bits_where_more_threads_leave_the_expansion_apart(tmp_path):
    torch.manual_seed(0)
    model, x = alive(Inverted(40, 40, 1)), torch.randn(1, 40, 24, 13)  # tiles of few pixels by half a panel
    graft.export(model, (x,), path=tmp_path / "m.pte")
    expected = model(x)
    few = graft.load(tmp_path / "m.pte", threads=2)
    found = few(x)
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)
    assert [kernel for kernel in kernels(few) if "conv" in kernel] == ["separable_conv"]
    many = graft.load(tmp_path / "m.pte", threads=8)
    assert torch.equal(many(x), found)
    assert [kernel for kernel in kernels(many) if "conv" in kernel] == ["packed_conv", "separable_conv"]


def test_what_lies_between_is_asked_for(tmp_path):
    """Tensors that something else reads, too, are there; small ones are not worth a launch by bands."""

    class Seen(nn.Module):
        def __init__(self, which: int) -> None:
            super().__init__()
            self.layers = Inverted(24, 32, 1).layers
            self.which = which

        def forward(self, x):
            results = []
            for layer in self.layers:
                x = layer(x)
                results.append(x)
            return x, results[self.which]

    torch.manual_seed(0)
    for which, names in [
        (2, ["packed_conv", "separable_conv"]),
        (5, ["separable_conv", "packed_conv"]),
    ]:
        model, x = alive(Seen(which)), torch.randn(1, 24, 40, 40)
        graft.export(model, (x,), path=tmp_path / "m.pte")
        loaded = graft.load(tmp_path / "m.pte")
        for got, expected in zip(loaded(x), model(x), strict=True):
            torch.testing.assert_close(got, expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)
        assert [kernel for kernel in kernels(loaded) if "conv" in kernel] == names
    model, x = alive(Inverted(24, 24, 1)), torch.randn(1, 24, 14, 14)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    loaded = graft.load(tmp_path / "m.pte", threads=2)
    loaded(x)
    assert [kernel for kernel in kernels(loaded) if "conv" in kernel] == APART


APART = ["packed_conv", "packed_depthwise_conv", "packed_conv"]


@pytest.mark.parametrize("batch", [1, 2])
def test_small_pictures_of_many_channels_by_panels(tmp_path, batch):
    torch.manual_seed(0)
    model = alive(nn.Sequential(nn.Conv2d(30, 60, 1), Inverted(60, 60, 1), Inverted(60, 64, 2)))
    x = torch.randn(batch, 30, 9, 7)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    expected = model(x)
    few = graft.load(tmp_path / "m.pte", threads=2)
    found = few(x)
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)
    assert [kernel for kernel in kernels(few) if "conv" in kernel] == ["packed_conv"] + 2 * ["separable_conv_by_panels", "packed_conv"]
    assert torch.equal(graft.load(tmp_path / "m.pte", threads=1)(x), found)
    many = graft.load(tmp_path / "m.pte", threads=16)  # too few panels for each
    assert torch.equal(many(x), found)
    assert [kernel for kernel in kernels(many) if "conv" in kernel] == ["packed_conv"] + 2 * APART


@pytest.mark.parametrize("size", [12, 15, 28])
def test_three_by_three_taps_by_winograd(tmp_path, size):
    torch.manual_seed(0)
    model = alive(nn.Sequential(nn.Conv2d(40, 48, 3, padding=1), nn.BatchNorm2d(48), nn.SiLU(), nn.Conv2d(48, 33, 3)))
    x = torch.randn(2, 40, size, size)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    loaded = graft.load(tmp_path / "m.pte")
    torch.testing.assert_close(loaded(x), model(x), atol=1e-5, rtol=1e-5)
    by_winograd = (size >= 12) + (size - 2 >= 12)
    assert kernels(loaded).count("winograd_conv") == by_winograd
    # Non-finite values reach exactly the outputs whose window contains them.
    x[0, 3, 0, 0], x[0, 5, size - 1, size - 1], x[1, 0, 6, 6] = torch.nan, torch.inf, -torch.inf
    torch.testing.assert_close(loaded(x), model(x), atol=1e-5, rtol=1e-5, equal_nan=True)


def test_the_graph_says_what_was_packed(tmp_path):
    torch.manual_seed(0)
    model = alive(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU6()))
    x = torch.randn(1, 3, 9, 9)
    graft.export(model, (x,), path=tmp_path / "m.pte")
    assert graft.load(tmp_path / "m.pte").counters()["kernels_launched"] == 0
    loaded = graft.load(tmp_path / "m.pte")
    loaded(x)
    assert loaded.counters()["kernels_launched"] == 2  # the convolution and a copy of its result
    plain = graft.load(tmp_path / "m.pte", options=graft.LoadOptions(fast_kernels=False))
    torch.testing.assert_close(plain(x), loaded(x), atol=1e-5, rtol=1e-5)
