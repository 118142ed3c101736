"""Padding with a tensor's own elements, and upsampling, against eager."""

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


def test_upsample_bilinear():
    @cases
    def check(case):
        x = _input(case, FLOATS)
        sizes, factors = _sizes(case, x.shape[2:])
        corners = case.chance(0.5)
        largest = float(x.abs().max()) if x.numel() else 0
        atol = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(x.dtype, 4e-6) * max(largest, 1)
        case.check(aten.upsample_bilinear2d.vec, (x, sizes, corners, factors), atol=atol)
        sizes = sizes or [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
        case.check(aten.upsample_bilinear2d.default, (x, sizes, corners, *(factors or ())), atol=atol)

    check()
