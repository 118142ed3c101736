"""A package beside eager PyTorch, node by node: faults that are put in on purpose are found where they are."""

import copy

import pytest
import torch
from torch.export import Dim

import graft


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x, *, scale):
        h = self.norm(torch.nn.functional.gelu(self.up(x)))
        self.calls.add_(h.mean())
        rows = torch.cat([h.cumsum(0), h.flip(0)], 1)
        y = self.down(rows[:, 8:24] * scale).transpose(0, 1)
        return {"y": y.softmax(-1), "sum": (y * y).sum(0)}, self.calls * 2


def arguments(rows=5):
    return (torch.randn(rows, 8),), {"scale": torch.rand(16)}


ROWS = {"x": {0: Dim("rows", min=1, max=64)}, "scale": None}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    args, kwargs = arguments()
    path = tmp_path_factory.mktemp("net") / "net.pte"
    return graft.export(Net().eval(), args, kwargs, dynamic_shapes=ROWS, path=path)


@pytest.mark.parametrize("rows", [5, 17, 2])
def test_equal_models(package, rows):
    args, kwargs = arguments(rows)
    before = [t.clone() for t in (*args, kwargs["scale"])]
    found = graft.compare(package, Net().eval(), args, kwargs)
    assert found.equal and found.first is None and not found.differing, str(found)
    assert {"aten_linear_default_1", "aten_cumsum_default", "aten_cat_default"} <= set(found.compared)
    assert found.skipped["aten_linear_default"] == "it was fused into a node after it"  # gelu is its epilogue
    assert "aten_gelu_default" in found.compared
    assert "none differs" in str(found) and found.largest is None or found.largest.max_abs_error < 1e-4
    assert all(torch.equal(a, b) for a, b in zip(before, (*args, kwargs["scale"]), strict=True))


def test_every_node_is_compared_or_has_a_reason(package):
    args, kwargs = arguments()
    found = graft.compare(package, Net().eval(), args, kwargs)
    assert not set(found.compared) & set(found.skipped)
    program = torch.export.export(Net().eval(), args, kwargs, dynamic_shapes=ROWS)
    from graft.exporter.export import lower

    tensors = {n.name for n in lower(program).graph.nodes if n.op == "call_function" and isinstance(n.meta["val"], torch.Tensor)}
    assert set(found.compared) | set(found.skipped) == tensors


@pytest.mark.parametrize(
    ("weight", "node", "op"),
    [
        ("up.weight", "aten_gelu_default", "aten.gelu.default"),
        ("norm.bias", "aten_layer_norm_default", "aten.layer_norm.default"),
        ("down.bias", "aten_linear_default_1", "aten.linear.default"),
    ],
)
def test_a_changed_weight_is_found_at_its_node(package, weight, node, op):
    model = Net().eval()
    with torch.no_grad():
        model.get_parameter(weight).view(-1)[3] += 0.5
    args, kwargs = arguments()
    found = graft.compare(package, model, args, kwargs)
    first = found.first
    assert not found.equal and (first.node, first.op) == (node, op), str(found)
    assert first.node in found.differing and "output 1" in found.differing
    assert not first.within and first.max_abs_error > 1e-3
    assert abs(first.found - first.expected) == pytest.approx(first.max_abs_error)
    assert first.index and first.dtype == torch.float32 and first.shape[0] in (5, 8)
    assert first.found_range[0] <= first.found <= first.found_range[1]
    assert "comparison_test.py:" in first.source and "in forward" in first.source
    assert ("aten_linear_default" in first.fused) == (weight == "up.weight")
    assert f"'{node}' ({op})" in str(found) and str(list(first.index)) in str(found)


def test_a_wrong_kernel_is_found(tmp_path):
    """An operator that computes something else in eager than in the package."""
    wrong = torch.library.Library("graft_comparison_test", "FRAGMENT")
    wrong.define("twice(Tensor x) -> Tensor")
    factor = [2.0]
    wrong.impl("twice", lambda x: x * factor[0], "CompositeImplicitAutograd")

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.graft_comparison_test.twice(x.cumsum(0)).cumsum(1).exp()

    x = torch.rand(3, 4)
    path = graft.export(Model(), (x,), path=tmp_path / "model.pte")
    assert graft.compare(path, Model().eval(), (x,)).equal
    factor[0] = 2.5
    first = graft.compare(path, Model().eval(), (x,)).first
    assert first.op == "aten.mul.Tensor" and first.max_abs_error == pytest.approx(float(x.sum(0).max()) * 0.5)


def test_buffers_as_they_are_and_as_they_become(package):
    model, eager = graft.load(package), Net().eval()
    args, kwargs = arguments()
    model(*args, **kwargs)
    assert graft.compare(model, eager, args, kwargs).equal, "the reference begins with the states of the model"
    assert torch.equal(eager.calls, torch.zeros(3)), "the module is not written"
    assert model.counters()["runs"] == 2 and not torch.equal(model.states()["calls"], torch.zeros(3))


class Writes(torch.nn.Module):
    def __init__(self, factor=2.0) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, out):
        self.seen.copy_(x.sum(0) * self.factor)
        out.copy_(x * self.factor)
        return x.cumsum(0)


def test_what_is_written_is_compared(tmp_path):
    args = (torch.randn(3, 4), torch.zeros(3, 4))
    path = graft.export(Writes(), args, path=tmp_path / "model.pte")
    assert graft.compare(path, Writes().eval(), args).equal
    assert not args[1].any(), "arguments are copied"
    found = graft.compare(path, Writes(3.0).eval(), args)
    assert {"state seen", "input 1"} <= set(found.differing) and "output 0" not in found.differing


class Logs(torch.nn.Module):
    def forward(self, x):
        return (x.log().cumsum(-1), x / 0)


def test_nan_and_infinity(tmp_path):
    x = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]])
    path = graft.export(Logs(), (x,), path=tmp_path / "logs.pte")
    assert graft.compare(path, Logs().eval(), (x,)).equal, "NaN where eager has NaN, infinities with their sign"

    class Safe(torch.nn.Module):
        def forward(self, x):
            return (x.log().cumsum(-1), x / 1)

    first = graft.compare(path, Safe().eval(), (x.abs() + 1,)).first
    assert first.op == "aten.div.Tensor" and first.max_abs_error == float("inf") and first.found == float("inf")
    assert first.expected_range == (1.0, 4.0)


def test_an_exported_program_on_either_side():
    x = torch.randn(4, 3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).eval()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},))
    assert graft.compare(program, program, (torch.randn(9, 3),)).equal
    assert graft.compare(model, model, (x,), dynamic_shapes=({0: Dim.AUTO},)).equal
    other = copy.deepcopy(model)
    other[2].bias.data[1] += 1
    found = graft.compare(program, other, (torch.randn(9, 3),))
    assert found.first.op == "aten.linear.default" and found.first.index[1] == 1


def test_tolerances(package):
    model = Net().eval()
    model.down.bias.data += 1e-5
    args, kwargs = arguments()
    within = graft.compare(package, model, args, kwargs)
    assert within.equal and within.largest.within
    beyond = graft.compare(package, model, args, kwargs, atol=1e-6, rtol=0)
    assert not beyond.equal and beyond.first.node == "aten_linear_default_1"
    assert graft.compare(package, model, args, kwargs, atol=1, rtol=0).equal


class Branches(torch.nn.Module):
    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda v: v.cumsum(0), lambda v: v * 3, (x * 2,))
        return y[y > 0].cumsum(0)


def test_a_method_in_segments(tmp_path):
    x = torch.randn(6, 3).abs()
    path = graft.export(Branches(), (x,), path=tmp_path / "branches.pte")
    found = graft.compare(path, Branches().eval(), (x,))
    assert found.equal and {"aten_mul_tensor", "submodule_0.aten_cumsum_default"} <= set(found.compared), str(found)
    assert not any(name.startswith("submodule_1") for name in (*found.compared, *found.skipped))
    found = graft.compare(path, Branches().eval(), (-x,))
    assert found.equal and "submodule_1.aten_mul_tensor" in found.compared, str(found)
    assert "submodule_0.aten_cumsum_default" not in found.compared


class Rounds(torch.nn.Module):
    """A loop with a branch in it: 5 rounds, of which the first 3 take the one side."""

    def __init__(self, *, early: float = 1.0, late: float = 1.0) -> None:
        super().__init__()
        self.early, self.late = torch.nn.Buffer(torch.tensor(early)), torch.nn.Buffer(torch.tensor(late))

    def forward(self, x):
        def body(i, x):
            x = torch.cond(i.sum() < 3, lambda x: x.cumsum(0) * self.early, lambda x: x.cumsum(1) * self.late, (x,))
            return i + 1, x / 2

        i, x = torch.while_loop(lambda i, x: i.sum() < 5, body, (torch.zeros(1, dtype=torch.int64), x))
        return x + i


def test_nodes_of_branches_in_a_loop(tmp_path):
    x = torch.rand(4, 3)
    path = graft.export(Rounds().eval(), (x,), path=tmp_path / "rounds.pte")
    found = graft.compare(path, Rounds().eval(), (x,))
    assert found.equal, str(found)
    inner = {name.rpartition(".")[0] for name in found.compared}
    assert {"submodule_0", "submodule_1"} < inner, found.compared
    branches = {name for name in inner if name.startswith("submodule_1.")}
    assert len(branches) == 2, found.compared
    for changed, of in ({"early": 1.5}, 0), ({"late": 1.5}, 1):
        first = graft.compare(path, Rounds(**changed).eval(), (x,)).first
        assert first.node.startswith(f"submodule_1.submodule_{of}.") and first.op == "aten.mul.Tensor", first


def test_errors(package):
    args, kwargs = arguments()
    with pytest.raises(graft.InvalidArgument, match="no method 'backward'; it has"):
        graft.compare(package, Net().eval(), args, kwargs, method="backward")
    with pytest.raises(graft.InvalidArgument, match="evaluation mode"):
        graft.compare(package, Net(), args, kwargs)
    with pytest.raises(graft.InvalidArgument, match="must be a torch.nn.Module or an ExportedProgram, got str"):
        graft.compare(package, "net.pt2", args, kwargs)
    with pytest.raises(graft.InvalidArgument, match="atol must be 0 or more"):
        graft.compare(package, Net().eval(), args, kwargs, atol=-1)
    with pytest.raises(graft.NotFound):
        graft.compare("nowhere.pte", Net().eval(), args, kwargs)
    with pytest.raises(graft.InvalidArgument, match="the reference does not take these arguments: .*'scale'"):
        graft.compare(package, torch.nn.Sequential(torch.nn.Linear(8, 3)).eval(), args, kwargs)

    class Other(Net):
        def forward(self, x, *, scale):
            h = self.norm(torch.nn.functional.gelu(self.up(x)))
            return {"y": h.cumsum(1) * scale, "sum": h.sum(0)}, self.calls * 2

    with pytest.raises(graft.InvalidArgument, match="export the reference as the package was"):
        graft.compare(package, Other().eval(), args, kwargs)
    with pytest.raises(graft.InvalidArgument, match="method 'forward' was exported with keyword arguments"):
        graft.compare(package, Net().eval(), args)


def test_errors_of_the_run_are_its_own(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, i):
            return x[i] * 2

    x = torch.randn(4)
    program = torch.export.export(Model(), (x, torch.tensor([1])))
    model = graft.load(graft.export(program, path=tmp_path / "model.pte"))
    with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
        graft.compare(model, program, (x, torch.tensor([9])))
