"""Random numbers: shape, moments, and that a seed determines them. They are not PyTorch's."""

import graft
import graft.executorch
import pytest
import torch
from graft import _C, testing
from graft.exporter.serialize import serialize_op
from op_cases import FLOATS, INTEGERS, cases

aten = torch.ops.aten


def _program(target, args, kwargs=None):
    return _C.Program.from_ir(serialize_op(target, args, kwargs), {})


def _draw(session, *inputs):
    (out,) = testing.run_session(session, "forward", inputs)
    return out


def _draws(target, args, kwargs=None, count=1, **options):
    session = _C.Session(_program(target, args, kwargs), **options)
    return [_draw(session, *[a for a in args if isinstance(a, torch.Tensor)]) for _ in range(count)]


@pytest.mark.parametrize("target", [aten.rand, aten.randn, aten.rand_like, aten.randn_like])
def test_floats_have_shape_and_dtype(target):
    @cases
    def check(case):
        shape, dtype = case.shape(), case.pick(FLOATS)
        if "like" in str(target):
            given = case.tensor(shape, case.pick([*FLOATS, torch.int64]))
            case.check(target.default, (given,), {"dtype": dtype}, values=False)
        else:
            case.check(target.default, (shape,), {"dtype": dtype}, values=False)

    check()


def test_integers_have_shape_and_dtype():
    @cases
    def check(case):
        shape, dtype = case.shape(), case.pick([*INTEGERS, torch.float32, torch.float64])
        low, high = sorted(case.random.sample(range(0 if dtype == torch.uint8 else -100, 101), 2))
        case.check(aten.randint.low, (low, high, shape), {"dtype": dtype}, values=False)
        case.check(aten.randint.default, (abs(high) + 1, shape), {"dtype": dtype}, values=False)
        (drawn,) = testing.run_op(aten.randint.low, (low, high, shape), {"dtype": dtype})
        assert ((drawn >= low) & (drawn < high)).all()

    check()


def test_orders_are_permutations():
    @cases
    def check(case):
        n = case.pick([0, 1, 2, 31, 32, 33, 100, 257])
        dtype = case.pick([torch.int64, torch.int32, torch.int16, torch.float32, torch.float64])
        case.check(aten.randperm.default, (n,), {"dtype": dtype}, values=False)
        (drawn,) = testing.run_op(aten.randperm.default, (n,), {"dtype": dtype})
        assert torch.equal(drawn.sort().values, torch.arange(n, dtype=dtype))

    check()


N = 200_000
# Mean, variance, third and fourth central moment.
MOMENTS = {aten.rand: (1 / 2, 1 / 12, 0, 1 / 80), aten.randn: (0, 1, 0, 3)}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", MOMENTS)
def test_moments(target, dtype):
    (x,) = _draws(target.default, ([N],), {"dtype": dtype})
    x = x.double()
    # bf16 has eight digits: its numbers are multiples of 2^-8, truncated.
    step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    mean, *central = MOMENTS[target]
    assert abs(x.mean() - mean) < 0.01 + step / 2
    for power, wanted in zip((2, 3, 4), central, strict=True):
        assert abs(((x - x.mean()) ** power).mean() - wanted) < 0.06
    if target is aten.rand:
        assert x.min() >= 0 and x.max() < 1
        counts = torch.histc(x, 10, 0, 1)
        assert (counts - N / 10).abs().max() < 5 * (N * 0.09) ** 0.5 + step * N
    else:
        # Within one and two deviations.
        assert abs((x.abs() < 1).double().mean() - 0.6827) < 0.01
        assert abs((x.abs() < 2).double().mean() - 0.9545) < 0.01
    # Adjacent numbers are uncorrelated.
    y = x - x.mean()
    for lag in (1, 2, 3, 4, 5):
        assert abs((y[lag:] * y[:-lag]).mean() / (y * y).mean()) < 0.01


def test_integers_are_even():
    (x,) = _draws(aten.randint.low, (-3, 4, [70_000]))
    counts = torch.bincount(x + 3, minlength=7)
    assert (counts - 10_000).abs().max() < 5 * 10_000**0.5
    (wide,) = _draws(aten.randint.low, (-(2**63), 2**63 - 1, [1000]))
    assert (wide < 0).sum() in range(400, 600) and (wide % 2 == 0).sum() in range(400, 600)


def test_orders_are_even():
    """Where the first of five ends up."""
    places = torch.zeros(5)
    session = _C.Session(_program(aten.randperm.default, (5,)))
    for _ in range(5000):
        places[(_draw(session) == 0).nonzero()[0]] += 1
    assert (places - 1000).abs().max() < 5 * 1000**0.5


def test_a_seed_determines_all_runs():
    args = (aten.randn.default, ([33, 257],))
    first = _draws(*args, count=3, seed=7, threads=1)
    assert all(torch.equal(a, b) for a, b in zip(first, _draws(*args, count=3, seed=7, threads=2), strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    others = [_draws(*args, seed=seed)[0] for seed in (0, 8, 7 + 2**32, 2**64 - 1)]
    for other in others:
        assert abs((first[0] * other).mean()) < 0.05
    (default,) = _draws(*args)
    assert torch.equal(default, others[0])


def test_reset_begins_anew():
    session = _C.Session(_program(aten.rand.default, ([9],)))
    first, second = _draw(session), _draw(session)
    session.reset()
    assert torch.equal(_draw(session), first) and torch.equal(_draw(session), second)


class Noise(torch.nn.Module):
    def forward(self, x):
        return torch.randn_like(x), torch.randn_like(x), torch.rand(3)


def test_every_call_of_a_model_draws_its_own(tmp_path):
    x = torch.ones(40, 50)
    path = graft.export(Noise(), (x,), path=tmp_path / "n.pte")
    model = graft.load(path, seed=3)
    a, b, c = model(x)
    assert not torch.equal(a, b)
    again = model(x)
    assert not torch.equal(a, again[0]) and not torch.equal(c, again[2])
    model.reset()
    assert torch.equal(model(x)[0], a)


class Picked(torch.nn.Module):
    def forward(self, table, index):
        return table[index] + torch.randn(3)


def test_a_failed_run_draws_again(tmp_path):
    table, good, bad = torch.zeros(5, 3), torch.tensor([1, 4]), torch.tensor([1, 5])
    path = graft.export(Picked(), (table, good), path=tmp_path / "p.pte")
    model, other = graft.load(path), graft.load(path)
    runs = [model(table, good) for _ in range(3)]
    assert torch.equal(other(table, good), runs[0])
    with pytest.raises(graft.ExecutionError, match="index 5"):
        other(table, bad)
    assert torch.equal(other(table, good), runs[1])


def test_seed_of_the_delegate(tmp_path):
    from executorch.runtime import Runtime

    table, index = torch.zeros(5, 3), torch.tensor([1, 4])
    path = graft.export(Picked(), (table, index), path=tmp_path / "p.pte")
    try:
        graft.executorch.set_options(seed=2**32 - 1)
        method = Runtime.get().load_program(str(path)).load_method("forward")
        found = [method.execute([table, index])[0].clone() for _ in range(2)]
    finally:
        graft.executorch.set_options()
    model = graft.load(path, seed=2**32 - 1)
    assert all(torch.equal(a, model(table, index)) for a in found)
    with pytest.raises(graft.InvalidArgument, match="seed"):
        graft.executorch.set_options(seed=-1)


@torch.no_grad()
def test_graphs_of_torch_compile_draw_their_own():
    def model(x):
        a = x + torch.randn(x.shape)
        torch._dynamo.graph_break()
        return a, x + torch.randn(x.shape)

    a, b = torch.compile(model, backend="graft")(torch.zeros(4, 5))
    assert not torch.equal(a, b)
