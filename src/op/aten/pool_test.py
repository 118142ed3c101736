"""Pooling against eager."""

import pytest
import torch
from graft.testing import check_op
from op_cases import FLOATS, INTEGERS, cases

aten = torch.ops.aten


def _windows(case, spatial, dilated, dtype):
    """Input, kernel, stride, padding, dilation."""
    most = {1: 70, 2: 20, 3: 9}[spatial]
    kernel = [case.random.randint(1, 4) for _ in range(spatial)]
    stride = [case.random.randint(1, 4) for _ in range(spatial)]
    dilation = [case.pick([1, 1, 2, 3]) if dilated else 1 for _ in range(spatial)]
    padding = [case.random.randint(0, k // 2) for k in kernel]
    sizes = [
        max(case.random.randint(1, most), d * (k - 1) + 1 - 2 * p)
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    if case.chance(0.2):
        kernel, stride, dilation, padding = ([v[0]] for v in (kernel, stride, dilation, padding))
        sizes = [max(sizes[0], dilation[0] * (kernel[0] - 1) + 1)] * spatial
    if case.chance(0.2):
        stride = []
    batch = case.pick([[], [1], [2], [0]])
    x = case.tensor([*batch, case.random.randint(1, 5), *sizes], dtype)
    return x, kernel, stride, padding, dilation


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("indices", [False, True])
def test_max_pool(spatial, indices):
    target = getattr(aten, f"max_pool{spatial}d{'_with_indices' if indices else ''}").default

    @cases
    def check(case):
        dtype = case.pick([*FLOATS, *INTEGERS])
        x, kernel, stride, padding, dilation = _windows(case, spatial, True, dtype)
        case.check_or_fail(target, (x, kernel, stride, padding, dilation, case.chance(0.5)))

    check()


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_avg_pool(spatial):
    target = getattr(aten, f"avg_pool{spatial}d").default

    @cases
    def check(case):
        dtype = case.pick([*FLOATS, torch.int64])
        x, kernel, stride, padding, _ = _windows(case, spatial, False, dtype)
        args = [x, kernel, stride, padding, case.chance(0.5), case.chance(0.5)]
        if spatial > 1:
            args.append(case.pick([None, None, 1, 3, 7, -2]))
        case.check_or_fail(target, args)

    check()


def _adaptive(case, spatial, dtype):
    sizes = [case.random.randint(1, {1: 70, 2: 20, 3: 9}[spatial]) for _ in range(spatial)]
    out = [case.pick([1, 1, 2, 3, 7, s]) for s in sizes]
    return case.tensor([*case.pick([[], [1], [2], [0]]), case.random.randint(1, 5), *sizes], dtype), out


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_adaptive_avg_pool(spatial):
    @cases
    def check(case):
        args = _adaptive(case, spatial, case.pick(FLOATS))
        case.check_or_fail(getattr(aten, f"adaptive_avg_pool{spatial}d").default, args)
        if spatial > 1:
            case.check_or_fail(getattr(aten, f"_adaptive_avg_pool{spatial}d").default, args)

    check()


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_adaptive_max_pool(spatial):
    @cases
    def check(case):
        args = _adaptive(case, spatial, case.pick(FLOATS))
        case.check_or_fail(getattr(aten, f"adaptive_max_pool{spatial}d").default, args)

    check()


def test_ties_take_the_first_and_nan_the_last():
    x = torch.zeros(1, 1, 6, 6)
    x[0, 0, 1, 1] = x[0, 0, 1, 2] = float("nan")
    x[0, 0, 4, 4] = x[0, 0, 5, 5] = 3
    check_op(aten.max_pool2d_with_indices.default, (x, [3, 3]))
    check_op(aten.max_pool2d_with_indices.default, (torch.full((1, 1, 4, 4), float("-inf")), [2, 2]))


def test_extremes_of_integers():
    for value in (-(2**63), 2**63 - 1, 2**53 + 1):
        check_op(aten.max_pool2d_with_indices.default, (torch.full((1, 2, 4, 4), value), [2, 2]))
        check_op(aten.avg_pool2d.default, (torch.full((1, 2, 4, 4), value), [1, 1]))
