"""Operators that the engine refuses stay with ExecuTorch's kernels, and everything around them stays delegated.

Every operator kind that is kept whole at export is tried with two instances that the engine accepts and one that it
refuses. One refused instance means that all of its kind are decomposed (ExecuTorch fails a program in which an operator
kept whole is not delegated), so each kind's decomposition has to come out right too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.runtime import Runtime
from torch.utils import _pytree as pytree

import graft
import graft.executorch
from graft import _C
from quick import quick

aten = torch.ops.aten
WEIGHT, ROW = torch.randn(5, 4), torch.randn(4)

def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((x.shape[1],), 0.5), torch.full((x.shape[1],), 2.0)


# Operator -> its arguments for a tensor of any rank, [2, 3, 4] with ones in between.
ANY_RANK: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "addcdiv.default": lambda x: (x, x, x.abs() + 1),
    "addcmul.default": lambda x: (x, x, x + 1),
    "all.default": lambda x: (x > -9,),
    "all.dim": lambda x: (x > 0, -1),
    "all.dims": lambda x: (x > 0, [-1, 0]),
    "aminmax.default": lambda x: (x,),
    "batch_norm.default": lambda x: (x, None, None, *statistics(x), False, 0.1, 1e-5, False),
    "clamp_max.Tensor": lambda x: (x, x.flip(-1)),
    "clamp_max.default": lambda x: (x, 0.1),
    "clamp_min.Tensor": lambda x: (x, x.flip(-1)),
    "clamp_min.default": lambda x: (x, 0.1),
    "count_nonzero.default": lambda x: (x > 0,),
    "count_nonzero.dim_IntList": lambda x: (x > 0, [-1]),
    "elu.default": lambda x: (x,),
    "floor_divide.Scalar": lambda x: (x, 0.3),
    "floor_divide.default": lambda x: (x, x.abs() + 0.5),
    "frac.default": lambda x: (x * 3,),
    "gelu.default": lambda x: (x,),
    "group_norm.default": lambda x: (x, 1),
    "hardsigmoid.default": lambda x: (x,),
    "hardswish.default": lambda x: (x,),
    "hardtanh.default": lambda x: (x,),
    "instance_norm.default": lambda x: (x, None, None, *statistics(x), False, 0.1, 1e-5, False),
    "layer_norm.default": lambda x: (x, [4], ROW, ROW),
    "leaky_relu.default": lambda x: (x,),
    "lerp.Scalar": lambda x: (x, x.flip(-1), 0.3),
    "lerp.Tensor": lambda x: (x, x.flip(-1), x.sigmoid()),
    "linalg_vector_norm.default": lambda x: (x, 2, [-1]),
    "linear.default": lambda x: (x, WEIGHT),
    "log_softmax.int": lambda x: (x, -1),
    "logsumexp.default": lambda x: (x, [-1]),
    "masked_fill.Scalar": lambda x: (x, x > 0, 1.5),
    "masked_fill.Tensor": lambda x: (x, x > 0, torch.tensor(1.5)),
    "matmul.default": lambda x: (x, x.transpose(-1, -2)),
    "mish.default": lambda x: (x,),
    "norm.Scalar": lambda x: (x,),
    "norm.ScalarOpt_dim": lambda x: (x, 2, [-1]),
    "norm.ScalarOpt_dim_dtype": lambda x: (x, 2, [-1], False),
    "norm.ScalarOpt_dtype": lambda x: (x, 2),
    "repeat_interleave.self_int": lambda x: (x, 2, -1),
    "rms_norm.default": lambda x: (x, [4], ROW, 1e-5),
    "_fused_rms_norm.default": lambda x: (x, [4], ROW, 1e-5),
    "roll.default": lambda x: (x, [1], [-1]),
    "rsub.Scalar": lambda x: (x, 2),
    "rsub.Tensor": lambda x: (x, x.flip(-1)),
    "scaled_dot_product_attention.default": lambda x: (x, x, x),
    "silu.default": lambda x: (x,),
    "softmax.int": lambda x: (x, -1),
    "softplus.default": lambda x: (x,),
    "std.correction": lambda x: (x, [-1]),
    "tril.default": lambda x: (x,),
    "triu.default": lambda x: (x,),
    "var_mean.correction": lambda x: (x, [-1]),
}
KEYWORDS = {
    "norm.ScalarOpt_dim_dtype": {"dtype": torch.float32},
    "norm.ScalarOpt_dtype": {"dtype": torch.float32},
}


def overload(kind: str) -> torch._ops.OpOverload:
    packet, name = kind.split(".")
    return getattr(getattr(aten, packet), name)


# Operators with fixed ranks: arguments that the engine accepts, and arguments that it refuses.
FIXED_RANK: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[[], tuple[Any, ...]]]] = {
    "mv.default": (
        lambda: (torch.randn(3, 4), torch.randn(4)),
        lambda: (torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)),
    ),
    "baddbmm.default": (
        lambda: (torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        lambda: tuple(torch.randn(*s, dtype=torch.complex64) for s in ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
    ),
    "_scaled_dot_product_flash_attention_for_cpu.default": (
        lambda: tuple(torch.randn(1, 2, 3, 8) for _ in range(3)),
        lambda: tuple(torch.randn(1, 2, 3, 2000) for _ in range(3)),  # larger heads than the kernel supports
    ),
}

QUICK = {*list(ANY_RANK)[:3], "scaled_dot_product_attention.default", "baddbmm.default", "lstm_cell.default", "gru.input"}


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def cell(kind: str, dtype: torch.dtype = torch.float32):
    rows, h = GATES[kind] * 5, torch.randn(2, 5, dtype=dtype)
    weights = [torch.randn(rows, n, dtype=dtype) for n in (3, 5)]
    biases = [torch.randn(rows, dtype=dtype) for _ in range(2)]
    return torch.randn(2, 3, dtype=dtype), [h, h + 1] if kind == "lstm" else h, *weights, *biases


def sequence(kind: str, dtype: torch.dtype = torch.float32):
    x, states, *weights = cell(kind, dtype)
    states = [s[None] for s in states] if isinstance(states, list) else states[None]
    return torch.stack((x, x + 1)), states, weights, True, 1, 0.0, False, False, False


# In f64 they are computed from products and elementwise operators.
RECURRENT = {
    f"{kind}{suffix}": (functools.partial(make, kind), functools.partial(make, kind, torch.float64))
    for suffix, make in (("_cell.default", cell), (".input", sequence))
    for kind in GATES
}
FIXED_RANK |= RECURRENT

# The engine accepts these wherever PyTorch does.
NEVER_REFUSED = {
    "adaptive_max_pool1d.default",
    "avg_pool1d.default",
    "max_pool1d.default",
    "max_pool1d_with_indices.default",
    "max_pool2d.default",
    "max_pool3d.default",
}

# The engine refuses these only for complex numbers, which ExecuTorch has no kernel for either.
NO_FALLBACK = {
    "_int_mm.default",
    *(f"{kind}_pad{d}d.default" for kind in ("reflection", "replication") for d in (1, 2, 3)),
    *(f"upsample_{kind}.{overload}" for kind in ("nearest2d", "bilinear2d", "bicubic2d") for overload in ("default", "vec")),
}

# The engine accepts the decomposition of the refused instance.
DECOMPOSED_IS_ACCEPTED = {"_scaled_dot_product_flash_attention_for_cpu.default", *RECURRENT}


class Three(torch.nn.Module):
    """Two instances that the engine takes around one that it refuses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def call(self, *args):
        if self.kind in ANY_RANK:
            args = ANY_RANK[self.kind](*args)
        results = overload(self.kind)(*args, **KEYWORDS.get(self.kind, {}))
        return results[0] if "attention" in self.kind else results

    def forward(self, one, refused, two):
        # A node that graft runs before and after each.
        first, last = self.call(one[0] * 2, *one[1:]), self.call(two[0] + 1, *two[1:])
        return pytree.tree_map(torch.neg, first) if floats(first) else first, self.call(*refused), last


def floats(results) -> bool:
    return all(x.is_floating_point() for x in pytree.tree_leaves(results))


def arguments(kind: str):
    if kind in ANY_RANK:
        deep = torch.randn(2, 1, 1, 1, 1, 1, 1, 3, 4)  # one dimension more than the engine has
        return (torch.randn(2, 3, 4),), (deep,), (torch.randn(2, 3, 4),)
    good, bad = FIXED_RANK[kind]
    return good(), bad(), good()


def test_every_kind_kept_whole_is_here():
    # graft's own operators have no decomposition.
    kept = {name.removeprefix("aten.") for name in _C.preserved_targets() if name.startswith("aten.")}
    assert kept == ANY_RANK.keys() | FIXED_RANK.keys() | NEVER_REFUSED | NO_FALLBACK


@pytest.mark.filterwarnings("error:export")  # ExecuTorch has a kernel for each
@pytest.mark.parametrize("kind", quick(QUICK, [*ANY_RANK, *FIXED_RANK]))
def test_one_refused_among_two_accepted(kind, tmp_path):
    model, args = Three(kind), arguments(kind)
    program = torch.export.export(model, args)
    assert sum(node.target == overload(kind) for node in program.graph.nodes) == 3, "the test lost its subject"
    path = graft.export(program, path=tmp_path / "model.pte", allow_fallback=True)
    (plan,) = deserialize_pte_binary(path.read_bytes()).program.execution_plan
    if kind not in DECOMPOSED_IS_ACCEPTED:
        assert plan.operators, "nothing was refused"
    assert plan.delegates, "nothing was accepted"
    method = Runtime.get().load_program(str(path)).load_method("forward")
    found, expected = method.execute(pytree.tree_leaves(args)), pytree.tree_leaves(model(*args))
    assert len(found) == len(expected)
    for i, (ours, eager) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5, msg=lambda text, i=i: f"result {i}: {text}")


@pytest.mark.parametrize("kind", ["linear.default", "gelu.default", "softmax.int", "mv.default", "layer_norm.default"])
def test_refused_without_fallback(kind, tmp_path):
    """The error names the nodes, what they are and why; the accepted instances are not among them."""
    model, args = Three(kind), arguments(kind)
    with pytest.raises(graft.ExportError) as caught:
        graft.export(model, args, path=tmp_path / "model.pte")
    text = str(caught.value)
    assert "allow_fallback=True" in text and not list(tmp_path.iterdir())
    lines = text.splitlines()[1:]
    reason = "expected at most 8 dimensions, found 9" if kind in ANY_RANK else "found torch.complex64"
    assert lines and all(line.startswith("  forward: aten.") and "(node '" in line for line in lines)
    assert any(reason in line for line in lines)


class Products(torch.nn.Module):
    def forward(self, x):
        return torch.cumprod(x * 2, -1) + 1


def test_refused_and_unknown_to_executorch(tmp_path):
    """Nobody has a kernel: the export says so, not only the error number of ExecuTorch at load."""
    _, (deep,), _ = arguments("gelu.default")
    with pytest.warns(RuntimeWarning, match="'forward': aten::cumprod.out .*found 9.* no kernel"):
        path = graft.export(Products(), (deep,), path=tmp_path / "model.pte", allow_fallback=True)
    with pytest.raises(RuntimeError):
        Runtime.get().load_program(str(path)).load_method("forward")


class Shared(torch.nn.Module):
    """A constant that delegated nodes use twice and a refused one once."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "parameter":
            self.scale = torch.nn.Parameter(ROW.clone())
        elif kind == "attribute":
            self.scale = ROW.clone()
        else:
            self.register_buffer("scale", ROW.clone(), persistent=kind == "persistent buffer")

    def forward(self, one, deep):
        return one * self.scale, deep * self.scale, one + self.scale


@pytest.mark.parametrize("kind", ["parameter", "attribute", "persistent buffer", "buffer"])
def test_constants_on_both_sides(kind, tmp_path):
    model, (one, deep, _) = Shared(kind), [args[0] for args in arguments("gelu.default")]
    path = graft.export(model, (one, deep), path=tmp_path / "model.pte", allow_fallback=True)
    found = Runtime.get().load_program(str(path)).load_method("forward").execute((one, deep))
    assert all(torch.equal(a, b) for a, b in zip(found, model(one, deep), strict=True))


class Rotation(torch.nn.Module):
    """A complex table, as rotary embeddings have it: the format has no such dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.polar(torch.ones(3, 4), torch.rand(3, 4)))

    def forward(self, x):
        return x * 2 + 1, self.table * self.table


def test_a_weight_that_the_format_cannot_hold(tmp_path):
    model, x = Rotation(), torch.randn(3)
    with pytest.raises(graft.ExportError, match="aten.mul.Tensor .*found torch.complex64"):
        graft.export(model, (x,), path=tmp_path / "model.pte")
    path = graft.export(model, (x,), path=tmp_path / "model.pte", allow_fallback=True)
    (plan,) = deserialize_pte_binary(path.read_bytes()).program.execution_plan
    assert [op.name for op in plan.operators] == ["aten::mul"] and len(plan.delegates) == 1
    found = Runtime.get().load_program(str(path)).load_method("forward").execute((x,))
    for ours, eager in zip(found, model(x), strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-6, rtol=1e-6)


class Mixed(torch.nn.Module):
    """Refused in the middle: what comes before and after it is delegated, with a dynamic size and numbers from it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        rows = x.shape[0]
        hidden = self.up(x)
        deep = hidden.reshape(rows, 1, 1, 1, 1, 1, 1, 2, 4) * 2
        return self.down(torch.tanh(deep).reshape(rows, 8)) + rows, rows * 2


def test_refused_between_two_parts_with_a_dynamic_size(tmp_path):
    model = Mixed()
    sizes = ({0: torch.export.Dim("rows", min=1, max=50)},)
    path = graft.export(
        model, (torch.randn(7, 4),), dynamic_shapes=sizes, path=tmp_path / "model.pte", allow_fallback=True
    )
    (plan,) = deserialize_pte_binary(path.read_bytes()).program.execution_plan
    assert len(plan.delegates) == 2
    method = Runtime.get().load_program(str(path)).load_method("forward")
    for rows in (7, 1, 50, 3):
        x = torch.randn(rows, 4)
        found, double = method.execute((x,))
        torch.testing.assert_close(found, model(x)[0].detach(), atol=1e-5, rtol=1e-5)
        assert double == 2 * rows


def fallback(tmp_path, model, args, **options):
    return graft.export(model, args, path=tmp_path / "model.pte", allow_fallback=True, **options)


@pytest.mark.parametrize("kind", quick(QUICK, [*ANY_RANK, *FIXED_RANK]))
def test_graft_load_runs_such_a_package(kind, tmp_path):
    model, args = Three(kind), arguments(kind)
    found = graft.load(fallback(tmp_path, model, args))(*args)
    torch.testing.assert_close(found, model(*args), atol=1e-5, rtol=1e-5)


class Nested(torch.nn.Module):
    """Arguments and results that nest; a buffer and an input that it writes; cumprod is left to ExecuTorch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(4, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x, *, more):
        h = torch.tanh(self.up(x + more["a"]))
        deep = (h.reshape(-1, 1, 1, 1, 1, 1, 1, 2, 4) * 2).reshape(-1, 8)
        self.total.add_(deep.sum(0))
        more["out"].copy_(deep * 3)
        return {"deep": deep, "more": [self.total + 1, h]}


def nested(rows=3):
    return (torch.randn(rows, 4),), {"more": {"a": torch.randn(rows, 4), "out": torch.zeros(rows, 8)}}


ROWS = {0: torch.export.Dim("rows", min=1, max=50)}
NESTED_SHAPES = {"x": ROWS, "more": {"a": ROWS, "out": ROWS}}


@pytest.fixture(scope="module")
def nested_package(tmp_path_factory):
    args, kwargs = nested()
    path = tmp_path_factory.mktemp("nested") / "nested.pte"
    return graft.export(Nested(), args, kwargs, dynamic_shapes=NESTED_SHAPES, path=path, allow_fallback=True)


def test_arguments_results_and_what_is_written(nested_package):
    model, eager = graft.load(nested_package, threads=1), Nested()
    assert isinstance(model, graft.Model) and list(model.methods) == ["forward"]
    for rows in (3, 1, 50, 7):
        args, kwargs = nested(rows)
        own = {"more": {name: tensor.clone() for name, tensor in kwargs["more"].items()}}
        with torch.no_grad():
            expected = eager(*args, **own)
        found = model(*args, **kwargs)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(kwargs["more"]["out"], own["more"]["out"], atol=1e-5, rtol=1e-5)
    assert model.counters()["runs"] == 4
    model.reset()
    args, kwargs = nested()
    with torch.no_grad():
        torch.testing.assert_close(model(*args, **kwargs), Nested()(*args, **kwargs), atol=1e-5, rtol=1e-5)


def test_strided_arguments_and_memory_for_results(nested_package):
    model = graft.load(nested_package)
    (x,), kwargs = nested(4)
    strided = x.t().contiguous().t()
    expected = model(x, **kwargs)
    model.reset()
    targets = pytree.tree_map(torch.zeros_like, expected)
    found = model(strided, out=targets, **kwargs)
    torch.testing.assert_close(found, expected)
    assert found["deep"] is targets["deep"] and torch.equal(targets["deep"], expected["deep"])
    assert model.counters()["io_copies"] == 1
    strict = graft.load(nested_package, options=graft.LoadOptions(strict_zero_copy=True))
    with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward': must be contiguous"):
        strict(strided, **kwargs)


def test_a_package_in_memory_and_weights_in_a_file(tmp_path):
    args, kwargs = nested()
    with torch.no_grad():
        expected = Nested()(*args, **kwargs)
    path = graft.export(Nested(), args, kwargs, path=tmp_path / "in.pte", allow_fallback=True)
    torch.testing.assert_close(graft.load(path.read_bytes())(*args, **kwargs), expected, atol=1e-5, rtol=1e-5)
    path = graft.export(Nested(), args, kwargs, path=tmp_path / "out.pte", allow_fallback=True, weights="ptd")
    torch.testing.assert_close(graft.load(path)(*args, **kwargs), expected, atol=1e-5, rtol=1e-5)
    moved = (tmp_path / "out.ptd").rename(tmp_path / "moved.ptd")
    torch.testing.assert_close(graft.load(path, weights=[moved])(*args, **kwargs), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(graft.Error, match="ExecuTorch"):
        graft.load(path)
    with pytest.raises(graft.NotFound, match="nowhere.ptd"):
        graft.load(path, weights=[tmp_path / "nowhere.ptd"])
    with pytest.raises(graft.Unsupported, match="one .ptd file, found .*safetensors"):
        graft.load(path, weights=[tmp_path / "w.safetensors"])


def test_several_methods_of_which_one_is_left(tmp_path):
    _, (deep,), _ = arguments("gelu.default")
    methods = {"plain": {"model": torch.nn.Tanh(), "args": (torch.randn(3),)}, "deep": {"model": Shared("buffer"), "args": (torch.randn(2, 4), deep)}}
    path = graft.export(methods=methods, path=tmp_path / "both.pte", allow_fallback=True)
    model = graft.load(path)
    x = torch.randn(3)
    torch.testing.assert_close(model.plain(x), torch.tanh(x))
    torch.testing.assert_close(model.deep(torch.ones(2, 4), deep), Shared("buffer")(torch.ones(2, 4), deep))


def test_errors_are_graft_s(nested_package):
    model = graft.load(nested_package)
    args, kwargs = nested()
    with pytest.raises(graft.InvalidArgument, match="arguments are not arranged as at export"):
        model(args[0], args[0], **kwargs)
    with pytest.raises(graft.InvalidArgument, match=r"keyword arguments \['more'\]"):
        model(*args)
    with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward': must be torch.float32, got torch.float64"):
        model(args[0].double(), **kwargs)
    with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward': must have 2 dimensions, got 1"):
        model(args[0][0], **kwargs)
    with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward': must be a tensor, got int"):
        model(3, **kwargs)
    large = nested(51)
    with pytest.raises(graft.Error, match="method 'forward': ExecuTorch's runtime says"):
        model(*large[0], **large[1])
    with pytest.raises(graft.Unsupported, match="'profile' of a call needs a package that graft runs alone"):
        model(*args, profile=[], **kwargs)
    for call in (model.forward.submit, model.forward.plan, model.forward.stored_plan):
        with pytest.raises(graft.Unsupported, match="ExecuTorch's runtime runs this one, since it has aten::"):
            call(*args, **kwargs)
    for name in ("states", "fork", "stats", "describe", "kv_lengths"):
        with pytest.raises(graft.Unsupported, match=f"{name}\\(\\) of a model that ExecuTorch's runtime runs"):
            getattr(model, name)()
    with pytest.raises(graft.Unsupported, match="which has no buckets, options.max_plans"):
        graft.load(nested_package, buckets={"x.0": [4]}, options=graft.LoadOptions(max_plans=3))
    with pytest.raises(graft.NotFound, match="no device 'warp'"):
        graft.load(nested_package, device="warp")
    assert graft.load(nested_package)(*args, **kwargs)["deep"].shape == (3, 8), "options are as before"
    model.close()
    with pytest.raises(graft.Error, match="closed"):
        model(*args, **kwargs)


def test_an_operator_that_nobody_runs_is_named_at_load(tmp_path):
    _, (deep,), _ = arguments("gelu.default")
    with pytest.warns(RuntimeWarning, match="no kernel"):
        path = fallback(tmp_path, Products(), (deep,))
    with pytest.raises(graft.Unsupported, match="method 'forward'.*aten::cumprod.*ExecuTorch's runtime says"):
        graft.load(path)


def test_without_executorch_the_loader_says_what_is_missing(nested_package, monkeypatch):
    monkeypatch.setattr(graft.executorch, "available", lambda: False)
    with pytest.raises(graft.Unsupported, match="needs ExecuTorch's runtime, graft alone cannot run it: .*the package executorch"):
        graft.load(nested_package)
