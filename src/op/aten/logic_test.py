"""Comparisons, logic, bits and selection against eager; all but selection exact."""

import pytest
import torch
from op_cases import ALL, INTEGERS, Cases, cases

aten = torch.ops.aten


def pair(case, dtypes=ALL):
    whole = case.shape(most=3000)
    shapes = [[1 if case.chance(0.25) else size for size in whole] for _ in range(2)]
    first = case.pick(dtypes)
    tensors = [case.tensor(s, first if case.chance(0.6) else case.pick(dtypes)) for s in shapes]
    if case.chance(0.5):  # equal elements in some places
        tensors = [t.round() if t.dtype.is_floating_point else t for t in tensors]
    return tensors


def number(case):
    return case.pick([0, 1, -1, 3, 300, -7, True, 0.5, 0.1, -1.5, float("inf"), float("nan")])


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison(name):
    @cases
    def check(case):
        case.check_or_fail(getattr(aten, name).Tensor, pair(case))

    check()


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_with_a_number(name):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        case.check_or_fail(getattr(aten, name).Scalar, (tensor, number(case)))

    check()


def test_integers_compare_exactly():
    @cases
    def check(case):
        base = torch.tensor([2**53, 2**53 + 1, 2**62, -(2**62) - 1])
        case.check(aten.eq.Tensor, (base, base + case.pick([0, 1, -1])))
        case.check(aten.lt.Tensor, (base, base + case.pick([0, 1, -1])))

    check()


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "logical_not"])
def test_question(name):
    @cases
    def check(case):
        case.check_or_fail(getattr(aten, name).default, (case.tensor(case.shape(), case.pick(ALL)),))

    check()


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name):
    @cases
    def check(case):
        case.check(getattr(aten, name).default, pair(case))

    check()


def test_bitwise_not():
    @cases
    def check(case):
        case.check(aten.bitwise_not.default, (case.tensor(case.shape(), case.pick([*INTEGERS, torch.bool])),))

    check()


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name):
    packet = getattr(aten, name)

    @cases
    def check(case):
        dtypes = [*INTEGERS, torch.bool]
        tensor = case.tensor(case.shape(), case.pick(dtypes))
        value = case.pick([0, 1, 3, -1, 100, True])
        case.check_or_fail(packet.Tensor, pair(case, dtypes))
        case.check_or_fail(packet.Scalar, (tensor, value))
        case.check_or_fail(packet.Scalar_Tensor, (value, tensor))

    check()


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name):
    packet = getattr(aten, name)

    @cases
    def check(case):
        tensors = pair(case, INTEGERS)
        counts = [0, 1, 3, 7, 8, 15, 31, 33, 63, 64, -1]
        case.check_or_fail(packet.Tensor, tensors)
        case.check_or_fail(packet.Tensor_Scalar, (tensors[0], case.pick(counts)))
        case.check_or_fail(packet.Scalar_Tensor, (case.pick(counts), tensors[1]))

    check()


@pytest.mark.parametrize("name", ["__lshift__", "__rshift__"])
def test_shift_operators(name):
    """What `x << y` exports to."""
    packet = getattr(aten, name)

    @cases
    def check(case):
        tensors = pair(case, INTEGERS)
        case.check_or_fail(packet.Tensor, tensors)
        case.check_or_fail(packet.Scalar, (tensors[0], case.pick([0, 1, 3, 7, 8, 15, 31, 33, 63, 64, -1])))

    check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_fill_with_infinity(dtype):
    mask = torch.tensor([True, False, True, False])
    for value in (float("inf"), float("-inf"), 65536.0, float("nan")):
        Cases(0).check_or_fail(aten.masked_fill.Scalar, (torch.arange(4).to(dtype), mask, value))


def condition(case, shape):
    return case.tensor([1 if case.chance(0.25) else s for s in shape], case.pick([torch.bool, torch.bool, torch.uint8]))


@pytest.mark.filterwarnings("ignore:where received a uint8")
def test_where():
    """A true selection: infinities and NaN of the side not taken do not come through."""

    @cases
    def check(case):
        tensors = pair(case)
        shape = torch.broadcast_shapes(tensors[0].shape, tensors[1].shape)
        case.check_or_fail(aten.where.self, (condition(case, shape), *tensors))

    check()


@pytest.mark.filterwarnings("ignore:where received a uint8")
def test_where_with_numbers():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        mask = condition(case, list(tensor.shape))
        case.check_or_fail(aten.where.ScalarOther, (mask, tensor, number(case)))
        case.check_or_fail(aten.where.ScalarSelf, (mask, number(case), tensor))
        case.check_or_fail(aten.where.Scalar, (mask, number(case), number(case)))

    check()


def test_masked_fill():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        mask = case.tensor([1 if case.chance(0.25) else s for s in tensor.shape], torch.bool)
        case.check_or_fail(aten.masked_fill.Scalar, (tensor, mask, number(case)))
        case.check_or_fail(aten.masked_fill.Tensor, (tensor, mask, case.tensor([], tensor.dtype)))

    check()
