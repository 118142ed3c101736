"""Softmax and log-softmax against eager, over every dimension."""

import pytest
import torch
from graft.testing import check_op

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHAPES = [(), (1,), (5,), (3, 17), (2, 3, 64), (2, 3, 4, 5), (4, 1000), (0, 4), (3, 0), (2, 1, 2, 1, 2, 3, 1, 2)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", [aten.softmax.int, aten.log_softmax.int, aten._softmax.default, aten._log_softmax.default])
def test_every_dimension(target, shape, dtype):
    x = torch.randn(shape, dtype=torch.float64).mul(5).to(dtype)
    extra = (False,) if target in (aten._softmax.default, aten._log_softmax.default) else ()
    for dim in range(-max(len(shape), 1), max(len(shape), 1)):
        check_op(target, (x, dim, *extra), atol=3e-6 if dtype == torch.float32 else None)


@pytest.mark.parametrize("target", [aten.softmax.int, aten.log_softmax.int])
@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_with_dtype(target, dtype, to):
    x = torch.randn(3, 19).mul(4).to(dtype)
    check_op(target, (x, 1, to), atol=3e-6 if to == torch.float32 else None)


@pytest.mark.parametrize("target", [aten.softmax.int, aten.log_softmax.int])
def test_rows_without_finite_values(target):
    inf, nan = float("inf"), float("nan")
    rows = [[-inf, -inf, -inf], [-inf, 0, 1], [inf, 0, 1], [nan, 0, 1], [1e30, -1e30, 0], [200, -200, 0]]
    check_op(target, (torch.tensor(rows), 1))
    check_op(target, (torch.tensor(rows).T.contiguous(), 0))
