"""Models that torchao and PT2E quantized, on graft against eager PyTorch on the same quantized model.

Weight-only: products of f32 with the same weights, so the difference is the order of sums. Dynamic and static: both sides
multiply the same integers; what differs is the order in which groups of them are scaled and added. The next layer rounds
that to integers again, and where a value lies on the boundary of two, one side may take the other integer: a whole step
of that layer's input. Single layers are therefore held to LIMIT, chains to LIMIT but for few results, which may be off by
what such a step is worth. In a language model attention carries a step to all tokens behind it: there the measure is how
far eager PyTorch is from itself when its embeddings change in their last bits.
"""

import copy
import warnings

import pytest
import torch
import transformers
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn
from torch.export import Dim
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import graft
from quick import quick

LIMIT = 1e-5  # relative to the largest value
STEP = 2e-2  # the same, for results with an integer that was rounded the other way


def _int4(group, **options):
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(group), **options)


def _dynamic(dtype, granularity, **options):
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=granularity, **options)


# Name -> configuration, bits of a weight, elements that share a scale (None: a row), whether zero points are read too,
# and whether activations are integers.
CONFIGS = {
    "int8": (Int8WeightOnlyConfig(), 8, None, False, False),
    "int4 by 32": (_int4(32), 4, 32, True, False),
    "int4 by 128": (_int4(128), 4, 128, True, False),
    "int4 by 32 with zeros": (_int4(32, mapping_type=MappingType.ASYMMETRIC), 4, 32, True, False),
    "dynamic int8": (Int8DynamicActivationInt8WeightConfig(), 8, None, False, True),
    "dynamic int4 by 32": (_dynamic(torch.int4, PerGroup(32)), 4, 32, True, True),
    "dynamic int4 by 128": (_dynamic(torch.int4, PerGroup(128)), 4, 128, True, True),
    "dynamic intx 8": (_dynamic(torch.int8, PerAxis(0)), 8, None, True, True),
    "dynamic int4 with zeros": (
        _dynamic(torch.int4, PerGroup(32), weight_mapping_type=MappingType.ASYMMETRIC),
        4,
        32,
        True,
        True,
    ),
}
CONFIG = pytest.mark.parametrize("name", CONFIGS)


def _quantized(model, name):
    quantize_(model, CONFIGS[name][0])
    return model.eval()


def _mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 384, bias=False), nn.ReLU(), nn.Linear(384, 40))


def _error(found, expected):
    assert found.shape == expected.shape and found.isfinite().all()
    return (found - expected).abs() / expected.abs().max()


def _check(found, expected, *, chain=False):
    error = _error(found, expected)
    if not chain:
        assert error.max() <= LIMIT
        return
    assert error.max() <= STEP
    assert (error > LIMIT).float().mean() <= 0.25


def _operators(model):
    counts = model.describe()["methods"][0]["ops"]
    return [op for op, count in counts.items() for _ in range(count)]


def _resident(model):
    """Bytes of weights and what was made of them that runs read."""
    stats = model.stats()
    assert stats["copied_bytes"] == stats["converted_bytes"] == stats["packed_bytes"] == 0
    return stats["weight_bytes"] - stats["released_bytes"] + stats["constant_bytes"]


def _quantized_bytes(model, name):
    """Of all parameters: weights in their bits, scales as f32, zeros as bytes where the program has them."""
    _, bits, group, zeros, _ = CONFIGS[name]
    total = 0
    for parameter in model.parameters():
        if not hasattr(parameter, "qdata"):
            total += parameter.numel() * 4
            continue
        rows, depth = parameter.shape
        groups = rows * (depth // (group or depth))
        total += rows * depth * bits // 8 + groups * (5 if zeros else 4)
    return total


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torchao")


def _export(model, folder, example, dims):
    return graft.export(model, (example,), dynamic_shapes=(dims,), path=folder / "model.pte")


@CONFIG
@pytest.mark.parametrize("bias", quick([True], [False, True]))
def test_one_layer(folder, name, bias):
    torch.manual_seed(2)
    model = _quantized(nn.Sequential(nn.Linear(256, 72, bias=bias)), name)
    package = graft.load(_export(model, folder, torch.randn(5, 256), {0: Dim("rows", min=1, max=100)}))
    for rows in (1, 7, 65):
        x = torch.randn(rows, 256)
        with torch.no_grad():
            _check(package(x), model(x))
    # The package holds the layer and the quantization of its input; one addition where torchao adds the bias itself.
    ops = [op for op in _operators(package) if not op.startswith(("aten.view", "aten.sym_size"))]
    assert ops.count("graft.quantized_linear") == 1
    integers = CONFIGS[name][4]
    allowed = {"graft.quantized_linear", "aten.add.Tensor"}
    if integers:
        allowed |= {"torchao.choose_qparams_affine.default", "torchao.quantize_affine.default"}
    assert set(ops) <= allowed


@CONFIG
def test_mlp_with_any_batch(folder, name):
    model = _quantized(_mlp(), name)
    path = _export(model, folder, torch.randn(2, 5, 128), {0: Dim("batch", min=1, max=64)})
    package = graft.load(path)
    kinds = _operators(package)
    assert kinds.count("graft.quantized_linear") == 3 and "torchao.dequantize_affine.default" not in kinds
    assert _resident(package) == _quantized_bytes(model, name)
    for batch in (1, 2, 7, 40):
        x = torch.randn(batch, 5, 128)
        with torch.no_grad():
            _check(package(x), model(x), chain=CONFIGS[name][4])


# Export through ExecuTorch's own flow; the graph is the one of test_mlp_with_any_batch for each configuration.
@pytest.mark.parametrize("name", quick(["int4 by 32", "dynamic int8", "dynamic int4 with zeros"], CONFIGS))
def test_partitioner_and_executorch(folder, name):
    model = _quantized(_mlp(), name)
    x = torch.randn(3, 128)
    with torch.no_grad():
        program = to_edge_transform_and_lower(
            torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},)),
            partitioner=[graft.GraftPartitioner()],
            compile_config=EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False),
        ).to_executorch()
    path = folder / "executorch.pte"
    path.write_bytes(program.buffer)
    method = Runtime.get().load_program(str(path)).load_method("forward")
    package = graft.load(path)
    for batch in (3, 1, 33):
        x = torch.randn(batch, 128)
        with torch.no_grad():
            _check(method.execute((x,))[0], model(x), chain=CONFIGS[name][4])
        assert torch.equal(package(x), method.execute((x,))[0])


def test_pt2_file(folder):
    model = _quantized(_mlp(), "int4 by 32")
    x = torch.randn(3, 128)
    torch.export.save(torch.export.export(model, (x,)).run_decompositions({}), folder / "model.pt2")
    package = graft.load(graft.export(str(folder / "model.pt2"), path=folder / "model.pte"))
    assert _operators(package).count("graft.quantized_linear") == 3
    with torch.no_grad():
        _check(package(x), model(x))


def test_a_weight_of_another_range_is_refused(folder):
    """A weight that says it has 4 bits and does not."""
    model = _quantized(nn.Sequential(nn.Linear(64, 8)), "int4 by 32")
    model[0].weight.qdata[3, 5] = 9
    path = _export(model, folder, torch.randn(1, 64), None)
    with pytest.raises(graft.InvalidProgram, match="4 bits has the value 9"):
        graft.load(path)


# --- language models ---


def _llama():
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=160,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _sensitivity(model, ids, expected):
    """The largest difference that noise of 1e-6 in the embeddings makes."""
    embedded = model.get_input_embeddings()(ids)
    worst = 0.0
    for seed in range(4):
        noise = torch.randn(embedded.shape, generator=torch.Generator().manual_seed(seed)) * 1e-6
        with torch.no_grad():
            found = model(inputs_embeds=embedded * (1 + noise)).logits
        worst = max(worst, float(_error(found, expected).max()))
    return worst


@pytest.mark.parametrize(
    "name", quick(["int4 by 32", "dynamic int8"], ["int8", "int4 by 32", "int4 by 128", "dynamic int8", "dynamic int4 by 32"])
)
def test_language_model(folder, name):
    model = _quantized(_llama(), name)
    path = graft.export_llm(model, folder / "llm.pte")
    package = graft.load(path, kv_rows=1, kv_length=64, kv_dtype="f32")
    assert _operators(package).count("graft.quantized_linear") == 2 * 7 + 1
    table = model.get_input_embeddings().weight.numel() * 4
    others = _quantized_bytes(model, name)
    # The cosines and sines of rotary embeddings are a further constant.
    assert table < others <= _resident(package) <= others + 1024
    ids = torch.randint(3, 160, (1, 40), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(ids).logits
    limit = max(LIMIT, 3 * _sensitivity(model, ids, expected)) if CONFIGS[name][4] else LIMIT
    assert limit <= 0.1
    rows = torch.arange(40)[None]
    prompt, steps = slice(0, 33), [slice(i, i + 1) for i in range(33, 40)]
    for part in [prompt, *steps]:
        at = rows[:, part].contiguous()
        found = package.step(ids[:, part].contiguous(), at, at, torch.arange(at.shape[1]))
        assert _error(found, expected[:, part]).max() <= limit
    assert list(model.state_dict()) == list(_quantized(_llama(), name).state_dict())  # the caller's model is unchanged


# --- PT2E static ---


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16, stride=2, padding=1)
        self.dilated = nn.Conv2d(16, 40, (3, 1), dilation=2, bias=False)
        self.head = nn.Linear(40, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.depthwise(x))
        return self.head(torch.relu(self.dilated(x)).mean((2, 3)))


def _x86():
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    return quantizer


def _xnnpack(**options):
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**options))


QUANTIZERS = {
    "x86": _x86,
    "xnnpack per channel": lambda: _xnnpack(is_per_channel=True),
    "xnnpack per tensor": lambda: _xnnpack(is_per_channel=False),
    "xnnpack dynamic": lambda: _xnnpack(is_per_channel=True, is_dynamic=True),
}


def _pt2e(model, quantizer, example, dims):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(model.eval(), (example,), dynamic_shapes=(dims,)).module(), quantizer)
        for _ in range(3):
            prepared(torch.randn_like(example))
        return convert_pt2e(prepared)


def _static_bytes(model):
    """Of all matrices and kernels as bytes, with a scale and a zero (i64) for each channel, and biases."""
    weights = [m for m in model.modules() if hasattr(m, "weight")]
    sizes = [m.weight.numel() + m.weight.shape[0] * 12 + (0 if m.bias is None else m.bias.numel() * 4) for m in weights]
    return sum(sizes)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_static_convolutions(folder, name):
    x, dims = torch.randn(2, 3, 13, 10), {0: Dim("batch", min=1, max=64)}
    original = Net()
    model = _pt2e(copy.deepcopy(original), QUANTIZERS[name](), x, dims)
    package = graft.load(_export(model, folder, x, dims))
    kinds = _operators(package)
    if name != "xnnpack dynamic":  # convolutions of that kind are quantized only where one output channel is one group
        assert kinds.count("graft.quantized_conv") + kinds.count("graft.packed_quantized_conv") == 3
        # Packed weights hold three numbers per channel, and a few channels do not fill a panel.
        assert _resident(package) <= 1.5 * _static_bytes(original)
    assert kinds.count("graft.quantized_linear") == 1
    assert "aten.convolution.default" not in kinds or name == "xnnpack dynamic"
    for batch in (1, 2, 17):
        x = torch.randn(batch, 3, 13, 10) * 2
        with torch.no_grad():
            _check(package(x), model(x), chain=True)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_static_linear(folder, name):
    x, dims = torch.randn(2, 5, 128), {0: Dim("batch", min=1, max=64)}
    model = _pt2e(_mlp(), QUANTIZERS[name](), x, dims)
    package = graft.load(_export(model, folder, x, dims))
    assert _operators(package).count("graft.quantized_linear") == 3
    assert "aten.linear.default" not in _operators(package)
    for batch in (1, 2, 17):
        x = torch.randn(batch, 5, 128) * 2
        with torch.no_grad():
            _check(package(x), model(x), chain=True)


def test_one_static_convolution(folder):
    x = torch.randn(2, 3, 9, 11)
    model = _pt2e(nn.Sequential(nn.Conv2d(3, 7, 3, stride=2, padding=2)), _x86(), x, None)
    with torch.no_grad():
        _check(graft.load(_export(model, folder, x, None))(x), model(x))
