"""Matrix products against eager: every rank combination, layout of sizes around the kernels' tiles, dtype and scale."""

import pytest
import torch
from graft.testing import check_op, tolerance
from op_cases import INTEGERS, Cases, cases

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = [0, 1, 2, 7, 16, 33, 65]


def _tensor(shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape) * 31 + len(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    low = 0 if dtype == torch.uint8 else -100
    return torch.randint(low, 100, shape, generator=g).to(dtype)


def _check(target, args, kwargs=None, k=1):
    """Sums of k terms round by about sqrt(k) units; eager rounds in another order, and in half precision at other places."""
    dtype = args[0].dtype
    atol, rtol = tolerance(dtype)
    check_op(target, args, kwargs, atol=atol * max(k, 1) ** 0.5 * 2, rtol=rtol)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_mm_sizes(m, n):
    for k in SIZES:
        _check(aten.mm.default, (_tensor((m, k)), _tensor((k, n), seed=1)), k=k)


@pytest.mark.parametrize("rows", [(), (1,), (5,), (9,), (2, 3), (2, 3, 4), (0, 3), (130,)])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(rows, dtype, bias):
    for n, k in [(5, 7), (64, 33), (12, 130), (1, 8)]:
        args = (_tensor((*rows, k), dtype), _tensor((n, k), dtype, 1))
        _check(aten.linear.default, (*args, _tensor((n,), dtype, 2)) if bias else args, k=k)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [(9,), (1, 9), (6, 1), (6, 9), (1,), (), (1, 1)])
def test_addmm(dtype, bias):
    args = (_tensor(bias, dtype), _tensor((6, 20), dtype, 1), _tensor((20, 9), dtype, 2))
    _check(aten.addmm.default, args, k=20)
    _check(aten.addmm.default, args, {"alpha": 0.5, "beta": -2}, k=20)


def test_addmm_with_beta_0_ignores_nan():
    args = (torch.full((9,), float("nan")), _tensor((6, 20)), _tensor((20, 9), seed=2))
    _check(aten.addmm.default, args, {"beta": 0}, k=20)


@pytest.mark.parametrize("dtype", FLOATS)
def test_bmm_and_baddbmm(dtype):
    for batch, m, k, n in [(3, 5, 7, 9), (1, 40, 16, 33), (4, 1, 64, 20), (0, 2, 3, 4), (2, 3, 0, 4), (5, 30, 8, 1)]:
        a, b = _tensor((batch, m, k), dtype), _tensor((batch, k, n), dtype, 1)
        _check(aten.bmm.default, (a, b), k=k)
        for shape in [(batch, m, n), (1, m, n), (m, 1), (n,)]:
            _check(aten.baddbmm.default, (_tensor(shape, dtype, 2), a, b), {"alpha": 2, "beta": 0.25}, k=k)


MATMUL = [
    ((7,), (7,)),
    ((7,), (7, 5)),
    ((4, 7), (7,)),
    ((4, 7), (7, 5)),
    ((3, 4, 7), (7,)),
    ((3, 4, 7), (7, 5)),
    ((7,), (3, 7, 5)),
    ((4, 7), (3, 7, 5)),
    ((3, 4, 7), (3, 7, 5)),
    ((1, 4, 7), (3, 7, 5)),
    ((2, 1, 4, 7), (3, 7, 5)),
    ((2, 1, 4, 7), (1, 3, 7, 5)),
    ((2, 3, 4, 7), (2, 3, 7, 5)),
    ((2, 1, 2, 1, 4, 7), (2, 1, 3, 7, 5)),
    ((2, 3, 4, 7), (7,)),
    ((7,), (2, 3, 7, 5)),
    ((0, 4, 7), (7, 5)),
    ((3, 0, 7), (7, 5)),
    ((3, 4, 0), (0, 5)),
    ((3, 4, 0), (3, 0, 5)),
    ((0,), (0,)),
    ((6, 40, 16), (6, 16, 40)),
]


@pytest.mark.parametrize(("a", "b"), MATMUL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_matmul(a, b, dtype):
    _check(aten.matmul.default, (_tensor(a, dtype), _tensor(b, dtype, 1)), k=a[-1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_mv(dtype):
    for m, k in [(5, 7), (1, 1), (100, 65), (0, 3), (3, 0)]:
        _check(aten.mv.default, (_tensor((m, k), dtype), _tensor((k,), dtype, 1)), k=k)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integers_are_exact(dtype):
    a, b = _tensor((6, 70), dtype), _tensor((70, 9), dtype, 1)
    check_op(aten.mm.default, (a, b))
    check_op(aten.addmm.default, (_tensor((9,), dtype, 2), a, b), {"alpha": 3, "beta": 2})
    if dtype == torch.int64:
        big = torch.tensor([[2**53 + 1, 2**62]])
        check_op(aten.mm.default, (big, torch.tensor([[1], [4]])))


def _number(case: Cases, dtype: torch.dtype):
    return case.pick([0.5, -2, 0, 1] if dtype.is_floating_point else [3, -2, 0, 1])


@cases
def test_any_product(case):
    dtype = case.pick(FLOATS if case.chance(0.7) else INTEGERS)
    m, k, n = (case.pick([0, 1, 2, 5, 31, 32, 33]) for _ in range(3))
    batch = case.pick([0, 1, 2, 3])
    atol, rtol = tolerance(dtype)
    limits = {"atol": 3 * atol * max(k, 1) ** 0.5, "rtol": 2 * rtol}

    def draw(*shape: int) -> torch.Tensor:
        return case.tensor(shape, dtype, False)

    a, b, a3, b3 = draw(m, k), draw(k, n), draw(batch, m, k), draw(batch, k, n)
    case.check(aten.mm.default, (a, b), **limits)
    case.check(aten.mv.default, (a, draw(k)), **limits)
    case.check(aten.bmm.default, (a3, b3), **limits)
    bias = {"beta": _number(case, dtype), "alpha": _number(case, dtype)}
    case.check(aten.addmm.default, (draw(*case.pick([(n,), (1, n), (m, 1), (m, n), ()])), a, b), bias, **limits)
    added = draw(*case.pick([(n,), (1, n), (m, 1), (batch, m, n), (1, m, n)]))
    if bias["alpha"] == 0 and dtype in (torch.bfloat16, torch.float16):
        bias["alpha"] = 0.5  # eager forgets beta there: PyTorch 2.13 gives the bias itself
    case.check_or_fail(aten.baddbmm.default, (added, a3, b3), bias, **limits)
    case.check_or_fail(aten.linear.default, (a3, draw(n, k), draw(n) if case.chance(0.5) else None), **limits)
    left = draw(*case.pick([(k,), (m, k), (batch, m, k), (2, 1, m, k)]))
    right = draw(*case.pick([(k,), (k, n), (batch, k, n), (1, k, n)]))
    case.check_or_fail(aten.matmul.default, (left, right), **limits)


def test_infinity_and_nan():
    a, b = _tensor((20, 16)), _tensor((16, 40), seed=1)
    a[3, 5], b[2, 7] = float("inf"), float("nan")
    _check(aten.mm.default, (a, b), k=16)


def test_one_thread_and_many():
    a, b = _tensor((50, 70)), _tensor((70, 90), seed=1)
    for threads in (1, 2, 3):
        check_op(aten.mm.default, (a, b), atol=1e-5, threads=threads)
