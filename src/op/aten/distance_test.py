"""Distances between rows, against eager."""

import torch
from op_cases import cases

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float32, torch.float64]
POWERS = [0.0, 0.5, 1.0, 2.0, 2.0, 3.0, float("inf")]


def _direct(x1, x2, p, mode):
    return aten._cdist_forward.default(x1, x2, p, 2)


def test_cdist():
    @cases
    def check(case):
        p, dtype = case.pick(POWERS), case.pick(DTYPES)
        batch = case.shape(0, 6, 8)
        size = case.pick([0, 1, 5, 31, 32, 33, 257])
        rows = [case.pick([0, 1, 2, 7, 31, 33]) for _ in range(2)]
        lead = [batch, [1 if case.chance(0.3) else n for n in batch][case.pick([0, len(batch) // 2]) :]]
        special = case.chance(0.3) and p in (1.0, 2.0)
        x1, x2 = [case.tensor([*lead[k], rows[k], size], dtype, special) for k in (0, 1)]
        rtol = 1e-12 if dtype == torch.float64 else 2e-5
        # By matrix products, as eager does by itself for many rows, small distances are inexact.
        case.check(aten._cdist_forward.default, (x1, x2, p, case.pick([None, 1, 2])), reference=_direct, rtol=rtol)

    check()


def test_pdist():
    @cases
    def check(case):
        p, dtype = case.pick(POWERS), case.pick(DTYPES)
        x = case.tensor([case.pick([0, 1, 2, 3, 31, 33]), case.pick([0, 1, 5, 32, 257])], dtype, False)
        rtol = 1e-12 if dtype == torch.float64 else 2e-5
        case.check(aten._pdist_forward.default, (x, p), rtol=rtol)

    check()
