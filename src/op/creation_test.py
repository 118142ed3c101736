"""Tensors made of numbers, copies and casts against eager."""

import pytest
import torch
from op_cases import ALL, cases

aten = torch.ops.aten


def value_for(case, dtype):
    if dtype == torch.bool:
        return case.pick([True, False])
    if not dtype.is_floating_point:
        return case.pick([0, 1, 7, 100]) if dtype == torch.uint8 else case.pick([0, 1, -7, torch.iinfo(dtype).max])
    return case.pick([0, 1, 0.1, -2.5, float("inf"), float("-inf"), float("nan"), -0.0])


def test_full():
    @cases
    def check(case):
        dtype = case.pick(ALL)
        case.check(aten.full.default, (case.shape(), value_for(case, dtype)), {"dtype": dtype})
        case.check(aten.full.default, (case.shape(), value_for(case, dtype)))

    check()


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_constants(name):
    @cases
    def check(case):
        dtype = case.pick(ALL)
        tensor = case.tensor(case.shape(), case.pick(ALL))
        case.check(getattr(aten, name).default, (case.shape(),), {"dtype": dtype})
        case.check(getattr(aten, f"{name}_like").default, (tensor,), {"dtype": dtype} if case.chance(0.5) else {})
        case.check(getattr(aten, f"new_{name}").default, (tensor, case.shape()))

    check()


def test_like():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        value = value_for(case, tensor.dtype)
        case.check(aten.full_like.default, (tensor, value))
        case.check(aten.new_full.default, (tensor, case.shape(), value))
        case.check(aten.fill.Scalar, (tensor, value))
        case.check(aten.fill.Tensor, (tensor, torch.tensor(value, dtype=case.pick([tensor.dtype, torch.float32]))))

    check()


def test_scalar_tensor():
    @cases
    def check(case):
        dtype = case.pick(ALL)
        case.check(aten.scalar_tensor.default, (value_for(case, dtype),), {"dtype": dtype})

    check()


def test_arange_of_integers():
    @cases
    def check(case):
        start, step = case.pick([0, 1, -5, 2**53 + 1]), case.pick([1, 2, 3, -1, -4])
        end = start + step * case.pick([0, 1, 5, 33, 257]) + case.pick([0, 1 if step > 0 else -1])
        kwargs = {"dtype": torch.int32} if abs(start) < 100 and case.chance(0.3) else {}
        case.check(aten.arange.start_step, (start, end, step), kwargs)
        case.check(aten.arange.start, (start, start + case.pick([0, 1, 40])), kwargs)
        case.check(aten.arange.default, (case.pick([0, 1, 31, 300]),), kwargs)

    check()


def test_arange_of_floats():
    @cases
    def check(case):
        dtype = case.pick([torch.float32, torch.float64, torch.float32, torch.float16])
        start, step = case.pick([0, 0.5, -3.25, 0.1]), case.pick([1, 0.1, 0.25, -0.5, 1.7])
        end = start + step * case.pick([0, 1, 5.5, 33, 200])
        case.check(aten.arange.start_step, (start, end, step), {"dtype": dtype})

    check()


def test_cast():
    @cases
    def check(case):
        source, target = case.pick(ALL), case.pick(ALL)
        tensor = case.tensor(case.shape(), source)
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            # Outside the target's range C leaves the result open.
            tensor = torch.nan_to_num(tensor, 0, 100, 0).abs().clamp(0, 100) * case.pick([1, 1.5])
            tensor = tensor.clamp(max=120).to(source)
        case.check(aten._to_copy.default, (tensor,), {"dtype": target})
        case.check(aten.to.dtype, (tensor, target))

    check()


@pytest.mark.parametrize("target", [aten.clone.default, aten.alias.default, aten.detach.default], ids=str)
def test_copies(target):
    @cases
    def check(case):
        case.check(target, (case.tensor(case.shape(), case.pick(ALL)),))

    check()


def test_copy_into():
    @cases
    def check(case):
        shape = case.shape()
        source = case.tensor([1 if case.chance(0.3) else s for s in shape], case.pick([torch.float32, torch.int64, torch.bool]))
        case.check(aten.copy.default, (case.tensor(shape, torch.float32), source))

    check()


def test_casts_of_every_half():
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    for half in (torch.float16, torch.bfloat16):
        from graft.testing import check_op

        check_op(aten._to_copy.default, (bits.view(half),), {"dtype": torch.float32}, atol=0, rtol=0)
        wide = torch.randn(10000) * torch.logspace(-30, 30, 10000)
        check_op(aten._to_copy.default, (wide,), {"dtype": half}, atol=0, rtol=0)
