"""torch.compile with graphs that graft does not run whole: eager PyTorch runs the rest, and it is counted."""

import os
import shutil
import warnings

import pytest
import torch

import graft
from graft.dynamo import backend, counters


@torch.library.custom_op("graft_dynamo_test::twist", mutates_args=())
def twist(x: torch.Tensor) -> torch.Tensor:
    """An operator of which graft knows nothing."""
    return x.flip(0) * 3


@twist.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("graft_dynamo_test::halves", mutates_args=())
def halves(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 0.5, x - 0.5]


@halves.register_fake
def _(x):
    return [torch.empty_like(x), torch.empty_like(x)]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def counted(call):
    """The result, what the counters rose by, and the warnings."""
    before = counters()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = call()
    after = counters()
    rise = {name: after[name] - before[name] for name in ("graphs", "whole", "parts", "nodes")}
    for names in ("left", "inductor"):
        risen = {name: n - before[names].get(name, 0) for name, n in after[names].items()}
        rise[names] = {name: n for name, n in risen.items() if n}
    ours = [str(w.message) for w in told if w.category is RuntimeWarning and "backend='graft'" in str(w.message)]
    return result, rise, ours


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


TWIST, HALVES = "graft_dynamo_test.twist.default", "graft_dynamo_test.halves.default"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4), torch.nn.LayerNorm(16)

    def forward(self, x):
        h = self.norm(torch.nn.functional.gelu(self.up(x)))
        h = h + twist(h)
        low, high = halves(h)
        return self.down(low * high).softmax(-1), h.shape[0]


def test_an_operator_that_graft_does_not_run():
    net = Net().eval()
    compiled = torch.compile(net, backend=backend, options={"threads": 1})
    for i, rows in enumerate((5, 7, 3)):
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        found, rise, told = counted(lambda x=x: compiled(x))
        same(found[0], net(x)[0])
        assert found[1] == rows
        if i == 0:
            assert rise["graphs"] == 1 and rise["whole"] == 0 and rise["parts"] == 3 and rise["nodes"] >= 7
            assert rise["left"] == {TWIST: 1, HALVES: 1}
            (message,) = told
            assert "runs 2 nodes of a graph, graft" in message and f"{TWIST} (1): " in message
        else:
            assert not told and not rise["graphs"], "compiled once"


def test_a_graph_that_graft_runs_whole_is_not_cut():
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    x = torch.randn(3, 8)
    found, rise, told = counted(lambda: torch.compile(net, backend=backend)(x))
    same(found, net(x))
    assert rise == {"graphs": 1, "whole": 1, "parts": 0, "nodes": 0, "left": {}, "inductor": {}} and not told


def test_a_graph_of_which_graft_runs_nothing():
    x = torch.randn(4, 2)
    found, rise, told = counted(lambda: torch.compile(lambda x: twist(twist(x)), backend=backend)(x))
    same(found, twist(twist(x)))
    assert rise["parts"] == 0 and rise["left"] == {TWIST: 2} and len(told) == 1


class Twist(torch.nn.Module):
    def forward(self, x):
        return twist(x)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x, out):
        self.seen.add_(twist(x).sum(0))
        out.copy_(x * 2)
        return self.seen * 10


def test_buffers_and_inputs_that_the_graph_writes():
    eager, ours = Counting(), Counting()
    compiled = torch.compile(ours, backend=lambda m, i: backend(m, i))
    for _ in range(3):
        x, one, other = torch.randn(5, 3), torch.empty(5, 3), torch.empty(5, 3)
        same(compiled(x, one), eager(x, other))
        same(one, other)
    same(ours.seen, eager.seen)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parts"])
def test_weights_are_quantized_as_asked(whole):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()).eval()
    x = torch.randn(3, 64)
    call = net if whole else torch.nn.Sequential(Twist(), net)
    exact, expected = torch.compile(call, backend=backend)(x), call(x)
    same(exact, expected)
    torch._dynamo.reset()
    coarse = torch.compile(call, backend=backend, options={"quantize": "q8_0"})(x)
    assert 1e-6 < (coarse - expected).abs().max() < 5e-2


def test_whole_refuses_and_names_the_node():
    compiled = torch.compile(Net().eval(), backend=backend, options={"whole": True})
    with pytest.raises(Exception, match="(?s)graft runs whole, found .*twist"):
        compiled(torch.randn(2, 8))


def test_unknown_options_are_refused():
    with pytest.raises(Exception, match="expected options of threads, device, seed, quantize, whole, rest, found thread"):
        torch.compile(Net().eval(), backend=backend, options={"thread": 1})(torch.randn(2, 8))


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_floats_of_a_dynamic_graph_may_change():
    """With dynamic=True the eps of a norm is an argument of the graph, of which torch.export makes no number."""
    model = Normed().eval()
    compiled = torch.compile(model, backend="graft", dynamic=True)
    graphs = counters()["graphs"]
    for rows, eps in ((3, 1e-5), (5, 1e-5), (7, 0.5), (2, 0.5), (4, 1e-5)):
        model.norm.eps = eps
        x = torch.randn(rows, 8)
        same(compiled(x), model(x))
    assert counters()["graphs"] - graphs <= 2


def test_errors_of_a_part_are_errors_of_the_call():
    def call(x):
        return torch.nn.functional.embedding(twist(x).long(), torch.arange(8.0).reshape(4, 2))

    compiled = torch.compile(call, backend=backend)
    same(compiled(torch.ones(3)), call(torch.ones(3)))
    with pytest.raises(graft.ExecutionError, match="index 6 is out of range"):
        compiled(torch.full((3,), 2.0))


COMPILER = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="TorchInductor needs a C++ compiler")


class Complex(torch.nn.Module):
    """Complex numbers, of which graft has none, between layers that it has; TorchInductor compiles or calls them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(8, 4)
        self.register_buffer("table", torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(x))
        turned = torch.view_as_complex(h.reshape(-1, 8, 2)) * self.table
        return self.down(turned.real + turned.imag + torch.lgamma(h[:, :8].abs() + 1)).softmax(-1)


@COMPILER
@pytest.mark.parametrize("model", [Net, Complex])
def test_inductor_runs_the_rest(model):
    net = model().eval()
    compiled = torch.compile(net, backend=backend, options={"rest": "inductor"})
    for i, rows in enumerate((5, 7, 3)):
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        found, rise, told = counted(lambda x=x: compiled(x))
        expected = net(x)
        same(found[0], expected[0]) if model is Net else same(found, expected)
        if i > 0:
            assert not told and not rise["graphs"], "compiled once"
        elif model is Net:
            assert rise["left"] == {} and rise["inductor"] == {TWIST: 1, HALVES: 1} and rise["parts"] == 3
            assert "TorchInductor runs 2 nodes of a graph, eager PyTorch runs 0, graft" in told[0]
            assert f"{TWIST} (1): " in told[0]
        else:
            assert rise["inductor"]["aten.lgamma.default"] == 1 and not rise["left"] and rise["parts"] >= 2, rise
            assert any("complex" in name for name in rise["inductor"])
            made = torch._dynamo.utils.counters["inductor"]
            assert made["fxgraph_cache_miss"] + made["fxgraph_cache_hit"] > 0, "TorchInductor compiled it"


@COMPILER
def test_inductor_leaves_writes_to_eager():
    eager, ours = Counting(), Counting()
    compiled = torch.compile(ours, backend=backend, options={"rest": "inductor"})
    for _ in range(3):
        x, one, other = torch.randn(5, 3), torch.empty(5, 3), torch.empty(5, 3)
        same(compiled(x, one), eager(x, other))
        same(one, other)
    same(ours.seen, eager.seen)


def test_inductor_without_a_compiler(monkeypatch):
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none():
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    x = torch.randn(3, 8)
    plain = torch.nn.Linear(8, 4).eval()
    same(torch.compile(plain, backend=backend, options={"rest": "inductor"})(x), plain(x))  # nothing is left
    torch._dynamo.reset()
    with pytest.raises(graft.Unsupported, match="rest='inductor' needs a C\\+\\+ compiler"):
        torch.compile(Net().eval(), backend=backend, options={"rest": "inductor"})(x)


def test_the_rest_is_one_of_two():
    with pytest.raises(Exception, match="expected rest to be one of eager, inductor, found 'onnx'"):
        torch.compile(Net().eval(), backend=backend, options={"rest": "onnx"})(torch.randn(2, 8))
