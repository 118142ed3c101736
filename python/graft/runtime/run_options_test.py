"""What a call may be given besides its arguments: memory, a profile, a place in the queue; and copies, which are counted
or refused."""

import threading

import pytest
import torch
from torch.export import Dim

import graft


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, y):
        self.calls.add_(1)
        return self.down(torch.nn.functional.gelu(self.up(x))) + y, y.bfloat16() * 2, self.calls + 0


def expected(x, y):
    hidden, half, _ = Net()(x, y)
    return hidden.detach(), half


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    rows = {0: Dim("rows", min=1, max=64)}
    path = tmp_path_factory.mktemp("net") / "net.pte"
    return graft.export(Net(), (torch.randn(3, 8), torch.randn(3, 8)), dynamic_shapes=(rows, rows), path=path)


def same(found, x, y):
    for ours, eager in zip(found, expected(x, y), strict=False):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5)


X, Y = torch.randn(5, 8), torch.randn(5, 8)
STRIDED = [
    pytest.param(lambda: torch.randn(8, 5).t(), id="transposed"),
    pytest.param(lambda: torch.randn(5, 16)[:, ::2], id="every other"),
    pytest.param(lambda: torch.randn(1, 8).expand(5, 8), id="expanded"),
    pytest.param(lambda: torch.randn(5, 8, dtype=torch.complex64).conj().imag, id="lazy negative"),
]


@pytest.mark.parametrize("make", STRIDED)
def test_copies_of_strided_inputs_are_counted(package, make):
    model = graft.load(package)
    x = make()
    same(model(x, Y), x, Y)
    assert model.counters()["io_copies"] == 1 and model.counters()["io_bytes_copied"] == 5 * 8 * 4
    same(model(x, x, timeout=100.0), x, x)
    assert model.counters()["io_copies"] == 3
    same(model(X, Y), X, Y)
    assert model.counters()["io_copies"] == 3


@pytest.mark.parametrize("make", STRIDED)
def test_strict_zero_copy_refuses_strided_inputs(package, make):
    model = graft.load(package, options=graft.LoadOptions(strict_zero_copy=True))
    x = make()
    for strict in (model, model.fork()):
        with pytest.raises(graft.InvalidArgument, match=r"input 1 of method 'forward': must be contiguous \(strict_zero"):
            strict(X, x)
        with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward': must be contiguous"):
            strict.forward.submit(x, Y)
        same(strict(X, Y), X, Y)
        assert strict.counters()["io_copies"] == 0


def test_strict_zero_copy_refuses_methods_in_segments(tmp_path):
    class Found(torch.nn.Module):
        def forward(self, x):
            return x[x > 0] * 2

    path = graft.export(Found(), (torch.randn(6),), path=tmp_path / "found.pte")
    x = torch.tensor([1.0, -1.0, 2.0, 3.0, -2.0, 0.0])
    model = graft.load(path)
    assert torch.equal(model(x), Found()(x))
    assert model.counters()["io_copies"] == 1 and model.counters()["io_bytes_copied"] == 12
    with pytest.raises(graft.InvalidArgument, match="method 'forward' runs in . segments: its outputs would be copied"):
        graft.load(path, options=graft.LoadOptions(strict_zero_copy=True))(x)


def test_a_lent_arena(package):
    model = graft.load(package)
    plan = model.forward.plan(X, Y)
    assert plan["arena_bytes"] > 0 and plan["launches"] > 0 and plan["metadata_bytes"] > 0
    memory = torch.empty(plan["arena_bytes"] + 64, dtype=torch.uint8)
    lent = memory[-memory.data_ptr() % 64 :][: plan["arena_bytes"]]
    before = model.counters()["arena_bytes"]
    same(model(X, Y, arena=lent), X, Y)
    assert model.counters()["arena_bytes"] == before == 0
    used = {a["memory"]: a["address"] for a in model.forward.plan(X, Y)["allocations"]}
    assert used["arena"] == lent.data_ptr() and used["input"] in (X.data_ptr(), Y.data_ptr())
    assert {"weight", "state", "output"} <= used.keys()
    with pytest.raises(graft.InvalidArgument, match=f"must have at least {plan['arena_bytes']} bytes, it has 64"):
        model(X, Y, arena=lent[:64])
    with pytest.raises(graft.InvalidArgument, match="must be aligned to 64 bytes"):
        model(X, Y, arena=memory[(-memory.data_ptr() % 64) ^ 1 :])
    with pytest.raises(graft.InvalidArgument, match="arena of method 'forward': must be a contiguous uint8 tensor"):
        model(X, Y, arena=torch.empty(1000))
    same(model(X, Y), X, Y)


def test_a_shared_arena(package):
    arena = graft.Arena()
    models = [graft.load(package, options=graft.LoadOptions(arena=arena)) for _ in range(2)]
    for model in models:
        same(model(X, Y), X, Y)
    size = arena.bytes
    assert size > 0 and [model.counters()["arena_bytes"] for model in models] == [size, size]
    assert [model.counters()["arena_allocations"] for model in models] == [1, 0]


def test_shared_states(package):
    states = graft.States()
    one, other = (graft.load(package, options=graft.LoadOptions(states=states)) for _ in range(2))
    alone = graft.load(package)
    assert [float(model(X, Y)[2]) for model in (one, other, one, alone)] == [1, 2, 3, 1]
    assert other.states()["calls"].tolist() == [3.0]


def test_profile(package):
    model = graft.load(package)
    timings = []
    same(model(X, Y, profile=timings), X, Y)
    assert len(timings) == model.forward.plan(X, Y)["launches"]
    assert all(isinstance(t, graft.Timing) and t.start_ns <= t.end_ns for t in timings)
    assert all(a.end_ns <= b.start_ns for a, b in zip(timings, timings[1:], strict=False))
    assert any("linear" in t.node for t in timings) and all(t.kernel for t in timings)


def test_a_frozen_input_must_not_move(package):
    model = graft.load(package)
    model.forward.freeze_input(0)
    x = X.clone()
    same(model(x, Y), x, Y)
    x.add_(1)
    same(model(x, Y), x, Y)
    with pytest.raises(graft.InvalidArgument, match="input 0 of method 'forward' is frozen at 0x.*was given at 0x"):
        model(X, Y)
    same(model(x, Y.clone()), x, Y)
    with pytest.raises(graft.InvalidArgument, match="input 7 of method 'forward' must be one of its tensors"):
        model.forward.freeze_input(7)


def test_submitted_calls(package):
    model = graft.load(package)
    runs = []
    for i in range(8):
        x = X + i  # nobody else keeps it
        runs.append((x.clone(), model.forward.submit(x, Y.t().contiguous().t())))
        del x
    for i, (x, run) in enumerate(runs):
        found = run.result()
        same(found, x, Y)
        assert run.done() and float(found[2]) == i + 1 and found[1].dtype == torch.bfloat16
    kept = run.result()[0]
    model.close()
    del runs, run
    same((kept,), x, Y)  # memory of its own


def test_submitted_calls_that_fail(package):
    model = graft.load(package, options=graft.LoadOptions(queue_capacity=1))
    with pytest.raises(graft.InvalidArgument, match="input 0"):
        model.forward.submit(X[:, :3].contiguous(), Y).result(timeout=60)
    cancel = graft.CancelToken()
    cancel.cancel()
    with pytest.raises(graft.Cancelled):
        model.forward.submit(X, Y, cancel=cancel).result()
    with pytest.raises(graft.InvalidArgument, match="timeout: must be 0 or more"):
        model.forward.submit(X, Y).result(timeout=-1)


class Long(torch.nn.Module):
    def forward(self, x):
        def body(i, x):
            return i + 1, (x @ x).tanh()

        return torch.while_loop(lambda i, x: i < 100_000_000, body, (torch.zeros((), dtype=torch.int64), x))[1]


def test_a_queue_that_is_full_and_a_call_that_takes_long(tmp_path):
    path = graft.export(Long(), (torch.randn(32, 32),), path=tmp_path / "long.pte")
    model = graft.load(path, options=graft.LoadOptions(queue_capacity=1))
    cancel = graft.CancelToken()
    x = torch.randn(32, 32)
    running = model.forward.submit(x, cancel=cancel)
    with pytest.raises(TimeoutError, match="not ended within 0.01 seconds"):
        running.result(timeout=0.01)
    waiting = []
    with pytest.raises(graft.Busy):
        for _ in range(3):
            waiting.append(model.forward.submit(x, cancel=cancel))
    assert not running.done()
    threading.Timer(0.05, cancel.cancel).start()
    for run in (running, *waiting):
        with pytest.raises(graft.Cancelled):
            run.result(timeout=60)


class Log(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.log(x), -1)


def test_the_node_that_makes_nan_is_named(tmp_path):
    model = graft.load(graft.export(Log(), (torch.rand(2, 3),), path=tmp_path / "log.pte"))
    bad = torch.tensor([[1.0, 2, 3], [4, -5, 0]])
    torch.testing.assert_close(model(bad), Log()(bad), equal_nan=True)
    with pytest.raises(graft.ExecutionError, match=r"log.*element \[1, 1\].*-5 \.\. 4"):
        model(bad, check="nan")
    with pytest.raises(graft.ExecutionError, match="is -inf"):
        model(bad.abs(), check="finite")
    torch.testing.assert_close(model(bad.abs() + 1, check="finite"), Log()(bad.abs() + 1))
    with pytest.raises(graft.InvalidArgument, match="'nan' or 'finite'"):
        model(bad, check="zero")


def test_every_kernel_is_observed(tmp_path):
    model = graft.load(graft.export(Log(), (torch.rand(2, 3),), path=tmp_path / "log.pte"))
    x, seen = torch.rand(2, 3) + 1, {}
    found = model(x, observe=lambda node, kernel, outputs: seen.update({node: outputs}))
    (log,) = seen["aten_log_default"]
    torch.testing.assert_close(log, x.log())
    assert torch.equal(seen["aten_cumsum_default"][0], found)

    results = {}
    model(x, observe_results=lambda node, i, value: results.update({(node, i): value}))
    assert results.keys() == {("aten_log_default", 0), ("aten_cumsum_default", 0)}
    torch.testing.assert_close(results["aten_log_default", 0], x.log())

    def fails(node, kernel, outputs):
        raise ValueError(f"no {node}")

    with pytest.raises(graft.ExecutionError, match="ValueError: no aten_log_default"):
        model(x, observe=fails)
    torch.testing.assert_close(model(x, priority=3), Log()(x))
    assert torch.equal(model.forward.submit(x, priority=3).result(), found)
