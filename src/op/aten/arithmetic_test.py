"""Arithmetic against eager: every overload, mixed dtypes, two-sided broadcast, numbers on either side."""

import math

import graft
import pytest
import torch
from graft.exporter.serialize import serialize_op
from graft.testing import run_blob
from op_cases import ALL, FLOATS, INTEGERS, Cases, cases

aten = torch.ops.aten


def broadcastable(case: Cases, count: int) -> list[list[int]]:
    """Shapes that broadcast to one: some dimensions 1, some leading ones missing."""
    whole = case.shape(most=3000)
    shapes = []
    for _ in range(count):
        shape = [1 if case.chance(0.25) else size for size in whole]
        shapes.append(shape[case.random.randint(0, len(shape)) if case.chance(0.3) else 0 :])
    return shapes


def operands(case: Cases, count: int = 2, dtypes=ALL) -> list[torch.Tensor]:
    first = case.pick(dtypes)
    return [case.tensor(s, first if case.chance(0.6) else case.pick(dtypes)) for s in broadcastable(case, count)]


def without_overflow(dividend: torch.Tensor, divisor):
    """The divisor, -1 replaced where the lowest integer would be divided by it: that kills the process in PyTorch."""
    if dividend.dtype.is_floating_point or dividend.dtype == torch.bool or not dividend.numel():
        return divisor
    if dividend.min() != torch.iinfo(dividend.dtype).min:
        return divisor
    if isinstance(divisor, torch.Tensor):
        return divisor.masked_fill(divisor == -1, 3) if divisor.dtype != torch.bool else divisor
    return 3 if divisor == -1 else divisor


def number(case: Cases, dtype: torch.dtype | None = None):
    """A Python number; an integer or bool when the dtype is an integer's and must stay one."""
    integers = [0, 1, 2, 3, -1, -3, 7, 100]
    reals = [0.0, -0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 0.1, 1e10, float("inf"), float("nan")]
    if dtype is not None and not dtype.is_floating_point:
        return case.pick(integers)
    return case.pick(integers + reals)


TENSOR_TENSOR = [
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.floor_divide.default,
    aten.remainder.Tensor,
    aten.fmod.Tensor,
    aten.pow.Tensor_Tensor,
    aten.maximum.default,
    aten.minimum.default,
    aten.fmax.default,
    aten.fmin.default,
    aten.atan2.default,
    aten.hypot.default,
    aten.copysign.Tensor,
]


@pytest.mark.parametrize("target", TENSOR_TENSOR, ids=str)
def test_tensors(target):
    @cases
    def check(case):
        dtypes = FLOATS if target is aten.hypot.default else ALL
        # PyTorch computes pow of halves in the half dtype or in float, by the machine.
        limits = {"rtol": 1e-2} if target is aten.pow.Tensor_Tensor else {}
        first, second = operands(case, dtypes=dtypes)
        if target in (aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor):
            second = without_overflow(first, second)
        case.check_or_fail(target, (first, second), **limits)

    check()


TENSOR_SCALAR = [
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.floor_divide.Scalar,
    aten.remainder.Scalar,
    aten.fmod.Scalar,
    aten.pow.Tensor_Scalar,
    aten.copysign.Scalar,
]


@pytest.mark.parametrize("target", TENSOR_SCALAR, ids=str)
def test_tensor_and_number(target):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        value = number(case)
        if target in (aten.floor_divide.Scalar, aten.remainder.Scalar, aten.fmod.Scalar):
            value = without_overflow(tensor, value)
        case.check_or_fail(target, (tensor, value), **({"rtol": 1e-2} if "pow" in str(target) else {}))

    check()


@pytest.mark.parametrize("target", [aten.mul.Tensor, aten.div.Tensor], ids=str)
def test_number_where_the_schema_says_tensor(target):
    """What `x * 2` exports to."""

    @cases
    def check(case):
        case.check_or_fail(target, (case.tensor(case.shape(), case.pick(ALL)), number(case)))

    check()


@pytest.mark.parametrize("target", [aten.remainder.Scalar_Tensor, aten.pow.Scalar], ids=str)
def test_number_and_tensor(target):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        case.check_or_fail(target, (number(case, tensor.dtype), tensor), **({"rtol": 1e-2} if "pow" in str(target) else {}))

    check()


def alpha(case: Cases, *tensors: torch.Tensor):
    dtype = torch.result_type(tensors[0], tensors[-1])
    if dtype == torch.bool:
        return {"alpha": case.pick([True, False])} if case.chance(0.5) else {}
    return {"alpha": number(case, dtype)} if case.chance(0.5) else {}


@pytest.mark.parametrize("target", [aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor], ids=str)
def test_sums(target):
    @cases
    def check(case):
        tensors = operands(case)
        options = alpha(case, *tensors)
        # alpha * other is rounded before the sum there and fused here, or the other way round.
        atol = 2e-5 if tensors[0].dtype == torch.float32 else 2e-2
        case.check_or_fail(target, tensors, options, atol=atol + rounding_of_alpha(target, tensors, options))

    check()


def rounding_of_alpha(target, tensors, options):
    """What the result may differ by since eager PyTorch rounds alpha to the result's halves, in its vector code."""
    dtype, factor = torch.result_type(*tensors), options.get("alpha", 1)
    if dtype not in (torch.float16, torch.bfloat16):
        return 0
    rounded = torch.tensor(float(factor)).to(dtype).item()
    scaled = tensors[0 if target is aten.rsub.Tensor else 1].to(torch.float64)
    scaled = scaled[scaled.isfinite()]
    if rounded == factor or not math.isfinite(rounded) or scaled.numel() == 0:
        return 0
    return abs(rounded - factor) * scaled.abs().max().item()


@pytest.mark.parametrize("target", [aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.add.Tensor], ids=str)
def test_sums_with_a_number(target):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        case.check_or_fail(target, (tensor, number(case)), {"alpha": 2} if case.chance(0.3) else {})

    check()


@pytest.mark.parametrize("target", [aten.div.Tensor_mode, aten.div.Scalar_mode], ids=str)
def test_rounding_modes(target):
    @cases
    def check(case):
        mode = {"rounding_mode": case.pick([None, "trunc", "floor"])}
        if target is aten.div.Tensor_mode:
            first, second = operands(case)
        else:
            first, second = case.tensor(case.shape(), case.pick(ALL)), number(case)
        case.check_or_fail(target, (first, without_overflow(first, second)), mode)

    check()


@pytest.mark.parametrize("target", [aten.addcmul.default, aten.addcdiv.default], ids=str)
def test_products_added(target):
    @cases
    def check(case):
        dtype = case.pick(FLOATS if case.chance(0.7) else INTEGERS)
        tensors = [case.tensor(s, dtype) for s in broadcastable(case, 3)]
        value = {"value": number(case, dtype)} if case.chance(0.6) else {}
        loose = {torch.float16: 2e-2, torch.bfloat16: 2e-1}.get(dtype, 1e-5)
        case.check_or_fail(target, tensors, value, atol=loose if dtype.is_floating_point else 0, rtol=loose)

    check()


@pytest.mark.parametrize("target", [aten.lerp.Tensor, aten.lerp.Scalar], ids=str)
def test_lerp(target):
    @cases
    def check(case):
        dtype = case.pick(FLOATS)
        tensors = [case.tensor(s, dtype) for s in broadcastable(case, 3)]
        weight = tensors[2] if target is aten.lerp.Tensor else case.pick([0.0, 0.25, 0.5, 0.75, 1.0, 2.0])
        loose = {torch.float16: 1e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-5)
        case.check_or_fail(target, (*tensors[:2], weight), atol=loose)

    check()


INTEGER_DIVISIONS = [
    (aten.floor_divide.default, {}),
    (aten.remainder.Tensor, {}),
    (aten.fmod.Tensor, {}),
    (aten.div.Tensor_mode, {"rounding_mode": "trunc"}),
    (aten.div.Tensor_mode, {"rounding_mode": "floor"}),
]


@pytest.mark.parametrize(("target", "kwargs"), INTEGER_DIVISIONS, ids=str)
def test_integer_division_by_zero(target, kwargs):
    program = serialize_op(target, (torch.tensor([1, 2]), torch.tensor([1, 1])), kwargs)
    with pytest.raises(graft.Error, match="ZeroDivisionError"):
        run_blob(program, [torch.tensor([1, 2]), torch.tensor([1, 0])], threads=1)


def test_sizes_that_do_not_broadcast():
    # The exporter never writes such a call with static sizes; with dynamic ones the plan of the real sizes finds it.
    with pytest.raises(RuntimeError, match="must match the size"):
        aten.add.Tensor(torch.ones(3), torch.ones(4))


def test_arange_minus_its_transpose():
    """[T] - [T, 1] is [T, T]: broadcast guessed by size gave [T, 1] elsewhere."""
    steps = torch.arange(5)
    Cases(0).check(aten.sub.Tensor, (steps[None].contiguous(), steps[:, None].contiguous()))


def test_integers_above_two_to_the_24():
    big = torch.tensor([2**24 + 1, 2**53 + 1, -(2**62)])
    for target in (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor):
        Cases(0).check(target, (big, torch.tensor([1, 3, 1])))
        Cases(0).check(target, (big, 2**40 + 1))


def test_halves_and_an_integer_without_dimensions():
    """PyTorch rounds the first operand to the half dtype, where 70000 is infinite; the second it reads as a number."""
    half, integer = torch.tensor([0.5, 0.25], dtype=torch.float16), torch.tensor(70000, dtype=torch.int32)
    for target in (aten.mul.Tensor, aten.div.Tensor, aten.floor_divide.default):
        Cases(0).check(target, (integer, half))
        Cases(0).check(target, (half, integer))
