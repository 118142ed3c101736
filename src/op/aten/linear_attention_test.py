"""graft.gated_delta_rule, selective_scan, diagonal_scan and wkv against their definitions in graft.llm.recurrence."""

import pytest
import torch
from graft.llm import recurrence
from graft.testing import check_op, run_op
from op_cases import cases

ATOL = 2e-5


def _unit(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def _delta(case, batch, steps, groups, heads, keys, columns, per_key):
    query, key = (_unit(case.tensor((batch, steps, groups, keys), special=False)) for _ in range(2))
    value = case.tensor((batch, steps, heads, columns), special=False)
    decay = torch.sigmoid(case.tensor((batch, steps, heads, *([keys] if per_key else [])), special=False))
    beta = torch.sigmoid(case.tensor((batch, steps, heads), special=False))
    return query, key, value, decay, beta, case.tensor((batch, heads, keys, columns), special=False)


def _scan(case, batch, steps, groups, heads, rows, size, one):
    x = case.tensor((batch, steps, heads, rows), special=False)
    dt = torch.nn.functional.softplus(case.tensor((batch, steps, heads), special=False))
    a = -torch.exp(case.tensor((heads, 1 if one else size), special=False))
    b, c = (case.tensor((batch, steps, groups, size), special=False) for _ in range(2))
    return x, dt, a, b, c, case.tensor((batch, heads, rows, size), special=False)


def _diagonal(case, batch, steps, channels):
    x = case.tensor((batch, steps, channels), special=False)
    return x, torch.sigmoid(case.tensor(x.shape, special=False)), case.tensor((batch, channels), special=False)


def _wkv(case, batch, steps, channels):
    log_decay = -torch.exp(case.tensor((channels,), special=False))
    key, value = (case.tensor((batch, steps, channels), special=False) for _ in range(2))
    numerator, maximum = (case.tensor((batch, channels), special=False) for _ in range(2))
    denominator = 1 + torch.sigmoid(case.tensor((batch, channels), special=False))
    return log_decay, case.tensor((channels,), special=False), key, value, torch.stack([numerator, denominator, maximum], 1)


def test_the_delta_rule():
    @cases
    def check(case):
        batch, steps, groups = case.pick([0, 1, 2, 3]), case.pick([0, 1, 2, 5, 33]), case.pick([1, 2, 3])
        keys, columns = case.pick([0, 1, 7, 16, 33]), case.pick([0, 1, 5, 15, 16, 17, 63, 64, 65, 130])
        heads = groups * case.pick([1, 2, 3])
        args = _delta(case, batch, steps, groups, heads, keys, columns, case.chance(0.5))
        case.check(recurrence.gated_delta_rule, args, atol=ATOL)

    check()


def test_the_selective_scan():
    @cases
    def check(case):
        batch, steps, groups = case.pick([0, 1, 2, 3]), case.pick([0, 1, 2, 5, 33]), case.pick([1, 2, 3])
        rows, size = case.pick([0, 1, 1, 5, 12]), case.pick([0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 130])
        heads = groups * case.pick([1, 2, 17])
        args = _scan(case, batch, steps, groups, heads, rows, size, case.chance(0.5))
        case.check(recurrence.selective_scan, args, atol=ATOL)

    check()


@pytest.mark.parametrize(("op", "arguments"), [(recurrence.diagonal_scan, _diagonal), (recurrence.wkv, _wkv)])
def test_recurrences_of_channels(op, arguments):
    @cases
    def check(case):
        batch, steps = case.pick([0, 1, 2, 3]), case.pick([0, 1, 2, 5, 33])
        case.check(op, arguments(case, batch, steps, case.pick([0, 1, 7, 16, 63, 64, 65, 128, 130, 300])), atol=ATOL)

    check()


@pytest.mark.parametrize("kind", ["delta", "scan", "diagonal", "wkv"])
def test_threads_do_not_show_in_the_bits(kind):
    from op_cases import Cases

    case = Cases(3)
    if kind == "delta":
        op, args = recurrence.gated_delta_rule, _delta(case, 1, 40, 1, 3, 64, 200, False)
    elif kind == "diagonal":
        op, args = recurrence.diagonal_scan, _diagonal(case, 2, 40, 700)
    elif kind == "wkv":
        op, args = recurrence.wkv, _wkv(case, 2, 40, 700)
    else:
        op, args = recurrence.selective_scan, _scan(case, 1, 40, 1, 7, 64, 32, True)
    for a, b in zip(run_op(op, args, threads=1), run_op(op, args, threads=5)):
        assert torch.equal(a, b)
    check_op(op, args, atol=ATOL)


@pytest.mark.parametrize("kind", ["delta", "diagonal", "wkv"])
def test_steps_go_on_where_the_last_ones_ended(kind):
    from op_cases import Cases

    op, args = {
        "delta": (recurrence.gated_delta_rule, _delta(Cases(4), 2, 9, 2, 4, 16, 24, True)),
        "diagonal": (recurrence.diagonal_scan, _diagonal(Cases(4), 2, 9, 40)),
        "wkv": (recurrence.wkv, _wkv(Cases(4), 2, 9, 40)),
    }[kind]
    whole, end = run_op(op, args)
    *given, state = args
    parts = []
    for part in (slice(0, 4), slice(4, 9)):
        made, state = run_op(op, [*(x[:, part] if x.dim() > 1 else x for x in given), state])
        parts.append(made)
    assert torch.equal(torch.cat(parts, 1), whole) and torch.equal(state, end)
