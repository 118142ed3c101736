"""Padding with a tensor's own elements, upsampling, sampling by a grid and col2im, against eager."""

import pytest
import torch
from op_cases import cases

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = [1, 2, 3, 7, 31, 33]


def _shape(case, spatial):
    lead = [case.pick([1, 2, 3]) for _ in range(case.pick([1, 2]))]
    most = {1: SIZES, 2: [1, 2, 5, 17], 3: [1, 2, 4]}[spatial]
    return lead + [case.pick(most) for _ in range(spatial)]


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_pad(mode, spatial):
    target = getattr(aten, f"{mode}_pad{spatial}d").default

    @cases
    def check(case):
        shape = _shape(case, spatial)
        padding = []
        for size in reversed(shape[-spatial:]):
            most = size - 1 if mode == "reflection" else 9
            before = case.pick(range(max(-size + 1, -2), most + 1))
            after = case.pick(range(max(-size + 1 - min(before, 0), -2), most + 1))
            padding += [before, after]
        case.check(target, (case.tensor(shape, case.pick(FLOATS)), padding))

    check()


def _sizes(case, shape):
    """Sizes or factors, one of them None."""
    if case.chance(0.5):
        return [case.pick([1, 2, 3, 8, 29, 2 * n, n]) for n in shape], None
    factors = [case.pick([1.0, 2.0, 0.5, 1.7, 3.3, 0.31]) for _ in shape]
    return None, [f if n * f >= 1 else 1.0 for n, f in zip(shape, factors, strict=True)]


def _input(case, dtypes):
    return case.tensor([case.pick([1, 2]), case.pick([1, 3]), case.pick(SIZES), case.pick(SIZES)], case.pick(dtypes), False)


def test_upsample_nearest():
    @cases
    def check(case):
        x = _input(case, [*FLOATS, torch.uint8])
        sizes, factors = _sizes(case, x.shape[2:])
        case.check(aten.upsample_nearest2d.vec, (x, sizes, factors))
        if sizes:
            case.check(aten.upsample_nearest2d.default, (x, sizes, *case.pick([(), (1.5, 2.5), (None, 0.7)])))
        else:
            sizes = [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
            case.check(aten.upsample_nearest2d.default, (x, sizes, *factors))

    check()


@pytest.mark.parametrize("op", [aten.upsample_bilinear2d, aten.upsample_bicubic2d])
def test_upsample(op):
    @cases
    def check(case):
        x = _input(case, FLOATS)
        sizes, factors = _sizes(case, x.shape[2:])
        corners = case.chance(0.5)
        largest = float(x.abs().max()) if x.numel() else 0
        atol = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(x.dtype, 4e-6) * max(largest, 1)
        case.check(op.vec, (x, sizes, corners, factors), atol=atol)
        sizes = sizes or [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
        case.check(op.default, (x, sizes, corners, *(factors or ())), atol=atol)

    check()


def _atol(x, most):
    return {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float64: 1e-11}.get(x.dtype, 1e-5) * max(most, 1)


def _exact(x, grid, *rest):
    return aten.grid_sampler_2d.default(x.double(), grid.double(), *rest).to(x.dtype)


def test_grid_sampler():
    @cases
    def check(case):
        dtype = case.pick(FLOATS)
        n, c = case.pick([0, 1, 2]), case.pick([1, 3])
        x = case.tensor([n, c, case.pick([1, 2, 7, 31]), case.pick([1, 2, 5, 33])], dtype, False)
        # Some positions far outside.
        grid = case.tensor([n, case.pick([0, 1, 4, 9]), case.pick([1, 3, 31]), 2], dtype, False)
        grid = grid * case.pick([0.3, 0.8, 3.0])
        mode = case.pick([0, 1, 2])
        # Halves: eager rounds positions and weights. Positions: nearest must not round the other way in f32 and f64.
        reference = None if dtype in (torch.float32, torch.float64) else _exact
        largest = float(x.abs().max()) if x.numel() else 0
        args = (x, grid, mode, case.pick([0, 1, 2]), case.chance(0.5))
        if mode == 1 and reference:
            args = (x, grid, 0, *args[3:])
        atol = _atol(x, largest) * (10 if grid.numel() and float(grid.abs().max()) > 2 else 1)
        case.check(aten.grid_sampler_2d.default, args, reference=reference, atol=atol)

    check()


def test_col2im():
    @cases
    def check(case):
        kernel, dilation, padding, stride, size = ([case.pick(o) for _ in range(2)] for o in ([1, 2, 3], [1, 2], [0, 1, 2], [1, 2, 3], [1, 4, 9, 31]))
        windows = [(size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)]
        if min(windows) < 1:
            case.refused += 1
            return
        shape = [case.pick([1, 3]) * kernel[0] * kernel[1], windows[0] * windows[1]]
        if case.chance(0.7):
            shape.insert(0, case.pick([0, 1, 2]))
        x = case.tensor(shape, case.pick(FLOATS))
        exact = lambda x, *rest: aten.col2im.default(x.double(), *rest).to(x.dtype)  # halves: eager rounds every sum
        case.check_or_fail(aten.col2im.default, (x, size, kernel, dilation, padding, stride), reference=exact)

    check()
