"""Functions of one operand against eager."""

import pytest
import torch
from op_cases import ALL, FLOATS, cases

aten = torch.ops.aten

NAMES = """
    neg abs sign sgn exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh
    tanh asinh acosh atanh erf erfc erfinv floor ceil trunc round frac
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_function(name):
    target = getattr(aten, name).default

    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        if tensor.dtype.is_floating_point and case.chance(0.5):
            # Eager's vectorized sinh and cosh are infinite from 89 on, where the results still fit.
            tensor = tensor * case.pick([0.01, 10, 100, 1000] if name not in ("sinh", "cosh") else [0.01, 10])
        # PyTorch computes some of these functions of halves with the half's precision between the steps.
        case.check_or_fail(target, (tensor,), **({"rtol": 4e-3} if tensor.dtype == torch.float16 else {}))

    check()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_arguments(name):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(1, 3), case.pick([torch.float32, torch.float64])) * case.pick([1e4, 1e6, 1e12, 1e30])
        case.check(getattr(aten, name).default, (tensor,), rtol=1e-4)

    check()


def test_half_to_even():
    """ggml's round goes away from zero."""

    @cases
    def check(case):
        halves = (case.tensor(case.shape(1, 3), torch.float32, special=False) * 20).round() / 2
        case.check(aten.round.default, (halves.to(case.pick(FLOATS)),))

    check()


def test_round_decimals():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick([torch.float32, torch.float64])) * 100
        # The last digit of a tie follows from x * 10^d, which one rounding can move.
        case.check(aten.round.decimals, (tensor,), {"decimals": case.pick([0, 1, 2, 3, -1, -2])}, atol=1e-6)

    check()
