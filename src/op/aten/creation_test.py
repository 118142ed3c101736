"""Tensors made of numbers, copies and casts against eager."""

import pytest
import torch
from graft.testing import check_op
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


def test_empty():
    """The values are whatever the memory holds, in eager too: dtype and shape are compared."""

    @cases
    def check(case):
        dtype = {"dtype": case.pick(ALL)} if case.chance(0.7) else {}
        tensor = case.tensor(case.shape(), case.pick(ALL))
        shape = case.shape()
        strides = list(torch.empty(shape, device="meta").stride())
        case.check(aten.empty.memory_format, (shape,), dtype, values=False)
        case.check(aten.empty_strided.default, (shape, strides), dtype, values=False)
        case.check(aten.empty_permuted.default, (shape, case.permutation(len(shape))), dtype, values=False)
        case.check(aten.empty_like.default, (tensor,), dtype, values=False)
        case.check(aten.new_empty.default, (tensor, shape), dtype, values=False)
        case.check(aten.new_empty_strided.default, (tensor, shape, strides), dtype, values=False)

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


@pytest.mark.parametrize("numbers", [(0, 48, 2.0), (0.0, 9, 2), (-3, 7.0, 1.0), (10, -3, -4.0)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_arange_of_whole_numbers_as_floats(numbers, dtype):
    if dtype != torch.uint8 or min(numbers) >= 0:
        check_op(aten.arange.start_step, numbers, {"dtype": dtype})


def computed(case, n):
    """A number that follows from the size n."""
    return case.pick([lambda: n, lambda: n + 1, lambda: 2 * n - 3, lambda: n // 2, lambda: -n, lambda: n % 7 + 1])()


def computed_size(case, n):
    return case.pick([lambda: n, lambda: n + 2, lambda: n // 3, lambda: 3 * n, lambda: n * n % 40])()


def again(case, draw):
    """What `draw` gives must be the same each time it is called."""
    state = case.random.getstate()

    def same(*args):
        case.random.setstate(state)
        return draw(*args)

    return same


def test_arange_with_computed_numbers():
    @cases
    def check(case):
        kwargs = {"dtype": case.pick([torch.int64, torch.int32, torch.float32])} if case.chance(0.5) else {}
        target, draw = case.pick(
            [
                (aten.arange.default, lambda _, n: (computed_size(case, n),)),
                (aten.arange.start, lambda _, n: (computed(case, n), 1000 + n)),
                (aten.arange.start_step, lambda _, n: (-n, computed_size(case, n), n % 5 + 1)),
            ]
        )
        case.check_computed(target, again(case, draw), **kwargs)

    check()


def test_arange_between_computed_numbers_in_fractions():
    @cases
    def check(case):
        dtype = case.pick([torch.float32, torch.float64])
        ends = case.pick([lambda _, n: (n, n * 3 + 1, 0.5), lambda _, n: (0.25, n // 2, 0.125)])
        case.check_computed(aten.arange.start_step, ends, dtype=dtype)

    check()


def test_filled_with_computed_numbers():
    @cases
    def check(case):
        dtype = case.pick([{}, {"dtype": torch.float32}, {"dtype": torch.int64}, {"dtype": torch.float16}])

        def full(_, n):
            return [computed_size(case, n), case.pick([2, 0, n])], case.pick([3, computed(case, n)])

        target, draw, kwargs = case.pick(
            [
                (aten.full.default, full, dtype),
                (aten.full.default, lambda _, n: ([n, 2], n / 3), {"dtype": torch.float64}),
                (aten.new_full.default, lambda x, n: (x, *full(x, n)), dtype),
                (aten.full_like.default, lambda x, n: (x, computed(case, n)), dtype),
                (aten.fill.Scalar, lambda x, n: (x, computed(case, n)), {}),
                (aten.scalar_tensor.default, lambda _, n: (computed(case, n),), dtype),
                (aten.zeros.default, lambda _, n: ([2, computed_size(case, n)],), dtype),
                (aten.new_ones.default, lambda x, n: (x, [2, computed_size(case, n)]), dtype),
            ]
        )
        case.check_computed(target, again(case, draw), **kwargs)

    check()


def convertible(case, source, target):
    """Values that `target` holds, but for the fraction: beyond its range C leaves the result open."""
    tensor = case.tensor(case.shape(), source)
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        tensor = torch.nan_to_num(tensor, 0, 100, 0).abs().clamp(0, 100) * case.pick([1, 1.5])
        tensor = tensor.clamp(max=120).to(source)
    return tensor


def test_cast():
    @cases
    def check(case):
        target = case.pick(ALL)
        tensor = convertible(case, case.pick(ALL), target)
        case.check(aten._to_copy.default, (tensor,), {"dtype": target})
        case.check(aten.to.dtype, (tensor, target))
        case.check(aten.to.dtype_layout, (tensor,), {"dtype": target, "layout": torch.strided, "device": "cpu"})
        case.check(aten.to.device, (tensor, torch.device("cpu"), target, False, case.chance(0.5)))

    check()


@pytest.mark.parametrize("target", [aten.to.other, aten.type_as.default], ids=str)
def test_cast_to_the_dtype_of_another(target):
    @cases
    def check(case):
        other = case.tensor(case.shape(), case.pick(ALL))
        case.check(target, (convertible(case, case.pick(ALL), other.dtype), other))

    check()


COPIES = [
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.positive.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
]


@pytest.mark.parametrize("target", COPIES, ids=str)
def test_copies(target):
    @cases
    def check(case):
        case.check_or_fail(target, (case.tensor(case.shape(), case.pick(ALL)),))

    check()


@pytest.mark.parametrize("target", [aten.clone.default, aten.contiguous.default], ids=str)
def test_memory_formats(target):
    """They decide about strides, not about values."""

    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        formats = [torch.contiguous_format]
        if target is aten.clone.default:
            formats.append(torch.preserve_format)
        if tensor.dim() == 4:
            formats.append(torch.channels_last)
        case.check(target, (tensor,), {"memory_format": case.pick(formats)})

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
        check_op(aten._to_copy.default, (bits.view(half),), {"dtype": torch.float32}, atol=0, rtol=0)
        wide = torch.randn(10000) * torch.logspace(-30, 30, 10000)
        check_op(aten._to_copy.default, (wide,), {"dtype": half}, atol=0, rtol=0)
