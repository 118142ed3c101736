"""cat, stack, repeat, roll, pad, triangles and the scatter twins of views against eager."""

import pytest
import torch
from op_cases import ALL, Cases, cases

aten = torch.ops.aten


def _tensor(case: Cases, low: int = 0, high: int = 8, most: int = 6000, empty: bool = True) -> torch.Tensor:
    return case.tensor(case.shape(low, high, most, empty), case.pick(ALL))


@pytest.mark.parametrize("target", [aten.cat.default, aten.concat.default])
@cases
def test_cat(target, case):
    shape = case.shape(1, most=2000)
    dim = case.dim(len(shape))
    tensors = []
    for _ in range(case.random.randint(1, 4)):
        shape[dim] = case.pick([0, 1, 2, 5])
        tensors.append(case.tensor(shape, case.pick(ALL) if case.chance(0.3) else torch.float32))
    if case.chance(0.3):
        tensors.insert(case.random.randint(0, len(tensors)), torch.zeros(0))
    case.check(target, (tensors, dim))


@cases
def test_stack(case):
    shape = case.shape(0, 7, 2000)
    dtype = case.pick(ALL)
    tensors = [case.tensor(shape, dtype) for _ in range(case.random.randint(1, 4))]
    case.check(aten.stack.default, (tensors, case.dim(len(shape) + 1)))


@pytest.mark.parametrize("target", [aten.repeat.default, aten.tile.default])
@cases
def test_repeat(target, case):
    x = _tensor(case, most=300)
    count = case.random.randint(0 if target == aten.tile.default else x.dim(), 8)
    repeats = [case.pick([0, 1, 1, 2, 3] if case.chance(0.2) else [1, 1, 2]) for _ in range(count)]
    case.check(target, (x, repeats))


@cases
def test_repeat_interleave(case):
    x = _tensor(case, most=600)
    case.check_or_fail(aten.repeat_interleave.self_int, (x, case.pick([0, 1, 2, 5]), case.pick([None, case.dim(x.dim())])))


@cases
def test_roll(case):
    x = _tensor(case)
    shift = [0, 1, -1, 5, 300, -1000]
    case.check(aten.roll.default, (x, [case.pick(shift)], []))
    if x.dim():
        dims = [case.dim(x.dim()) for _ in range(case.random.randint(1, 3))]
        case.check(aten.roll.default, (x, [case.pick(shift) for _ in dims], dims))


@cases
def test_constant_pad(case):
    x = _tensor(case, most=300)
    pad = []
    for size in reversed(x.shape[-3:] if x.dim() else []):
        before = case.random.randint(-(size // 2), 4)
        pad += [before, case.random.randint(-(size // 2), 4)]
    value = case.pick([0, 5, -1]) if x.dtype != torch.uint8 else 7
    if x.dtype.is_floating_point:
        value = case.pick([value, 2.5, float("-inf"), float("nan")])
    case.check(aten.constant_pad_nd.default, (x, pad, value))


@pytest.mark.parametrize("target", [aten.tril.default, aten.triu.default])
@cases
def test_triangle(target, case):
    x = _tensor(case, low=2)
    case.check(target, (x, case.pick([0, 1, -1, 3, -40, 300, -300, 2**62, -(2**62)])))


@cases
def test_select_scatter(case):
    x = _tensor(case, low=1, empty=False)
    dim = case.dim(x.dim())
    index = case.random.randint(-x.shape[dim], x.shape[dim] - 1)
    case.check(aten.select_scatter.default, (x, case.tensor(x.select(dim, index).shape, x.dtype), dim, index))


@cases
def test_slice_scatter(case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    size = x.shape[dim]
    bounds = [None, 0, 1, size // 2, size, size + 5, -1, -size - 3]
    where = (dim, case.pick(bounds), case.pick(bounds), case.pick([1, 2, 7]))
    part = aten.slice.Tensor(x, *where)
    case.check(aten.slice_scatter.default, (x, case.tensor(part.shape, x.dtype), *where))


@cases
def test_diagonal_scatter(case):
    x = _tensor(case, low=2)
    first, second = case.random.sample(range(x.dim()), 2)
    offset = case.pick([0, 1, -2, 300])
    part = x.diagonal(offset, first, second)
    case.check(aten.diagonal_scatter.default, (x, case.tensor(part.shape, x.dtype), offset, first, second))
