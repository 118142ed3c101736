"""Every kind of signature, from graft.export through graft.load, against eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import graft
from graft import _pytree


def check(model, loaded, *args, **kwargs):
    """Same results in the same arrangement; numbers and None equal."""
    eager_args, eager_kwargs = copy.deepcopy((args, kwargs))
    with torch.no_grad():
        expected = model(*eager_args, **eager_kwargs)
    found = loaded(*args, **kwargs)
    left, left_spec = pytree.tree_flatten(expected)
    right, right_spec = pytree.tree_flatten(found)
    assert left_spec == right_spec
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert a == b and type(a) is type(b)
    for a, b in zip(pytree.tree_leaves((eager_args, eager_kwargs)), pytree.tree_leaves((args, kwargs)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)  # inputs that the model writes to


def round_trip(tmp_path, model, args=(), kwargs=None, **options):
    data = [tmp_path / "p.ptd"] if options.get("weights") == "ptd" else []
    return graft.load(graft.export(model, args, kwargs, path=tmp_path / "p.pte", **options), weights=data)


def test_nested_arguments_and_results(tmp_path):
    class Nested(torch.nn.Module):
        def forward(self, x, pair, n: int, nothing=None, *, scale=1.0, flags=(True, False)):
            y = x + pair["a"] * n * scale if flags[0] else x
            return {"y": y, "none": nothing, "n": n, "list": [y, x]}, (x, scale), y

    model = Nested()
    kwargs = {"scale": 0.5, "flags": (True, False)}
    loaded = round_trip(tmp_path, model, (torch.randn(2), {"a": torch.randn(2), "b": torch.ones(1)}, 3, None), kwargs)
    check(model, loaded, torch.randn(2), {"a": torch.randn(2), "b": torch.ones(1)}, 3, None, **kwargs)
    with pytest.raises(graft.InvalidArgument):
        loaded(torch.randn(2), {"a": torch.randn(2), "b": torch.ones(1)}, 4, None, **kwargs)
    with pytest.raises(graft.InvalidArgument):
        loaded(torch.randn(2), {"a": torch.randn(2)}, 3, None, **kwargs)


def test_plain_arguments_need_no_pytree(tmp_path, monkeypatch):
    class Scaled(torch.nn.Module):
        def forward(self, x, y):
            return x - 2 * y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    graft.export(Scaled(), (x, y), path=tmp_path / "scaled.pte")
    model = graft.load(tmp_path / "scaled.pte")
    expected = x - 2 * y
    for wrong in ((x,), (x, y, y), ((x, y),), (x, [y])):
        with pytest.raises(graft.InvalidArgument, match="not arranged as at export"):
            model(*wrong)
    with pytest.raises(graft.InvalidArgument, match="keyword arguments"):
        model(x, y=y)

    class Marked(torch.Tensor):
        pass

    torch.testing.assert_close(model(x, y.as_subclass(Marked)), expected, rtol=0, atol=0)
    flattened = []
    flatten = _pytree.flatten
    monkeypatch.setattr(_pytree, "flatten", lambda *a: flattened.append(a) or flatten(*a))
    with pytest.raises(graft.InvalidArgument):
        model(x)
    assert len(flattened) == 1  # it is the function that counts
    flattened.clear()
    torch.testing.assert_close(model(x, torch.nn.Parameter(y)), expected, rtol=0, atol=0)
    torch.testing.assert_close(model(x.T.contiguous().T, y), expected, rtol=0, atol=0)
    assert not flattened


def test_tensors_go_to_the_engine_as_they_are(tmp_path, monkeypatch):
    class Mixed(torch.nn.Module):
        def forward(self, x, y):
            return x.to(torch.float32) + y, y > 0, x * 2

    types = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8)
    types += (torch.int16, torch.int32, torch.int64, torch.bool)
    looked_at = []
    inputs = graft.runtime.Method._inputs
    monkeypatch.setattr(graft.runtime.Method, "_inputs", lambda *a: looked_at.append(a) or inputs(*a))
    model = Mixed()
    for dtype in types:
        x, y = (torch.randn(5, 3) * 4).to(dtype), torch.randn(3)
        loaded = round_trip(tmp_path, model, (x, y), dynamic_shapes={"x": {0: Dim.DYNAMIC}, "y": None})
        check(model, loaded, x, torch.nn.Parameter(y))
        for rows in (2, 5, 0 if dtype == torch.float32 else 3):
            check(model, loaded, (torch.randn(rows, 3) * 4).to(dtype), y)
        assert not looked_at
    loaded = round_trip(tmp_path, model, (torch.randn(5, 3), torch.randn(3)))
    # Tensors in another layout are copied, as in all calls.
    check(model, loaded, torch.randn(3, 5).T, torch.randn(3))
    check(model, loaded, torch._neg_view(torch.randn(5, 3)), torch.randn(3))
    assert len(looked_at) == 2
    for wrong in (torch.randn(5, 3, device="meta"), torch.randn(5, 3).to_sparse(), torch.randn(5, 3).to(torch.complex64)):
        with pytest.raises((graft.InvalidArgument, RuntimeError)):
            loaded(wrong, torch.randn(3))
    with pytest.raises(graft.InvalidArgument):
        loaded(torch.randn(5, 4), torch.randn(3))
    check(model, loaded, torch.randn(5, 3), torch.randn(3))


def test_results_belong_to_the_caller(tmp_path):
    class Sums(torch.nn.Module):
        def forward(self, x, n: int):
            return x + n, (x * n).sum(), n + 1

    loaded = round_trip(
        tmp_path, Sums(), (torch.randn(3), 5), dynamic_shapes={"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC}
    )
    seen = []
    for i in range(40):  # more than are made in one group
        x = torch.randn(3 if i % 13 else 7)
        seen.append((x, i + 2, loaded(x, i + 2)))
    places = {tensor.data_ptr() for _, _, results in seen for tensor in results[:2]}
    assert len(places) == 80
    for x, n, (sums, total, after) in seen:
        torch.testing.assert_close(sums, x + n)
        torch.testing.assert_close(total, (x * n).sum())
        assert after == n + 1
    seen[0][2][0].resize_(100)  # an ordinary tensor of torch's
    with torch.inference_mode(), torch.device("meta"):
        inside = loaded(torch.ones(5, device="cpu"), 1)
    scale = torch.ones(5, requires_grad=True)
    for sums in (inside[0], loaded(torch.ones(5), 1)[0]):
        (sums * scale).sum().backward()  # saves the result for backward, which an inference tensor would not allow
    torch.testing.assert_close(scale.grad, torch.full((5,), 4.0))
    with pytest.raises(graft.InvalidArgument, match="64 bits"):
        loaded(torch.randn(3), 2**63)


def test_sizes_in_and_out(tmp_path):
    class Sizes(torch.nn.Module):
        def forward(self, x):
            n = x.shape[0]
            return x.reshape(n // 2, 2, -1) + torch.arange(n // 2)[:, None, None], n * 3 - 1, x.shape[1]

    model = Sizes()
    rows = 2 * Dim("half", min=1, max=16)
    loaded = round_trip(tmp_path, model, (torch.randn(6, 4),), dynamic_shapes={"x": {0: rows}})
    for n in (2, 8, 32, 6):
        check(model, loaded, torch.randn(n, 4))


def test_a_number_that_changes(tmp_path):
    class Scales(torch.nn.Module):
        def forward(self, x, n: int):
            return x * n, torch.arange(n), n + 1

    model = Scales()
    loaded = round_trip(tmp_path, model, (torch.randn(3), 5), dynamic_shapes={"x": None, "n": Dim.DYNAMIC})
    for n in (5, 2, 7, 5):
        check(model, loaded, torch.randn(3), n)


def test_unbounded_dimension(tmp_path):
    class Pairs(torch.nn.Module):
        def forward(self, x):
            return x.unsqueeze(0) - x.unsqueeze(1), torch.cat([x, x])

    model = Pairs()
    loaded = round_trip(tmp_path, model, (torch.randn(5),), dynamic_shapes={"x": {0: Dim("n")}})
    for n in (1, 7, 300, 3):
        check(model, loaded, torch.randn(n))


def test_written_buffers_and_inputs(tmp_path):
    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(3))
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64), persistent=False)

        def forward(self, x, written):
            self.seen.mul_(0.5).add_(x)
            self.count.add_(1)
            written.add_(x)
            return self.seen * 2, self.count + 0, written * 1

    model = Writes()
    loaded = round_trip(tmp_path, copy.deepcopy(model), (torch.randn(3), torch.randn(3)))
    for _ in range(4):
        check(model, loaded, torch.randn(3), torch.randn(3))


def test_results_that_are_inputs_views_and_constants(tmp_path):
    class Returns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = x + 1
            return x, y, y, y[1:], x.t(), None, 7, torch.ones(2), self.w

    model = Returns()
    check(model, round_trip(tmp_path, model, (torch.randn(3, 2),)), torch.randn(3, 2))


def test_lists_of_results(tmp_path):
    class Splits(torch.nn.Module):
        def forward(self, x):
            a, b, c = x.split([1, 2, 3])
            return torch.cat([c, a]), x.max(1), x.sort(0), b, x.unbind(1)[0]

    model = Splits()
    check(model, round_trip(tmp_path, model, (torch.randn(6, 2),)), torch.randn(6, 2))


def test_tied_weights_and_weights_outside(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(32, 16)
            self.head = torch.nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    model = Tied()
    ids = torch.tensor([[1, 31, 0]])
    check(model, round_trip(tmp_path, model, (ids,), weights="ptd"), torch.tensor([[5, 5, 2]]))
    with pytest.raises(graft.Error, match="weight"):
        graft.load(tmp_path / "p.pte")


def test_methods_share_state(tmp_path):
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 2))

        def forward(self, x, at):
            self.rows.index_copy_(0, at, x)
            return self.rows.sum(0)

    model = Cache()
    path = graft.export(
        methods={
            "prefill": {"model": copy.deepcopy(model), "args": (torch.randn(3, 2), torch.tensor([0, 1, 2]))},
            "decode": {"model": copy.deepcopy(model), "args": (torch.randn(1, 2), torch.tensor([3]))},
        },
        path=tmp_path / "p.pte",
    )
    loaded = graft.load(path)
    check(model, loaded.prefill, torch.randn(3, 2), torch.tensor([2, 0, 1]))
    check(model, loaded.decode, torch.randn(1, 2), torch.tensor([3]))
    check(model, loaded.decode, torch.randn(1, 2), torch.tensor([0]))


def test_package_without_planned_outputs(tmp_path):
    model = torch.nn.Linear(3, 4)
    options = graft.ExportOptions(plan_outputs=False)
    check(model, round_trip(tmp_path, model, (torch.randn(2, 3),), options=options), torch.randn(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool])
def test_dtypes_of_weights_and_results(tmp_path, dtype):
    class Where(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.tensor([0, 1, 1, 0, 1]).to(dtype))

        def forward(self, x):
            return torch.where(x, self.w, torch.flip(self.w, (0,)))

    model = Where()
    check(
        model, round_trip(tmp_path, model, (torch.ones(5, dtype=torch.bool),)), torch.tensor([True, False] * 2 + [True])
    )


def test_decoder_with_named_results(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        attn_implementation="sdpa",
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    loaded = round_trip(
        tmp_path,
        model,
        kwargs={"input_ids": torch.randint(0, 256, (1, 127)), "use_cache": False},
        dynamic_shapes={"input_ids": {1: Dim("length", min=1, max=512)}, "use_cache": None},
    )
    for length in (1, 7, 33, 200):
        ids = torch.randint(0, 256, (1, length))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits
        found = loaded(input_ids=ids, use_cache=False)
        assert type(found).__name__ == "CausalLMOutputWithPast"
        torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)
