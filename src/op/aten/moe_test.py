"""graft.expert_linear against its definition in graft.llm.ops."""

import pytest
import torch
from graft import errors
from graft.exporter.serialize import serialize_op
from graft.llm import ops
from graft.testing import check_op, run_blob, run_op
from op_cases import cases


def test_random_calls():
    @cases
    def check(case):
        experts, rows, per_row = case.pick([1, 2, 5, 16]), case.pick([0, 1, 2, 3, 9, 33, 100]), case.pick([1, 2, 3])
        inner, out = case.pick([1, 7, 16, 33, 100]), case.pick([1, 5, 47, 48, 49, 120])
        x = case.tensor([rows, case.pick([1, per_row]), inner], special=False)
        chosen = case.indices([rows, per_row], experts)
        bias = case.tensor([experts, out], special=False) if case.chance(0.5) else None
        weight = case.tensor([experts, out, inner], special=False)
        case.check(ops.expert_linear, (x, chosen, weight, bias), atol=2e-5)

    check()


def test_only_chosen_experts_are_read():
    """What is computed is rows x experts per row, no more: an expert that no row names may hold anything."""
    weight = torch.full((8, 50, 20), torch.nan)
    weight[3], weight[6] = torch.randn(50, 20), torch.randn(50, 20)
    chosen = torch.tensor([[3, 6], [6, 6], [3, 3], [6, 3]])
    check_op(ops.expert_linear, (torch.randn(4, 1, 20), chosen, weight), atol=2e-5)


@pytest.mark.parametrize("wrong", [-1, 4, 2**40])
def test_an_expert_out_of_range_fails_the_run(wrong):
    x, weight = torch.randn(2, 1, 8), torch.randn(4, 5, 8)
    blob = serialize_op(ops.expert_linear, (x, torch.zeros(2, 2, dtype=torch.long), weight))
    with pytest.raises(errors.ExecutionError, match=f"expert {wrong} is out of range for 4 experts"):
        run_blob(blob, [x, torch.tensor([[0, 1], [2, wrong]]), weight])


def test_equal_bits_for_any_order_of_rows():
    torch.manual_seed(0)
    x, weight = torch.randn(40, 1, 64), torch.randn(4, 100, 64)
    chosen = torch.randint(0, 4, (40, 2))
    (a,) = run_op(ops.expert_linear, (x, chosen, weight), threads=2)
    (b,) = run_op(ops.expert_linear, (x, chosen, weight), threads=2)
    assert torch.equal(a, b)
