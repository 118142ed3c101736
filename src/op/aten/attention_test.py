"""Scaled dot-product attention against eager."""

import graft
import pytest
import torch
from graft.testing import check_op, run_op
from op_cases import Cases, cases

sdpa = torch.ops.aten.scaled_dot_product_attention.default
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def _qkv(batch, t, s, d, dv=None, dtype=torch.float32, kv_batch=None):
    kv_batch = batch if kv_batch is None else kv_batch
    return (
        torch.randn(*batch, t, d).to(dtype),
        torch.randn(*kv_batch, s, d).to(dtype),
        torch.randn(*kv_batch, s, d if dv is None else dv).to(dtype),
    )


def _check(args, kwargs=None, target=sdpa):
    check_op(target, args, kwargs, atol=5e-6 if args[0].dtype == torch.float32 else None)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (1, 2, 1, 3)])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 70), (5, 9), (33, 65), (64, 200)])
def test_sizes(batch, t, s, dtype):
    _check(_qkv(batch, t, s, 16, dtype=dtype))
    _check(_qkv(batch, t, s, 24, 40, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("t", "s"), [(1, 7), (7, 7), (3, 50), (50, 3), (40, 70)])
def test_causal_is_aligned_top_left(t, s, dtype):
    _check(_qkv((2, 2), t, s, 16, dtype=dtype), {"is_causal": True})


@pytest.mark.parametrize("shape", [(40, 50), (2, 1, 40, 50), (1, 3, 40, 50), (2, 3, 1, 50), (2, 3, 40, 1), (1, 50)])
@pytest.mark.parametrize("boolean", [False, True])
def test_mask_broadcasts(shape, boolean):
    mask = torch.rand(shape) > 0.3 if boolean else torch.randn(shape)
    args = _qkv((2, 3), 40, 50, 16)
    _check((*args, mask))


@pytest.mark.parametrize("t", [3, 40])
def test_queries_without_a_key_give_zeros(t):
    args = _qkv((1, 2), t, 9, 8)
    mask = torch.rand(t, 9) > 0.5
    mask[1] = False
    _check((*args, mask))
    _check((*args, torch.where(mask, 0.0, float("-inf"))))


@pytest.mark.parametrize("scale", [None, 1.0, 0.01, -0.5])
def test_scale(scale):
    _check(_qkv((1, 2), 20, 30, 64), {"scale": scale})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(kv_heads, dtype):
    for t in (1, 30):
        args = _qkv((2, 4), t, 33, 16, dtype=dtype, kv_batch=(2, kv_heads))
        _check(args, {"enable_gqa": True})
        _check((*args, torch.rand(2, 1, t, 33) > 0.2), {"enable_gqa": True})


def test_batch_broadcasts():
    _check(_qkv((2, 4), 5, 6, 8, kv_batch=(1, 1)))


def test_no_keys():
    _check(_qkv((1, 2), 3, 0, 8))


@pytest.mark.parametrize("causal", [False, True])
def test_flash_variant_with_logsumexp(causal):
    for t in (3, 40):
        args = _qkv((2, 3), t, t, 16)
        _check((*args, 0.0, causal), target=flash)
        if not causal:
            _check((*args, 0.0, causal), {"attn_mask": torch.randn(t, t)}, target=flash)


def _draw(case: Cases, batch: list[int], kv_batch: list[int], dtypes) -> tuple[list[torch.Tensor], list[int]]:
    """Query, key and value, and the sizes of a mask."""
    dtype, t, s, d = case.pick(dtypes), case.pick(SIZES), case.pick(SIZES), case.pick([1, 8, 24, 64])
    qkv = [case.tensor([*batch, t, d], dtype, False), case.tensor([*kv_batch, s, d], dtype, False)]
    return [*qkv, case.tensor([*kv_batch, s, case.pick([d, d, 5])], dtype, False)], [t, s]


def _mask(case: Cases, batch: list[int], sizes: list[int]) -> torch.Tensor:
    shape = [1 if case.chance(0.3) else size for size in [*batch, *sizes]][case.random.randint(0, len(batch)) :]
    return case.tensor(shape, torch.bool) if case.chance(0.5) else case.tensor(shape, torch.float32, False)


SIZES = [1, 2, 7, 31, 32, 33, 65]


@cases
def test_any_attention(case):
    batch = [case.pick([1, 2, 3]) for _ in range(case.random.randint(0, 4))]
    kv_batch = list(batch)
    kwargs = {"scale": case.pick([0.01, 1.0, -0.5])} if case.chance(0.3) else {}
    if len(batch) >= 2 and case.chance(0.3):
        batch[-1], kwargs["enable_gqa"] = 2 * batch[-1], True
    qkv, sizes = _draw(case, batch, kv_batch, FLOATS)
    if case.chance(0.3) and kwargs.get("scale", 1) > 0:  # with a negative one eager gives NaN
        kwargs["is_causal"] = True
    elif case.chance(0.6):
        mask = _mask(case, batch, sizes)
        kwargs["attn_mask"] = mask if mask.dtype == torch.bool else mask.to(qkv[0].dtype)
    case.check_or_fail(sdpa, qkv, kwargs, **({"atol": 5e-6} if qkv[0].dtype == torch.float32 else {}))


@cases
def test_any_flash_variant(case):
    batch = [case.pick([1, 2, 3]), case.pick([1, 2, 4])]
    qkv, sizes = _draw(case, batch, batch, [torch.float32])
    qkv[2] = qkv[2][..., :1].expand(qkv[1].shape).contiguous()  # it takes heads of one size only
    kwargs = {"scale": case.pick([0.01, 1.0])} if case.chance(0.3) else {}
    causal = case.chance(0.3)
    if not causal and case.chance(0.5):
        kwargs["attn_mask"] = case.tensor(sizes, torch.float32, False)
    case.check_or_fail(flash, (*qkv, 0.0, causal), kwargs, atol=5e-6)


def test_what_is_refused():
    with pytest.raises(graft.Unsupported, match="dropout"):
        run_op(sdpa, (*_qkv((1, 2), 3, 3, 8), None, 0.5))
    with pytest.raises(graft.Unsupported, match="size 600"):
        run_op(sdpa, _qkv((1, 2), 3, 3, 600))
