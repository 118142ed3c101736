"""Recurrent nets, whole sequences and single steps, against eager."""

import pytest
import torch
from op_cases import Cases, cases

import graft
from graft.exporter.serialize import serialize
from graft.testing import run_blob

aten = torch.ops.aten

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
ATOL = 1e-5


def _weights(case, *shape):
    return case.tensor(shape, special=False) / (shape[-1] ** 0.5)


def _states(case, kind, *shape, cell=None):
    h = case.tensor(shape, special=False)
    return [h, case.tensor((*shape[:-1], cell or shape[-1]), special=False)] if kind == "lstm" else h


@pytest.mark.parametrize("kind", GATES)
@cases
def test_cells(kind: str, case: Cases) -> None:
    batch, features, hidden = case.pick([0, 1, 2, 7, 8, 9, 17]), case.pick([1, 3, 16, 33]), case.pick([1, 5, 16, 33, 130])
    rows = GATES[kind] * hidden
    args = [case.tensor((batch, features)), _states(case, kind, batch, hidden)]
    args += [_weights(case, rows, features), _weights(case, rows, hidden)]
    if case.chance(0.7):
        args += [case.tensor((rows,), special=False), case.tensor((rows,), special=False)]
    case.check(getattr(aten, f"{kind}_cell").default, args, atol=ATOL)


@pytest.mark.parametrize("kind", GATES)
@cases
def test_sequences(kind: str, case: Cases) -> None:
    steps, batch = case.pick([1, 2, 5, 9]), case.pick([1, 2, 8, 9, 17])
    features, hidden = case.pick([1, 3, 16]), case.pick([1, 5, 16, 33])
    layers, directions, biases = case.pick([1, 1, 2, 3]), case.pick([1, 2]), case.chance(0.7)
    size = hidden // 2 if kind == "lstm" and hidden > 1 and case.chance(0.3) else hidden
    rows = GATES[kind] * hidden
    params = []
    for layer in range(layers):
        for _ in range(directions):
            params += [_weights(case, rows, features if layer == 0 else directions * size), _weights(case, rows, size)]
            params += [case.tensor((rows,), special=False), case.tensor((rows,), special=False)] if biases else []
            params += [_weights(case, size, hidden)] if size != hidden else []
    batch_first = case.chance(0.5)
    x = case.tensor((batch, steps, features) if batch_first else (steps, batch, features), special=False)
    states = _states(case, kind, layers * directions, batch, size, cell=hidden)
    case.check(
        getattr(aten, kind).input,
        (x, states, params, biases, layers, 0.0, False, directions == 2, batch_first),
        atol=ATOL,
    )


@pytest.mark.parametrize("kind", GATES)
def test_large_weights_shared_by_threads(kind: str) -> None:
    """Fewer rows than threads: these share the weights, and the bits are those of one thread."""
    from graft.testing import run_op

    case = Cases(1)
    rows = GATES[kind] * 300
    params = [_weights(case, rows, 70), _weights(case, rows, 300), case.tensor((rows,)), case.tensor((rows,))]
    params = [p.nan_to_num(0.1, 0.2, 0.3).clamp(-3, 3) for p in params]
    for batch in (1, 3, 9):
        args = (case.tensor((6, batch, 70), special=False), _states(case, kind, 1, batch, 300), params)
        args = (*args, True, 1, 0.0, False, False, False)
        expected = getattr(aten, kind).input(*args)
        one = run_op(getattr(aten, kind).input, args, threads=1)
        for threads in (2, 5):
            found = run_op(getattr(aten, kind).input, args, threads=threads)
            for a, b, c in zip(found, one, expected, strict=True):
                assert torch.equal(a, b)
                torch.testing.assert_close(a, c, atol=ATOL, rtol=1e-5)


@pytest.mark.parametrize("layers", [0, -1, 3, 2**62, -(2**63)])
def test_a_number_of_layers_that_has_no_weights(layers):
    """PyTorch does not trace one: a damaged program may hold it."""

    class Net(torch.nn.Module):
        def forward(self, x, states, params):
            return aten.lstm.input(x, states, params, True, 2, 0.0, False, True, False)

    params = [p.detach() for p in torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True).parameters()]
    inputs = torch.randn(5, 2, 3), [torch.randn(4, 2, 4)] * 2, params
    program = torch.export.export(Net(), inputs)
    (node,) = (n for n in program.graph.nodes if n.target is aten.lstm.input)
    node.args = (*node.args[:4], layers, *node.args[5:])
    with pytest.raises(graft.InvalidArgument, match=f"16 params do not fit {layers} layers in 2 directions"):
        run_blob(serialize(program).data, torch.utils._pytree.tree_leaves(inputs))
