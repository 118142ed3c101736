"""Reductions and scans against eager."""

import pytest
import torch
from graft.testing import check_op
from op_cases import ALL, FLOATS, INTEGERS, Cases, cases

aten = torch.ops.aten


def _float(case: Cases, low: int = 0, special: bool = True, empty: bool = True) -> torch.Tensor:
    return case.tensor(case.shape(low, empty=empty), case.pick(FLOATS), special)


def _any(case: Cases, low: int = 0, empty: bool = True) -> torch.Tensor:
    return case.tensor(case.shape(low, empty=empty), case.pick(ALL))


def _limits(x: torch.Tensor) -> dict[str, float]:
    """Eager itself is off by some roundings per addition, more where terms cancel."""
    scale = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(x.dtype, 0.0)
    finite = x.double().nan_to_num(0, 0, 0).abs().sum().item() if x.dtype.is_floating_point else 0.0
    return {"atol": scale * max(finite, 1.0), "rtol": 4 * scale}


def _summed(case: Cases, target, args, kwargs, x: torch.Tensor) -> None:
    result = kwargs.get("dtype") or x.dtype
    if result.is_floating_point:
        case.check(target, args, kwargs, **_limits(x.to(result)))
    else:
        case.check(target, args, kwargs)


def _dtype(case: Cases, x: torch.Tensor) -> dict:
    if case.chance(0.6):
        return {}
    options = (*FLOATS, torch.int64, torch.int32) if x.dtype.is_floating_point is False else FLOATS
    return {"dtype": case.pick(options)}


@cases
def test_sum(case):
    x = _any(case)
    kwargs = _dtype(case, x)
    _summed(case, aten.sum.default, (x,), kwargs, x)
    _summed(case, aten.sum.dim_IntList, (x, case.pick([None, case.dims(x.dim())]), case.chance(0.5)), kwargs, x)


@cases
def test_mean(case):
    x = _float(case)
    _summed(case, aten.mean.default, (x,), {}, x)
    _summed(case, aten.mean.dim, (x, case.pick([None, case.dims(x.dim())]), case.chance(0.5)), {}, x)


@cases
def test_prod(case):
    # Near 1, so that the result neither overflows nor vanishes on the way: the order of the products is not fixed.
    dtype = case.pick(ALL)
    shape = case.shape(most=200)
    x = 1 + 0.01 * case.tensor(shape, dtype, False) if dtype.is_floating_point else case.tensor(shape, dtype)
    limits = {"rtol": {torch.float16: 0.1, torch.bfloat16: 0.5, torch.float32: 1e-4}.get(dtype, 1e-10)}
    limits = limits if dtype.is_floating_point else {}
    case.check(aten.prod.default, (x,), **limits)
    case.check(aten.prod.dim_int, (x, case.dim(x.dim()), case.chance(0.5)), **limits)


@pytest.mark.parametrize("target", [aten.amax.default, aten.amin.default])
@cases
def test_extremes(target, case):
    x = _any(case)
    case.check_or_fail(target, (x, case.dims(x.dim()), case.chance(0.5)))


@pytest.mark.parametrize("target", [aten.max.default, aten.min.default])
@cases
def test_extreme_of_all(target, case):
    case.check(target, (_any(case, empty=False),))


@pytest.mark.parametrize("target", [aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default])
@cases
def test_places_of_extremes(target, case):
    # Few distinct values: the first of equal ones counts.
    x = _any(case)
    if case.chance(0.5) and x.dtype.is_floating_point:
        x = x.round()
    if target in (aten.argmax.default, aten.argmin.default) and x.dtype == torch.bool:
        x = x.to(torch.uint8)
    case.check_or_fail(target, (x, case.dim(x.dim()), case.chance(0.5)))
    if target in (aten.argmax.default, aten.argmin.default):
        case.check_or_fail(target, (x, None, case.chance(0.5)))


@cases
def test_aminmax(case):
    x = _any(case)
    case.check_or_fail(aten.aminmax.default, (x,), {"dim": case.pick([None, case.dim(x.dim())]), "keepdim": True})


@pytest.mark.parametrize("name", ["any", "all"])
@cases
def test_any_all(name, case):
    x = _any(case)
    packet = getattr(aten, name)
    case.check(packet.default, (x,))
    case.check(packet.dim, (x, case.dim(x.dim()), case.chance(0.5)))
    case.check(packet.dims, (x, case.pick([None, case.dims(x.dim())]), case.chance(0.5)))


@cases
def test_count_nonzero(case):
    x = _any(case)
    case.check(aten.count_nonzero.default, (x, None))
    case.check(aten.count_nonzero.dim_IntList, (x, case.dims(x.dim(), 1)))


@pytest.mark.parametrize("target", [aten.var.correction, aten.std.correction, aten.var_mean.correction])
@cases
def test_variance(target, case):
    x = _float(case, special=case.chance(0.3))
    if target == aten.var_mean.correction:
        x = x.nan_to_num(float("nan"), 1, -1)  # eager's mean of an infinity is NaN here, though not in aten.mean
    kwargs = {"correction": case.pick([None, 0, 1, 2]), "keepdim": case.chance(0.5)}
    finite = x.double().nan_to_num(0, 0, 0)
    scale = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 4e-2}[x.dtype]
    spread = float(finite.square().max()) if x.numel() else 1.0
    limits = {"atol": scale * max(spread, 1.0), "rtol": 4 * scale}
    case.check(target, (x, case.pick([None, case.dims(x.dim())])), kwargs, **limits)


@pytest.mark.parametrize("name", ["var", "std"])
@cases
def test_unbiased_variance(name, case):
    x = case.tensor(case.shape(), torch.float64, False)
    case.check(getattr(aten, name).default, (x, case.chance(0.5)))
    case.check(getattr(aten, name).dim, (x, case.dims(x.dim()), case.chance(0.5), case.chance(0.5)))


@cases
def test_logsumexp(case):
    x = _float(case, low=1)
    case.check(aten.logsumexp.default, (x, case.dims(x.dim(), 1), case.chance(0.5)), **_wide(x))


def _wide(x: torch.Tensor) -> dict[str, float]:
    rtol = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 4e-2}[x.dtype]
    return {"atol": rtol, "rtol": rtol}


@cases
def test_vector_norm(case):
    x = _float(case)
    order = case.pick([0, 1, 2, 2, 3, 0.5, float("inf"), float("-inf"), -1])
    if order in (3, 0.5, -1) and x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    dims = case.pick([None, case.dims(x.dim())])
    if order == 0.5:
        x = x.nan_to_num(0, 0, 0)
    case.check_or_fail(aten.linalg_vector_norm.default, (x, order, dims, case.chance(0.5)))


@cases
def test_norm(case):
    x = case.tensor(case.shape(), torch.float32, False)
    case.check(aten.norm.Scalar, (x, case.pick([1, 2])))
    case.check(aten.norm.ScalarOpt_dim, (x, case.pick([None, 1, 2]), case.dims(x.dim()), case.chance(0.5)))


@cases
def test_norm_in_another_dtype(case):
    x = case.tensor(case.shape(), case.pick([torch.float32, torch.float16, torch.bfloat16]), False)
    kwargs = {"dtype": case.pick([torch.float32, torch.float64])}
    order = case.pick([None, 0, 1, 2, float("inf")])
    case.check_or_fail(aten.norm.ScalarOpt_dtype, (x, order), kwargs)
    case.check_or_fail(aten.norm.ScalarOpt_dim_dtype, (x, order, case.dims(x.dim()), case.chance(0.5)), kwargs)


@cases
def test_cumsum(case):
    x = _any(case)
    _summed(case, aten.cumsum.default, (x, case.dim(x.dim())), _dtype(case, x), x)


@cases
def test_cumprod(case):
    dtype = case.pick([torch.float32, torch.float64, *INTEGERS])
    shape = case.shape(most=200)
    x = 1 + 0.01 * case.tensor(shape, dtype, False) if dtype.is_floating_point else case.tensor(shape, dtype)
    case.check(aten.cumprod.default, (x, case.dim(x.dim())), **({"rtol": 1e-4} if dtype.is_floating_point else {}))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape, dims", [([100003], [0]), ([300, 301], [1]), ([300, 301], [0]), ([3, 40000], [1]),
                                         ([40000, 3], [0]), ([2, 100, 2, 200], [1, 3])])  # fmt: skip
def test_large(shape, dims, threads):
    torch.manual_seed(1)
    x = torch.randn(shape)
    expected = x.double().sum(dims)
    from graft.testing import run_op

    (actual,) = run_op(aten.sum.dim_IntList, (x, dims), threads=threads)
    # The bound that the kernel promises: a relative error of 1e-6 of the sum of magnitudes.
    assert ((actual.double() - expected).abs() <= 1e-6 * x.double().abs().sum(dims)).all()
    again = run_op(aten.sum.dim_IntList, (x, dims), threads=threads)[0]
    assert torch.equal(actual, again)
    y = torch.randint(-(2**40), 2**40, shape)
    for target in (aten.sum.dim_IntList, aten.amax.default, aten.any.dims):
        check_op(target, (y, dims), threads=threads)
    if len(dims) == 1:
        check_op(aten.max.dim, (y % 7, dims[0]), threads=threads)
    check_op(aten.argmax.default, (y % 7, None), threads=threads)
    check_op(aten.var.correction, (x + 1000, dims), {"correction": 1}, rtol=1e-3, threads=threads)
    check_op(aten.logsumexp.default, (x, dims), threads=threads)
