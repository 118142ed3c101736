"""Convolutions that PT2E quantized: weights packed at load, bytes from one to the next, against eager PyTorch on the same graph.

A convolution's sum is exact here and rounded along the way in eager PyTorch, so a result may be quantized to the number
beside: one step, and only where it lies between two. Through several layers a step is worth what it makes of the results.
"""

import json
import random
import warnings

import graft
import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from quick import quick


def xnnpack(per_channel=True):
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=per_channel))


def inductor():
    return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())


def quantized(model, example, quantizer, dynamic_shapes=None):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(model.eval(), (example,), dynamic_shapes=dynamic_shapes).module()
        prepared = prepare_pt2e(exported, quantizer)
        for _ in range(3):
            prepared(torch.randn_like(example))
        return convert_pt2e(prepared)


def loaded(model, example, folder, threads=2, dynamic_shapes=None):
    graft.export(model, (example,), dynamic_shapes=dynamic_shapes, path=folder / "m.pte")
    return graft.load(folder / "m.pte", threads=threads)


def last_scale(model):
    """Of the numbers that the results are; not all quantizers take every convolution."""
    nodes = [node for node in model.graph.nodes if str(node.target).startswith("quantized_decomposed.quantize_per_tensor")]
    return nodes[-1].args[1] if nodes else 1e-3


class Layer(nn.Module):
    """activation(conv(x) + short(x))."""

    def __init__(self, choose: random.Random, spatial: int) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d}[spatial]
        groups = choose.choice([1, 1, 1, 2])
        depthwise = choose.random() < 0.35
        inputs = groups * choose.choice([1, 3, 8, 17, 33]) if not depthwise else choose.choice([3, 16, 33, 70, 130])
        outputs = inputs if depthwise else groups * choose.choice([8, 16, 24, 33, 70])
        kernel, stride, dilation = choose.choice([1, 3, 3, 5]), choose.choice([1, 1, 2]), choose.choice([1, 1, 2])
        geometry = {"stride": stride, "padding": choose.choice([0, (kernel - 1) * dilation // 2]), "dilation": dilation}
        self.channels = inputs
        bias = choose.random() < 0.7
        self.conv = conv(inputs, outputs, kernel, groups=inputs if depthwise else groups, bias=bias, **geometry)
        self.short = conv(inputs, outputs, kernel, **geometry) if choose.random() < 0.4 else None
        self.activation = choose.choice([nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Identity()])

    def forward(self, x):
        y = self.conv(x)
        if self.short is not None:
            y = y + self.short(x)
        return self.activation(y)


@pytest.mark.parametrize("seed", quick(range(10), range(30)))
def test_layers_equal_eager(tmp_path, seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    spatial = choose.choice([1, 2, 2])
    layer = Layer(choose, spatial)
    size = {1: 61, 2: 23}[spatial]
    example = torch.randn(2, layer.channels, *[size + 2 * d for d in range(spatial)])
    quantizer = choose.choice([xnnpack, xnnpack, lambda: xnnpack(False), inductor])()
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    model = quantized(layer, example, quantizer, shapes)
    program = loaded(model, example, tmp_path, choose.choice([1, 2]), shapes)
    for n in (1, 3):
        x = torch.randn(n, *example.shape[1:])
        with torch.no_grad():
            expected = model(x)
        found = program(x)
        # A sum of two quantized tensors can be off by a step of each.
        steps = (found - expected).abs() / last_scale(model)
        assert steps.max() <= (1.01 if layer.short is None else 3.01)
        assert (steps > 0.01).float().mean() < 0.01


class Network(nn.Module):
    """What MobileNets and ResNets are made of, with sums, clamps, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6())
        self.wide = nn.Sequential(nn.Conv2d(16, 48, 1), nn.ReLU6(), nn.Conv2d(48, 48, 3, 1, 1, groups=48), nn.ReLU6())
        self.narrow = nn.Conv2d(48, 16, 1)
        self.plain = nn.Sequential(nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU())
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = self.first(x)
        x = x + self.narrow(self.wide(x))
        return self.head(self.plain(x).mean((2, 3)))


def test_a_network_stays_in_bytes(tmp_path):
    torch.manual_seed(0)
    example = torch.randn(1, 3, 32, 32)
    model = quantized(Network(), example, xnnpack())
    program = loaded(model, example, tmp_path)
    for _ in range(3):
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            expected = model(x)
        before = program.counters()["kernels_launched"]
        error = (program(x) - expected).abs().max() / last_scale(model)
        assert error <= 2.01
        # Quantize, five convolutions, the pool and what is around it, the linear layer, its quantization.
        assert program.counters()["kernels_launched"] - before <= 12


class Residuals(nn.Module):
    """Inverted residuals whose wide tensors are large, and a depthwise convolution whose input is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6())
        self.wide = nn.ModuleList(self.expand(16, 96, stride) for stride in (1, 2))
        self.narrow = nn.ModuleList([nn.Conv2d(96, 16, 1), nn.Conv2d(96, 24, 1)])
        self.last = nn.Sequential(nn.Conv2d(24, 200, 1), nn.ReLU6())
        self.seen = nn.Conv2d(200, 200, 3, padding=1, groups=200)

    @staticmethod
    def expand(inputs, outputs, stride):
        depthwise = nn.Conv2d(outputs, outputs, 3, stride, 1, groups=outputs)
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.ReLU6(), depthwise, nn.ReLU6())

    def forward(self, x):
        x = self.first(x)
        x = x + self.narrow[0](self.wide[0](x))
        x = self.last(self.narrow[1](self.wide[1](x)))
        return x, self.seen(x)


def test_separable_convolutions_are_one_launch(tmp_path):
    torch.manual_seed(0)
    example = torch.randn(1, 3, 96, 96)
    model = quantized(Residuals(), example, xnnpack())
    x = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        expected = model(x)
    results = []
    for threads in (1, 2, 3):
        program = loaded(model, example, tmp_path, threads)
        results.append(program(x))
        (plan,) = json.loads(program._program.describe(True))["methods"][0]["plans"]
        kernels = [launch["kernel"].removeprefix("graft ") for launch in plan["order"]]
        # The first convolution alone, two inverted residuals, the expansion that is read twice, and what reads it.
        assert [kernel for kernel in kernels if "conv" in kernel] == [
            "packed_quantized_conv",
            "separable_quantized_conv",
            "separable_quantized_conv",
            "packed_quantized_conv",
            "packed_quantized_depthwise_conv",
        ]
    for others in zip(*results, strict=True):
        assert all(torch.equal(others[0], other) for other in others)
    for found, wanted in zip(results[0], expected, strict=True):
        steps = (found - wanted).abs() / last_scale(model)
        assert steps.max() <= 4.01 and (steps > 0.01).float().mean() < 0.02


class Shared(nn.Module):
    """Quantized results that are read more than once are there for all who read them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        y = self.first(x)
        z = self.second(y)
        return y + z, y, torch.relu(z)


@pytest.mark.parametrize("quantizer", [xnnpack, inductor])
def test_what_is_read_twice_is_there(tmp_path, quantizer):
    torch.manual_seed(0)
    example = torch.randn(2, 8, 9, 11)
    model = quantized(Shared(), example, quantizer())
    program = loaded(model, example, tmp_path)
    x = torch.randn(2, 8, 9, 11)
    with torch.no_grad():
        for found, expected in zip(program(x), model(x), strict=True):
            error = (found - expected).abs() / expected.abs().max()
            assert error.max() < 0.03 and (error > 1e-5).float().mean() < 0.01
