"""Convolutions against eager: one to three dimensions, groups, strides, dilations, transposed ones."""

import pytest
import torch
from graft.testing import check_op, tolerance
from op_cases import FLOATS, INTEGERS, cases

aten = torch.ops.aten


def _limits(dtype, terms):
    """Sums of that many terms round in another order than eager's. Of halves eager may keep partial sums as halves, by
    the machine and the kernel: the reference is then the sum in float, rounded once."""
    atol, rtol = tolerance(dtype)
    limits = {"atol": atol * max(terms, 1) ** 0.5 * 2, "rtol": rtol}
    if dtype in (torch.float16, torch.bfloat16):
        limits["reference"] = _rounded_once
    return limits


def _rounded_once(x, weight, bias, *rest):
    wide = [None if t is None else t.float() for t in (x, weight, bias)]
    return aten.convolution.default(*wide, *rest).to(x.dtype)


def _convolution(case, spatial, transposed, dtype):
    """Arguments around the kernels' borders: lines of less than a vector to several, one channel to several tiles."""
    groups = case.pick([1, 1, 2, 3])
    depthwise = case.chance(0.25)
    if depthwise:
        groups = case.pick([2, 5, 17])
    per_group = 1 if depthwise else case.pick([1, 2, 3, 8, 13])
    outputs = groups * (case.pick([1, 1, 2]) if depthwise else case.pick([1, 2, 5, 12, 13, 33]))
    most = {1: (70, 4), 2: (24, 6), 3: (8, 6)}[spatial]
    sizes = [case.random.randint(1, most[0]) for _ in range(spatial)]
    kernel = [case.pick([1, 1, 2, 3, 3, 5]) for _ in range(spatial)]
    stride = [case.pick([1, 1, 2, 3]) for _ in range(spatial)]
    dilation = [case.pick([1, 1, 2, 3]) for _ in range(spatial)]
    padding = [case.random.randint(0, 3) for _ in range(spatial)]
    alike = case.chance(0.2)
    if alike:
        kernel, stride, dilation, padding = ([v[0]] * spatial for v in (kernel, stride, dilation, padding))
        sizes = [sizes[0]] * spatial
    extra = [case.random.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    for i in range(spatial):  # the kernel must fit
        reach = dilation[i] * (kernel[i] - 1) + 1
        if transposed:
            padding[i] = min(padding[i], ((sizes[i] - 1) * stride[i] + reach + extra[i] - 1) // 2)
        else:
            sizes[i] = max(sizes[i], reach - 2 * padding[i])
    channels = groups * per_group
    batch = case.pick([0, 1, 1, 2, 3])
    x = case.tensor([batch, channels, *sizes], dtype, special=False)
    shape = [channels, outputs // groups, *kernel] if transposed else [outputs, per_group, *kernel]
    weight = case.tensor(shape, dtype, special=False)
    bias = case.tensor([outputs], dtype, special=False) if case.chance(0.5) else None
    terms = per_group * torch.Size(kernel).numel()
    if alike and len(set(padding)) == 1:
        stride, padding, dilation = stride[:1], padding[:1], dilation[:1]  # one for all dimensions
    return (x, weight, bias, stride, padding, dilation, transposed, extra, groups), terms


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution(spatial, transposed):
    @cases
    def check(case):
        dtype = case.pick([*FLOATS, torch.float32, torch.int64])
        args, terms = _convolution(case, spatial, transposed, dtype)
        case.check_or_fail(aten.convolution.default, args, **_limits(dtype, terms))

    check()


def _tensor(shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape) * 31 + len(shape))
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride", "padding", "groups"),
    [
        (3, 32, 57, 3, 2, 1, 1),  # first layers
        (3, 64, 64, 7, 2, 3, 1),
        (3, 96, 64, 16, 16, 0, 1),  # patches
        (64, 64, 29, 3, 1, 1, 1),
        (200, 40, 9, 3, 1, 1, 1),  # more depth than one block
        (16, 96, 33, 1, 1, 0, 1),  # pointwise
        (24, 48, 33, 1, 2, 0, 1),
        (48, 48, 40, 3, 1, 1, 48),  # depthwise
        (48, 48, 41, 3, 2, 1, 48),
        (8, 8, 20, 7, 1, 3, 8),
        (64, 128, 14, 3, 1, 1, 32),  # grouped
        (64, 130, 2, 3, 1, 1, 2),  # few outputs per channel
        (960, 160, 1, 1, 1, 0, 1),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layers_of_networks(channels, outputs, size, kernel, stride, padding, groups, dtype):
    x = _tensor((2, channels, size, size), dtype)
    weight = _tensor((outputs, channels // groups, kernel, kernel), dtype, 1)
    bias = _tensor((outputs,), dtype, 2)
    args = (x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    for threads in (1, 2, 5):
        limits = _limits(dtype, channels // groups * kernel * kernel)
        check_op(aten.convolution.default, args, threads=threads, **limits)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_exact(dtype):
    low = 0 if dtype == torch.uint8 else -100
    x, weight = torch.randint(low, 100, (2, 4, 9, 9)).to(dtype), torch.randint(low, 100, (6, 2, 3, 3)).to(dtype)
    check_op(aten.convolution.default, (x, weight, None, [1, 2], [1, 1], [1, 1], False, [0, 0], 2))
    if dtype == torch.int64:
        big = torch.full((1, 1, 3), 2**53 + 1)
        check_op(aten.convolution.default, (big, torch.ones(1, 1, 2, dtype=dtype), None, [1], [0], [1], False, [0], 1))
        check_op(aten.convolution.default, (big, torch.ones(1, 1, 2, dtype=dtype), None, [2], [0], [1], True, [1], 1))


def test_nan_and_infinity_reach_the_outputs_that_see_them():
    x = _tensor((1, 4, 20, 20))
    x[0, 1, 3, 7], x[0, 2, 15, 0] = float("nan"), float("inf")
    for groups, weight in [(1, _tensor((6, 4, 3, 3))), (4, _tensor((4, 1, 3, 3))), (1, _tensor((6, 4, 1, 1)))]:
        args = (x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups)
        check_op(aten.convolution.default, args, **_limits(torch.float32, 36))

