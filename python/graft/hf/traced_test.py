"""Parts of models that a trace computes in another way than their code."""

from types import SimpleNamespace

import pytest
import sympy
import torch
from torch.utils._sympy.functions import ToFloat, TruncToInt
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
from transformers.utils import is_torchdynamo_compiling

from graft.hf import traced
from graft.hf.structure import flatten
from graft.llm import lower


def experts(zero):
    config = SimpleNamespace(
        expert_ffn_hidden_size=12, hidden_size=8, n_routed_experts=4, zero_expert_num=zero, hidden_act="silu"
    )
    torch.manual_seed(3)
    made = LongcatFlashExperts(config).requires_grad_(False)
    for parameter in made.parameters():
        parameter.copy_(torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("zero", [0, 2])
def test_experts_of_longcat(zero):
    module = experts(zero)
    rows, weights = torch.randn(9, 8), torch.rand(9, 2)
    chosen = torch.stack([torch.randperm(4 + zero)[:2] for _ in range(9)])
    assert zero == 0 or bool((chosen >= 4).any())  # those that give their token back
    expected, found = module(rows, chosen, weights), traced._routed(module, rows, chosen, weights)
    assert expected.dtype == found.dtype and torch.allclose(expected, found, rtol=1e-5, atol=1e-5)


def test_experts_are_replaced_in_a_trace_alone():
    config = SimpleNamespace(_experts_implementation_internal="eager")
    module = experts(1)
    module.config = config
    with traced._experts(torch.nn.Sequential(module)):
        assert config._experts_implementation_internal == traced.interface.NAME
        assert module.forward.func is traced._routed


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_buckets(right, dtype):
    boundaries = torch.tensor([-2, 0, 0, 3, 7]).to(dtype)
    x = torch.tensor([[-3, -2, -1, 0], [1, 3, 7, 8]]).to(dtype)
    if dtype.is_floating_point:
        x[0, 1] = float("nan")
    for out_int32 in (False, True):
        options = dict(right=right, out_int32=out_int32)
        expected, found = torch.bucketize(x, boundaries, **options), lower._bucketize(x, boundaries, **options)
        assert expected.dtype == found.dtype and torch.equal(expected, found)


class _Masked(torch.nn.Module):
    def forward(self, x, mask=None):
        if mask is None and not is_torchdynamo_compiling():
            mask = torch.ones(x.shape[0], 1)
        return x * mask


def test_code_that_goes_another_way_where_it_is_traced():
    flat = flatten({"x": torch.randn(3, 4)})
    made = traced.trace(_Masked(), {}, flat, [(3, 4)], [[]], None)
    assert [tuple(sizes) for sizes in made.sizes] == [(3, 4)]
    assert is_torchdynamo_compiling.__name__ == "is_torchdynamo_compiling"


class _Rounded(torch.nn.Module):
    def forward(self, x):
        rows = int(2 + x.shape[0])
        assert isinstance(rows, (int, torch.SymInt))
        return x * torch.ones(rows - 2, 1) + torch.tensor(rows)


def test_a_size_that_the_code_rounds_stays_open():
    flat = flatten({"x": torch.randn(3, 4)})
    made = traced.trace(_Rounded(), {}, flat, [(3, 4)], [[0]], None)
    [(rows, columns)] = made.sizes
    assert isinstance(rows, str) and columns == 4
    assert made.admits({rows: 3}) and made.admits({rows: 5}), made.bounds
    assert "int" not in globals()


class _OfThree(_Rounded):
    def forward(self, x):
        return super().forward(x) + (1 if x.shape[0] == 3 else 0)


def test_a_size_that_the_code_asks_for_is_a_bound():
    flat = flatten({"x": torch.randn(3, 4)})
    made = traced.trace(_OfThree(), {}, flat, [(3, 4)], [[0]], None)
    [(rows, _)] = made.sizes
    assert rows == 3 or (made.admits({rows: 3}) and not made.admits({rows: 5}))


def test_bounds_with_fractions():
    """torch.sym_float is how PyTorch prints a size that becomes a float."""
    size = sympy.Symbol("s0", integer=True)
    text = traced._printed(sympy.Le(TruncToInt(0.25 * ToFloat(size)), 3, evaluate=False))
    assert "torch." in text
    holds = traced._function(text)
    assert holds({"s0": 15}) and not holds({"s0": 16})
