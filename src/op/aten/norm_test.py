"""Normalizations against eager."""

import pytest
import torch
from graft.testing import check_op, run_op, tolerance
from op_cases import Cases, cases

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHAPES = [((5,), 1), ((3, 17), 1), ((2, 3, 64), 1), ((2, 3, 64), 2), ((4, 384), 1), ((2, 5, 3), 3), ((0, 7), 1), ((2, 1), 1)]


def _tensor(shape, dtype, scale=1.0, offset=0.0):
    return (torch.randn(shape, dtype=torch.float64) * scale + offset).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "dims"), SHAPES)
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_layer_norm(shape, dims, dtype, affine):
    size = shape[len(shape) - dims :]
    for offset in (0.0, 3.0):
        args = [_tensor(shape, dtype, offset=offset), list(size), None, None]
        for i in range(affine):
            args[2 + i] = _tensor(size, dtype)
        atol = 5e-6 if dtype == torch.float32 else None
        check_op(aten.layer_norm.default, (*args, 1e-5), atol=atol)
        check_op(aten.native_layer_norm.default, (*args, 1e-5), atol=atol)


def test_layer_norm_of_a_large_mean():
    x = torch.randn(3, 512, dtype=torch.float32) + 1000
    exact = torch.nn.functional.layer_norm(x.double(), [512])
    (actual,) = run_op(aten.layer_norm.default, (x, [512]))
    # One rounding of the mean is 3e-5 of a deviation.
    assert (actual.double() - exact).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "dims"), [s for s in SHAPES if 0 not in s[0]])
@pytest.mark.parametrize("eps", [None, 1e-6])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(shape, dims, dtype, eps, weighted):
    size = shape[len(shape) - dims :]
    check_op(
        aten.rms_norm.default,
        (_tensor(shape, dtype), list(size), _tensor(size, dtype) if weighted else None, eps),
        atol=5e-6 if dtype == torch.float32 else None,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (3, 6, 4, 7), (1, 12, 33)])
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_group_norm(shape, dtype, affine):
    for groups in (1, 2, 3, 6):
        x = _tensor(shape, dtype, offset=0.5)
        weight = _tensor(shape[1:2], dtype) if affine > 0 else None
        bias = _tensor(shape[1:2], dtype) if affine > 1 else None
        # Single elements of a group leave rounding only; the statistics of eager's half precision are half precision.
        atol = max(2e-5, tolerance(dtype)[0] * 4) if dtype != torch.float64 else None
        check_op(aten.group_norm.default, (x, groups, weight, bias, 1e-3), atol=atol)
        pixels = x[0, 0].numel() if len(shape) > 2 else 1
        check_op(
            aten.native_group_norm.default,
            (x, weight, bias, shape[0], shape[1], pixels, groups, 1e-3),
            atol=atol,
        )


def _without_infinities(x: torch.Tensor) -> torch.Tensor:
    """Eager's mean of an infinity is NaN in these operators."""
    return x.nan_to_num(float("nan"), 1, -1)


def _row_norm(case: Cases) -> tuple[torch.Tensor, list[int], torch.Tensor | None, torch.Tensor | None, dict]:
    """Input, normalized sizes, weight or None, bias or None, limits."""
    x = _without_infinities(case.tensor(case.shape(1, empty=False), case.pick(FLOATS)))
    size = list(x.shape[case.random.randrange(x.dim()) :])
    weight = case.tensor(size, x.dtype) if case.chance(0.6) else None
    bias = case.tensor(size, x.dtype, False) if weight is not None and case.chance(0.6) else None
    return x, size, weight, bias, {"atol": 1e-5} if x.dtype == torch.float32 else {}


@cases
def test_any_layer_norm(case):
    x, size, weight, bias, limits = _row_norm(case)
    # The larger eps, the less a variance of nearly 0 magnifies roundings.
    args = (x, size, weight, bias, case.pick([1e-3, 1e-2]))
    case.check(aten.layer_norm.default, args, **limits)
    case.check(aten.native_layer_norm.default, args, **limits)


@cases
def test_any_rms_norm(case):
    x, size, weight, _, limits = _row_norm(case)
    args = (x, size, weight, case.pick([None, 1e-6, 1e-3]))
    case.check(aten.rms_norm.default, args, **limits)
    case.check(aten._fused_rms_norm.default, args, **limits)


@cases
def test_any_group_norm(case):
    shape = [case.pick([1, 2, 3]), case.pick([2, 6, 12]), *case.shape(0, 6, 300, empty=False)]
    x = _without_infinities(case.tensor(shape, case.pick(FLOATS)))
    groups = case.pick([g for g in (1, 2, 3, 6) if x.shape[1] % g == 0])
    weight = case.tensor(x.shape[1:2], x.dtype, False) if case.chance(0.6) else None
    bias = case.tensor(x.shape[1:2], x.dtype, False) if weight is not None and case.chance(0.6) else None
    atol = max(2e-5, tolerance(x.dtype)[0] * 4) if x.dtype != torch.float64 else None
    case.check(aten.group_norm.default, (x, groups, weight, bias, 1e-3), atol=atol)
    sizes = (x.shape[0], x.shape[1], x[0, 0].numel(), groups)
    case.check(aten.native_group_norm.default, (x, weight, bias, *sizes, 1e-3), atol=atol)


def _channels(case, rank_low=2):
    """Input [N, C, ...] with variance in each channel, weight, bias, mean, variance; some half inputs with f32 statistics."""
    dtype = case.pick(FLOATS)
    shape = [case.pick([1, 2, 5]), case.pick([1, 3, 17]), *[case.pick([1, 2, 7, 33]) for _ in range(case.random.randint(rank_low - 2, 3))]]
    x = case.tensor(shape, dtype, special=False) * 2 + 0.5
    other = case.pick([dtype, torch.float32]) if dtype in (torch.float16, torch.bfloat16) else dtype
    parts = [case.tensor(shape[1:2], other, special=False) for _ in range(4)]
    parts[3] = parts[3].abs() + 0.25
    weight, bias = (p if case.chance(0.6) else None for p in parts[:2])
    return x, weight, bias, parts[2], parts[3]


def _norm_limits(x):
    return {"atol": max(2e-5, tolerance(x.dtype)[0] * 4)} if x.dtype != torch.float64 else {}


@pytest.mark.parametrize("form", ["no_training", "native", "batch_norm"])
def test_batch_norm_with_given_statistics(form):
    @cases
    def check(case):
        x, *rest = _channels(case)
        if case.chance(0.1):
            x = x[:0]
        eps = case.pick([1e-5, 1e-3, 0.1])
        target, args = {
            "no_training": (aten._native_batch_norm_legit_no_training.default, (x, *rest, 0.1, eps)),
            "native": (aten.native_batch_norm.default, (x, *rest, False, 0.1, eps)),
            "batch_norm": (aten.batch_norm.default, (x, *rest, False, 0.1, eps, True)),
        }[form]
        case.check_or_fail(target, args, **_norm_limits(x))

    check()


def test_batch_norm_with_the_statistics_of_the_input():
    @cases
    def check(case):
        x, weight, bias, *_ = _channels(case)
        # A single element per channel leaves only rounding, times 1 / sqrt(eps).
        eps = case.pick([1e-5, 1e-3]) if x[:, 0].numel() > 4 else 0.1
        limits = _norm_limits(x)
        if x.dtype in (torch.float16, torch.bfloat16):
            limits["atol"] *= 4  # the statistics of eager's half precision are half precision
        case.check_or_fail(aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, 0.1, eps), **limits)

    check()


def test_instance_norm():
    @cases
    def check(case):
        x, weight, bias, mean, variance = _channels(case, 3)
        eps = case.pick([1e-5, 1e-3]) if x[0, 0].numel() > 4 else 0.1
        of_input = case.chance(0.6)
        given = (None, None) if of_input else (mean, variance)
        limits = _norm_limits(x)
        if x.dtype in (torch.float16, torch.bfloat16):
            limits["atol"] *= 4
        case.check_or_fail(aten.instance_norm.default, (x, weight, bias, *given, of_input, 0.1, eps, True), **limits)

    check()
