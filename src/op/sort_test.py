"""sort, argsort and topk against eager, places included."""

import pytest
import torch
from graft.testing import check_op, run_op
from op_cases import ALL, Cases, cases

aten = torch.ops.aten


def _tensor(case: Cases) -> torch.Tensor:
    x = case.tensor(case.shape(), case.pick(ALL))
    return x.round() if x.dtype.is_floating_point and case.chance(0.5) else x


@cases
def test_sort(case):
    x = _tensor(case)
    dim, descending = case.dim(x.dim()), case.chance(0.5)
    case.check(aten.sort.stable, (x,), {"stable": True, "dim": dim, "descending": descending})
    # Without being asked, eager may change the order of equal elements; ours is the stable one.
    values, places = run_op(aten.sort.default, (x, dim, descending))
    expected = torch.sort(x, dim=dim, descending=descending, stable=True)
    assert torch.equal(places, expected[1])
    assert torch.equal(values.nan_to_num(77), expected[0].nan_to_num(77))
    case.check(aten.argsort.stable, (x,), {"stable": True, "dim": dim, "descending": descending})


@cases
def test_topk(case):
    x = _tensor(case)
    x = x.to(torch.uint8) if x.dtype == torch.bool else x  # eager has no topk of bool
    dim, largest = case.dim(x.dim()), case.chance(0.5)
    size = x.shape[dim] if x.dim() else 1
    args = (x, case.pick([size, size // 2, min(size, 1), 0]), dim, largest)
    values, places = run_op(aten.topk.default, args)
    expected = aten.topk.default(*args)[0]
    # Among equal elements PyTorch promises no order: ours are the first ones.
    assert torch.equal(values.nan_to_num(77), expected.nan_to_num(77))
    stable = torch.sort(x, dim=dim, descending=largest, stable=True)[1]
    assert torch.equal(places, stable.narrow(dim, 0, args[1]) if x.dim() else stable)
    if x.dtype.is_floating_point:
        distinct = torch.randperm(x.numel()).to(x.dtype).view(x.shape)
        if x.numel() < 250:
            case.check(aten.topk.default, (distinct, *args[1:]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_lines(threads):
    x = torch.randint(0, 50, (37, 1001))
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 1}, threads=threads)
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 0, "descending": True}, threads=threads)
