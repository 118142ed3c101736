"""Recurrent nets: whole sequences, and streams whose state is an input and output, or buffers of the program."""

import pytest
import torch
from executorch.runtime import Runtime
from torch.export import Dim

import graft

FEATURES, HIDDEN = 5, 7


def _close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "batch_first"),
    [(torch.nn.LSTM, 1, True, True), (torch.nn.GRU, 2, False, False), (torch.nn.RNN, 1, True, False)],
)
def test_sequences(tmp_path, kind, layers, bidirectional, batch_first):
    torch.manual_seed(0)
    net = kind(FEATURES, HIDDEN, layers, bidirectional=bidirectional, batch_first=batch_first).eval()
    batch = 0 if batch_first else 1
    size = [3, 3]
    size[batch] = 2
    state = torch.randn(2 * layers if bidirectional else layers, 2, HIDDEN)
    state = (state, torch.randn_like(state)) if kind is torch.nn.LSTM else state
    n = Dim("n", min=1, max=8)
    shapes = {"input": {batch: n}, "hx": ({1: n}, {1: n}) if kind is torch.nn.LSTM else {1: n}}
    x = torch.randn(*size, FEATURES)
    model = graft.load(graft.export(net, (x, state), dynamic_shapes=shapes, path=tmp_path / "r.pte"))
    _close(model(x, state), net(x, state))
    x = x.narrow(batch, 0, 1)
    state = tuple(s[:, :1] for s in state) if kind is torch.nn.LSTM else state[:, :1]
    _close(model(x, state), net(x, state))


@pytest.mark.parametrize("options", [{"num_layers": 1, "proj_size": 3}, {"num_layers": 2, "bias": False}])
def test_projections_and_layers_without_bias(tmp_path, options):
    torch.manual_seed(1)
    net = torch.nn.LSTM(FEATURES, HIDDEN, **options).eval()
    x = torch.randn(3, 2, FEATURES)
    _close(graft.load(graft.export(net, (x,), path=tmp_path / "r.pte"))(x), net(x))


class Cells(torch.nn.Module):
    """A step of a stream; the caller keeps the states."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.lstm = torch.nn.LSTMCell(FEATURES, HIDDEN)
        self.gru = torch.nn.GRUCell(HIDDEN, HIDDEN)
        self.rnn = torch.nn.RNNCell(HIDDEN, HIDDEN)

    def forward(self, x, states):
        h, c = self.lstm(x, states[:2])
        g = self.gru(h, states[2])
        r = self.rnn(g, states[3])
        return r.sum(-1), [h, c, g, r]


def _stream(batch: int = 2, length: int = 25):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(length, batch, FEATURES, generator=generator)


def test_states_as_inputs_and_outputs(tmp_path):
    net, zeros = Cells().eval(), [torch.zeros(2, HIDDEN) for _ in range(4)]
    path = graft.export(net, (_stream()[0], zeros), path=tmp_path / "cells.pte")
    model = graft.load(path, threads=2)
    method = Runtime.get().load_program(str(path)).load_method("forward")
    ours, theirs, wanted = zeros, zeros, zeros
    for x in _stream():
        result, ours = model(x, ours)
        expected, wanted = net(x, wanted)
        through, *theirs = method.execute([x, *theirs])
        theirs = [t.clone() for t in theirs]  # memory of the method
        _close((result, ours), (expected, wanted))
        assert torch.equal(through, result) and all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert model.counters()["plan_misses"] == 1


class Listener(torch.nn.Module):
    """The same with the states as buffers, and an LSTM over the frames of one call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lstm = torch.nn.LSTM(FEATURES, HIDDEN, 2)
        self.gru = torch.nn.GRUCell(HIDDEN, HIDDEN)
        for name, shape in (("h", (2, 2, HIDDEN)), ("c", (2, 2, HIDDEN)), ("g", (2, HIDDEN))):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, frames):
        out, (h, c) = self.lstm(frames, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        self.g.copy_(self.gru(out[-1], self.g))
        self.steps += frames.shape[0]
        return out, self.g.sum(-1) + self.steps


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    path = tmp_path_factory.mktemp("rnn") / "listener.pte"
    return graft.export(Listener().eval(), (_stream()[:5],), path=path)


@pytest.mark.parametrize("front", ["python", "executorch"])
def test_states_as_buffers(listener, front):
    if front == "python":
        model = graft.load(listener, threads=2)
    else:
        program = Runtime.get().load_program(str(listener))
        method = program.load_method("forward")
        model = lambda x: tuple(method.execute([x]))  # noqa: E731
    net = Listener().eval()
    frames = _stream()
    with torch.no_grad():
        first = model(frames[:5])
        _close(tuple(t.clone() for t in first), net(frames[:5]))
        first = [t.clone() for t in first]
        for at in range(5, 25, 5):
            _close(model(frames[at : at + 5]), net(frames[at : at + 5]))
    if front == "executorch":
        return
    for name, value in model.states().items():
        _close(value, dict(net.named_buffers())[name])
    assert int(model.states()["steps"]) == 25
    model.reset()
    assert all(torch.equal(a, b) for a, b in zip(model(frames[:5]), first, strict=True))


def test_streams_are_independent(listener):
    """Sessions of one package have their own states, and one stream cut differently gives the same."""
    a, b = graft.load(listener), graft.load(listener)
    frames = _stream()
    alone = [a(frames[at : at + 5])[0] for at in range(0, 25, 5)]
    a.reset()
    for i, at in enumerate(range(0, 25, 5)):
        assert torch.equal(a(frames[at : at + 5])[0], alone[i])
        b(-frames[at : at + 5])


@pytest.mark.parametrize(
    ("net", "launches"),
    [
        (torch.nn.LSTM(24, 16, batch_first=True), 2),  # products of all inputs, then all steps
        (torch.nn.GRU(24, 16, 2, bidirectional=True), 8),
        (torch.nn.LSTMCell(24, 16), 1),
        (torch.nn.GRUCell(24, 16), 1),
        (torch.nn.RNNCell(24, 16, bias=False), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_one_kernel_for_all_steps(net, launches, tmp_path):
    """However many steps there are; with zeros for a state that is not given, which are no launch."""
    net = net.eval()
    sizes = [(2, 24)] if "Cell" in type(net).__name__ else [(2, 40, 24), (2, 9, 24)]
    for size in sizes:
        x = torch.randn(size)
        model = graft.load(graft.export(net, (x,), path=tmp_path / "r.pte"))
        with torch.no_grad():
            _close(model(x), net(x))
        assert model.counters()["kernels_launched"] == launches
