"""The partitioner with a predicate that the test controls. Lowered programs run in eager PyTorch, where a delegate call
runs the sub-program it was made from."""

from __future__ import annotations

import random

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.delegate import executorch_call_delegate
from ir_text import FakePredicate, Method, read
from torch.export import Dim

from graft.exporter.specs import SESSION_KEY
from graft.exporter.partitioner import GraftPartitioner, _assign


def lower(model, args, predicate, dynamic_shapes=None, **options):
    with torch.no_grad():
        program = torch.export.export(model, args, dynamic_shapes=dynamic_shapes)
        partitioner = GraftPartitioner(predicate=predicate, **options)
        manager = to_edge_transform_and_lower(
            program,
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False),
        )
    return manager, partitioner


def delegates(manager) -> list[Method]:
    module = manager.exported_program().graph_module
    calls = [n for n in module.graph.nodes if n.target is executorch_call_delegate]
    return [Method(read(getattr(module, call.args[0].target).processed_bytes)) for call in calls]


def outside(manager) -> list[str]:
    nodes = manager.exported_program().graph.nodes
    calls = [n for n in nodes if n.op == "call_function" and n.target is not executorch_call_delegate]
    return [n.name for n in calls if not (n.args and getattr(n.args[0], "target", None) is executorch_call_delegate)]


def same(manager, model, *inputs):
    with torch.no_grad():
        found = torch.utils._pytree.tree_leaves(manager.exported_program().module()(*inputs))
        expected = torch.utils._pytree.tree_leaves(model(*inputs))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.register_buffer("bias", torch.arange(8.0), persistent=False)

    def forward(self, x, y):
        h = torch.nn.functional.gelu(self.a(x))
        return self.b(torch.cat([h, y])).view(x.shape[0] + y.shape[0], 2, 4) + (self.bias * 2).view(2, 4)


ROWS = {"x": {0: Dim("rows", max=16)}, "y": {0: Dim("more", min=1, max=16)}}
INPUTS = (torch.randn(3, 8), torch.randn(4, 8))
WHOLE = ["aten.linear.default", "aten.gelu.default"]


def test_accepted_program_is_one_delegate_with_nothing_outside():
    model = Net()
    manager, partitioner = lower(model, INPUTS, FakePredicate(preserve=WHOLE), ROWS)
    (part,) = delegates(manager)
    assert outside(manager) == [] and partitioner.refused == {}
    assert part.histogram()["aten.linear.default"] == 2 and part.histogram()["aten.gelu.default"] == 1
    assert part.histogram()["aten.sym_size.int"] == 2 and part.histogram()["python.add"] == 1
    assert {n: k for n, k in part.inputs().items() if k[0] == "user"} == {"x": ("user", 0), "y": ("user", 1)}
    assert part.ranges("x")[0] == (0, 16) and part.ranges("y")[0] == (1, 16)
    assert part.table["user_input_names"] == ["x", "y"] and part.table["out_spec"]
    assert any(node["origin"] == "a" for node in part.nodes)
    same(manager, model, torch.randn(5, 8), torch.randn(2, 8))


def test_refused_node_splits_the_program_and_the_rest_stays_delegated():
    model = Net()
    manager, partitioner = lower(model, INPUTS, FakePredicate(["aten.cat.default"], preserve=WHOLE), ROWS)
    first, second = delegates(manager)
    assert first.targets() == ["aten.linear.default", "aten.gelu.default"]
    assert [target for target, _ in partitioner.refused.values()] == ["aten.cat.default"]
    assert "aten_cat_default" in outside(manager)
    # Computed where it is used: no delegate passes a constant to another.
    assert second.histogram()["aten.mul.Tensor"] == 1 and len(first.outputs()) == 1
    # Arguments of the second: the result of cat, and the sizes; none has the name of an argument of the model's.
    assert len(second.table["user_input_names"]) == sum(kind == "user" for kind, _ in second.inputs().values())
    same(manager, model, torch.randn(1, 8), torch.randn(2, 8))


@pytest.mark.parametrize("kind", WHOLE)
def test_one_refused_instance_decomposes_its_kind(kind):
    class Three(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x))
            return x

    model, inputs = Three(), (torch.randn(2, 4),)
    second = {"aten.linear.default": "linear_1", "aten.gelu.default": "gelu_1"}[kind]
    predicate = FakePredicate(nodes=[second], preserve=WHOLE)
    manager, _ = lower(model, inputs, predicate)
    found = {target for part in delegates(manager) for target in part.targets()}
    assert kind not in found or kind == "aten.gelu.default"  # gelu is core ATen: ExecuTorch leaves it whole
    assert set(WHOLE) - {kind} <= found
    same(manager, model, *inputs)
    manager.to_executorch()


def test_only_preserved_kinds_that_are_present_are_asked_for():
    predicate = FakePredicate(preserve=[*WHOLE, "aten.silu.default"])
    program = torch.export.export(Net(), INPUTS).run_decompositions({})
    kept, check = GraftPartitioner(predicate=predicate).ops_to_not_decompose(program)
    assert set(kept) == {torch.ops.aten.linear.default, torch.ops.aten.gelu.default} and check is None
    assert len(predicate.read) == 1


def test_after_lowering_nothing_is_kept():
    manager, partitioner = lower(Net(), INPUTS, FakePredicate(preserve=WHOLE))
    assert partitioner.ops_to_not_decompose(manager.exported_program()) == ([], None)


def test_sizes_that_others_need_stay_outside():
    class Sizes(torch.nn.Module):
        def forward(self, x):
            n = x.shape[0] * 2
            y = torch.arange(n) + 1
            z = torch.cat([y, y]).view(2, n)
            return z * 2

    model = Sizes()
    manager, _ = lower(
        model, (torch.randn(3, 2),), FakePredicate(["aten.cat.default"]), {"x": {0: Dim("n", min=1, max=9)}}
    )
    parts = delegates(manager)
    assert all(part.value(out[1:])["kind"] == "tensor" for part in parts for _, _, out in part.outputs())
    assert any(name.startswith("mul") for name in outside(manager))
    assert any(k == "user" and part.value(n)["kind"] == "int_" for part in parts for n, (k, _) in part.inputs().items())
    same(manager, model, torch.randn(4, 2))


def test_numbers_as_results():
    class Numbers(torch.nn.Module):
        def forward(self, x):
            return x.shape[0] * 2 + 1, x + 1

    manager, _ = lower(Numbers(), (torch.randn(3),), FakePredicate(), {"x": {0: Dim("n", max=9)}})
    assert outside(manager) == []
    (part,) = delegates(manager)
    assert {part.value(out[1:])["kind"] for _, _, out in part.outputs()} == {"int_", "tensor"}
    manager.to_executorch()


def test_a_number_alone_is_not_a_result_that_executorch_takes():
    class Number(torch.nn.Module):
        def forward(self, x):
            return x.shape[0] * 2 + 1

    manager, partitioner = lower(Number(), (torch.randn(3),), FakePredicate(), {"x": {0: Dim("n", max=9)}})
    assert delegates(manager) == []
    assert {target for target, _ in partitioner.refused.values()} == {
        "python.add",
        "python.mul",
        "aten.sym_size.int",
    }


def test_a_state_alone_is_a_result():
    class Count(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x):
            self.n.add_(x)
            return x

    manager, _ = lower(Count(), (torch.randn(1),), FakePredicate())
    (part,) = delegates(manager)
    assert [kind for kind, _, _ in part.outputs()] == ["state_mutation"]
    manager.to_executorch()


def test_no_delegate_for_numbers_alone_beside_refused_nodes():
    class Mixed(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x, x]), x.shape[0] + 1

    manager, _ = lower(Mixed(), (torch.randn(3),), FakePredicate(["aten.cat.default"]), {"x": {0: Dim("n", max=9)}})
    assert delegates(manager) == []


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(2))
        self.w = torch.nn.Parameter(torch.randn(2))

    def forward(self, x):
        self.seen.add_(x)
        return torch.cat([self.seen * self.w, x])


def test_a_buffer_that_one_part_reads_and_writes_is_its_state():
    manager, _ = lower(Counter(), (torch.randn(2),), FakePredicate(["aten.cat.default"]))
    (part,) = delegates(manager)
    (state,) = part.program["states"]
    assert state["fqn"] == "seen" and part.program["weights"][state["initial"]]["fqn"] == "seen"
    assert [kind for kind, _, _ in part.outputs()].count("state_mutation") == 1
    assert manager.exported_program().graph_signature.buffers_to_mutate == {}
    manager.to_executorch()


def test_a_buffer_that_others_touch_stays_with_executorch():
    manager, _ = lower(Counter(), (torch.randn(2),), FakePredicate(["aten.add.Tensor"]))
    assert all(not part.program["states"] for part in delegates(manager))
    assert list(manager.exported_program().graph_signature.buffers_to_mutate.values()) == ["seen"]
    with torch.no_grad():
        manager.to_executorch()


def test_package_holds_weights_once_and_the_session_marker():
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(32, 16)
            self.head = torch.nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(torch.cat([self.embed(ids), self.embed(ids)]))

    model = Tied()
    predicate = FakePredicate(["aten.cat.default"], preserve=["aten.linear.default", "aten.embedding.default"])
    manager, _ = lower(model, (torch.tensor([1, 2]),), predicate)
    assert len(delegates(manager)) == 2
    package = manager.to_executorch().buffer
    assert package.count(model.embed.weight.detach().numpy().tobytes()) == 1
    data = deserialize_pte_binary(package).named_data
    assert SESSION_KEY in data.pte_data
    weights = [data.buffers[entry.buffer_index] for key, entry in data.pte_data.items() if key != SESSION_KEY]
    assert {bytes(w) for w in weights} == {model.embed.weight.detach().numpy().tobytes()}
    assert package.index(model.embed.weight.detach().numpy().tobytes()) % 64 == 0


@pytest.mark.parametrize("seed", range(50))
def test_parts_never_form_a_circle(seed):
    pick = random.Random(seed)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("w")]
    refused = {}
    for _ in range(60):
        inputs = tuple(pick.sample(nodes, min(len(nodes), pick.randint(1, 3))))
        node = graph.call_function(torch.ops.aten.cat.default, (inputs,))
        node.meta["val"] = torch.ones(1)
        if pick.random() < 0.3:
            refused[node.name] = None
        nodes.append(node)
    graph.output(tuple(n for n in nodes if not n.users))
    tags = _assign(graph, refused, {"x"})
    assert {n.name for n in tags} == {n.name for n in nodes if n.op == "call_function"} - refused.keys()
    # Contract each part to one vertex; what is left must have a topological order.
    edges: dict[object, set[object]] = {}
    for node in nodes:
        own = tags.get(node, node)
        before = edges.setdefault(own, set())
        before.update(v for n in node.all_input_nodes if (v := tags.get(n, n)) != own)
    while edges:
        free = [vertex for vertex, before in edges.items() if not before & edges.keys()]
        assert free, "a circle"
        for vertex in free:
            del edges[vertex]
