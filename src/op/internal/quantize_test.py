"""Affine quantization against torchao's and PT2E's own operators: the same integers, and floats by the usual tolerance."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torchao.quantization.quant_primitives  # noqa: F401  registers torchao's operators
from graft.testing import check_op
from op_cases import cases

aten, torchao, pt2e = torch.ops.aten, torch.ops.torchao, torch.ops.quantized_decomposed
TYPES = [(torch.int8, -128, 127), (torch.uint8, 0, 255), (torch.int8, -8, 7)]


def _sizes(case):
    """A shape, and a block that divides it."""
    shape = [case.pick([1, 2, 3, 4, 33]) for _ in range(case.pick([1, 2, 2, 3, 4]))]
    shape[-1] = case.pick([1, 6, 32, 96, 257])
    divisors = [[d for d in (1, 2, 3, 8, 32, n) if n % d == 0] for n in shape]
    return shape, [case.pick(d) for d in divisors]


def _floats(case, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(case.pick(range(1 << 20))))
    return x * case.pick([0.01, 1, 100])


def _count(shape, block):
    return [n // b for n, b in zip(shape, block, strict=True)]


def _parameters(case, sizes, low, high):
    g = torch.Generator().manual_seed(case.pick(range(1 << 20)))
    zero_type = case.pick([torch.int8, torch.int32, torch.int64, torch.float32])
    zero = torch.randint(max(low, -128), min(high, 127), sizes, generator=g).to(zero_type)
    return torch.rand(sizes, generator=g) * 0.05 + 0.01, zero


def test_choose_qparams_affine():
    @cases
    def check(case):
        shape, block = _sizes(case)
        if max(block) == 1:
            shape[-1] = block[-1] = 32
        dtype, low, high = case.pick(TYPES)
        mapping = case.pick(["SYMMETRIC", "ASYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"]) if low else "ASYMMETRIC"
        x = _floats(case, shape)
        if case.pick([False, False, False, True]):
            x = x.abs() * case.pick([1, -1, 0])
        eps = case.pick([None, 1.1920928955078125e-07, 0.5])
        zero_type = case.pick([torch.int8, torch.int32, torch.int64]) if low else torch.int32
        args = (x, mapping, block, dtype, low, high, eps, torch.float32, zero_type, case.pick([False, True]))
        check_op(torchao.choose_qparams_affine.default, args, rtol=0, atol=0)

    check()


def test_scales_beyond_the_range_of_integers():
    """A kernel that made an integer of each result was undefined there; eps is the scale where it is larger."""
    x = torch.tensor([[-1e34, 3e33], [0.0, 2e36]])
    for mapping, eps in (("ASYMMETRIC", None), ("SYMMETRIC", None), ("SYMMETRIC", 1e38)):
        args = (x, mapping, [1, 2], torch.int8, -128, 127, eps, torch.float32, torch.int32, True)
        check_op(torchao.choose_qparams_affine.default, args, rtol=0, atol=0)


def test_quantize_affine_and_back():
    @cases
    def check(case):
        shape, block = _sizes(case)
        dtype, low, high = case.pick(TYPES)
        scale, zero = _parameters(case, _count(shape, block), low, high)
        x = _floats(case, shape)
        check_op(torchao.quantize_affine.default, (x, block, scale, zero, dtype, low, high))
        q = torchao.quantize_affine(x, block, scale, zero, dtype, low, high)
        check_op(torchao.dequantize_affine.default, (q, block, scale, zero, dtype, low, high), rtol=0, atol=0)

    check()


def test_halves_are_rounded_to_even():
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, float("inf"), float("-inf"), 1e30])
    check_op(pt2e.quantize_per_tensor.default, (x, 1.0, 0, -128, 127, torch.int8))
    check_op(pt2e.quantize_per_tensor.default, (x, 1.0, 3, 0, 255, torch.uint8))


def test_per_tensor():
    @cases
    def check(case):
        dtype, low, high = case.pick(TYPES)
        x = _floats(case, _sizes(case)[0])
        scale, zero = case.pick([0.013, 0.5, 3.0]), case.pick([low, 0, high, 5])
        numbers = (scale, zero, low, high, dtype)
        tensors = (torch.tensor([scale], dtype=case.pick([torch.float32, torch.float64])), torch.tensor([zero]))
        check_op(pt2e.quantize_per_tensor.default, (x, *numbers))
        check_op(pt2e.quantize_per_tensor.tensor, (x, *tensors, low, high, dtype))
        q = pt2e.quantize_per_tensor(x, *numbers)
        check_op(pt2e.dequantize_per_tensor.default, (q, *numbers), rtol=0, atol=0)
        check_op(pt2e.dequantize_per_tensor.tensor, (q, *tensors, low, high, dtype), rtol=0, atol=0)
        check_op(pt2e.choose_qparams.tensor, (x, low, high, case.pick([0.000244140625, 1.0]), dtype), rtol=0, atol=0)

    check()


def test_per_channel():
    @cases
    def check(case):
        dtype, low, high = case.pick(TYPES)
        shape, _ = _sizes(case)
        axis = case.pick(range(len(shape)))
        scale, zero = _parameters(case, [shape[axis]], low, high)
        zero = zero.to(torch.int64)
        x = _floats(case, shape)
        check_op(pt2e.quantize_per_channel.default, (x, scale, zero, axis, low, high, dtype))
        q = pt2e.quantize_per_channel(x, scale, zero, axis, low, high, dtype)
        check_op(pt2e.dequantize_per_channel.default, (q, scale, zero, axis, low, high, dtype), rtol=0, atol=0)

    check()


def _exact(a, b):
    return (a.to(torch.int64) @ b.to(torch.int64)).to(torch.int32)


def test_int_mm():
    @cases
    def check(case):
        g = torch.Generator().manual_seed(case.pick(range(1 << 20)))
        m, n, k = (case.pick([0, 1, 2, 5, 16, 31, 32, 33, 65, 130]) for _ in range(3))
        dtype = case.pick([torch.int8, torch.uint8])
        a = torch.randint(0, 256, (m, k), generator=g).to(dtype)
        b = torch.randint(-128, 128, (k, n), generator=g).to(torch.int8)
        check_op(aten._int_mm.default, (a, b), reference=_exact)

    check()


@pytest.mark.parametrize("a, b", [(255, 127), (255, -128), (0, -128)])
def test_int_mm_of_extremes(a, b):
    x, y = torch.full((3, 4100), a, dtype=torch.uint8), torch.full((4100, 5), b, dtype=torch.int8)
    check_op(aten._int_mm.default, (x, y), reference=_exact)
