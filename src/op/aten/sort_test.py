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


@cases
def test_topk(case):
    x = _tensor(case)
    x = x.to(torch.uint8) if x.dtype == torch.bool else x  # eager has no topk of bool
    dim, largest = case.dim(x.dim()), case.chance(0.5)
    size = x.shape[dim] if x.dim() else 1
    case.check(aten.topk.default, (x, case.pick([size, size // 2, min(size, 1), 0]), dim, largest, case.chance(0.7)))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_the_same_of_equal_elements(largest, is_sorted):
    """Both of PyTorch's ways (few of many, or not), at all sizes: a model routes tokens by such indices."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 15, 16, 17, 33, 64, 127, 128, 129, 640, 4096):
        for k in {1, 2, 3, 16, 17, size // 64, size // 64 + 1, size // 2, size - 1, size}:
            if 0 < k <= size:
                x = torch.randint(0, 3, (5, size), generator=generator).float()
                check_op(aten.topk.default, (x.relu_(), k, -1, largest, is_sorted))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_lines(threads):
    x = torch.randint(0, 50, (37, 1001))
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 1}, threads=threads)
    check_op(aten.sort.stable, (x,), {"stable": True, "dim": 0, "descending": True}, threads=threads)
