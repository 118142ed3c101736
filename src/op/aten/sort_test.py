"""sort, argsort and topk against eager, places included."""

import pytest
import torch
from graft.testing import check_op
from op_cases import ALL, Cases, cases

aten = torch.ops.aten


def _tensor(case: Cases) -> torch.Tensor:
    x = case.tensor(case.shape(), case.pick(ALL))
    return x.round() if x.dtype.is_floating_point and case.chance(0.5) else x


def _stable(x: torch.Tensor, dim: int = -1, descending: bool = False):
    """Without being asked, eager may change the order of equal elements; graft keeps it."""
    return torch.sort(x, dim=dim, descending=descending, stable=True)


@cases
def test_sort(case):
    x = _tensor(case)
    args = (x, case.dim(x.dim()), case.chance(0.5))
    keywords = {"stable": True, "dim": args[1], "descending": args[2]}
    case.check(aten.sort.stable, (x,), keywords)
    case.check(aten.sort.default, args, reference=_stable)
    case.check(aten.argsort.stable, (x,), keywords)
    case.check(aten.argsort.default, args, reference=lambda *given: _stable(*given)[1])


def _first(x: torch.Tensor, k: int, dim: int, largest: bool):
    """Among equal elements PyTorch promises no order: graft takes the first ones."""
    sorted_ = _stable(x, dim, largest)
    return [part.narrow(dim, 0, k) if x.dim() else part for part in sorted_]


@cases
def test_topk(case):
    x = _tensor(case)
    x = x.to(torch.uint8) if x.dtype == torch.bool else x  # eager has no topk of bool
    dim, largest = case.dim(x.dim()), case.chance(0.5)
    size = x.shape[dim] if x.dim() else 1
    args = (x, case.pick([size, size // 2, min(size, 1), 0]), dim, largest)
    case.check(aten.topk.default, args, reference=_first)
    if x.dtype.is_floating_point and x.numel() < 250:
        distinct = torch.randperm(x.numel()).to(x.dtype).view(x.shape)
        case.check(aten.topk.default, (distinct, *args[1:]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_lines(threads):
    x = torch.randint(0, 50, (37, 1001))
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 1}, threads=threads)
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 0, "descending": True}, threads=threads)
