"""graft.gated_delta_rule and graft.selective_scan against their definitions in graft.llm.recurrence."""

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


@pytest.mark.parametrize("kind", ["delta", "scan"])
def test_threads_do_not_show_in_the_bits(kind):
    from op_cases import Cases

    case = Cases(3)
    if kind == "delta":
        op, args = recurrence.gated_delta_rule, _delta(case, 1, 40, 1, 3, 64, 200, False)
    else:
        op, args = recurrence.selective_scan, _scan(case, 1, 40, 1, 7, 64, 32, True)
    for a, b in zip(run_op(op, args, threads=1), run_op(op, args, threads=5)):
        assert torch.equal(a, b)
    check_op(op, args, atol=ATOL)


def test_steps_go_on_where_the_last_ones_ended():
    from op_cases import Cases

    args = _delta(Cases(4), 2, 9, 2, 4, 16, 24, True)
    whole, end = run_op(recurrence.gated_delta_rule, args)
    *given, state = args
    parts = []
    for part in (slice(0, 4), slice(4, 9)):
        made, state = run_op(recurrence.gated_delta_rule, [*(x[:, part] for x in given), state])
        parts.append(made)
    assert torch.equal(torch.cat(parts, 1), whole) and torch.equal(state, end)
