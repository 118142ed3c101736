"""Models on a device: `make vulkan-test` (without a GPU on lavapipe, a driver that computes on the CPU), `make cuda-test`."""

from __future__ import annotations

import copy
import gc
import os

import pytest
import torch
import transformers
from torch import nn

import architectures
import device_nets
import graft
import llm_models
from device_nets import Decoder, Encoder, differ, padded_call
from test_data import networks

DEVICE = os.environ.get("GRAFT_DEVICE_TEST", "")
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # relative to the largest value

ON_CPU = any("llvmpipe" in str(device) for device in graft.devices())  # lavapipe
pytestmark = pytest.mark.skipif(not DEVICE, reason="GRAFT_DEVICE_TEST names no device: `make vulkan-test` runs these")


def token_ids(batch: int, length: int) -> torch.Tensor:
    return device_nets.token_ids(batch, length, 1000)


LENGTH = torch.export.Dim("length", min=2, max=256)


def minilm(layers: int):
    return Encoder(1000, 384, layers, 12), padded_call(33, 20, 1000), ({1: LENGTH}, {1: LENGTH})


def minilm_6():
    return minilm(6)


def minilm_12():
    return minilm(12)


def qwen3():
    return Decoder(1000, 128, 384, 28, 64), (token_ids(1, 40),), ({1: LENGTH},)


def mobilenet():
    image = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    return networks().MobileNetV2(), (image,), None


def settle(module: nn.Module) -> nn.Module:
    """Statistics of batch norms as training leaves them: a network with those it begins with forgets its input."""
    generator = torch.Generator().manual_seed(5)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.copy_(torch.randn(part.num_features, generator=generator) * 0.1)
            part.running_var.copy_(torch.rand(part.num_features, generator=generator) * 0.5 + 0.75)
    return module.eval()


@pytest.fixture(scope="module", params=[minilm_6, minilm_12, mobilenet, qwen3], ids=lambda make: make.__name__)
def case(request, tmp_path_factory):
    torch.manual_seed(3)
    module, args, dynamic = request.param()
    path = tmp_path_factory.mktemp("device") / "net.pte"
    graft.export(settle(module), args, dynamic_shapes=dynamic, path=path)
    with torch.no_grad():
        return request.param.__name__, path, args, module(*args), module


# Launches in a hundred that run there, at least: 11 of MiniLM's are work on ids and masks. Uploads and downloads of a run.
SHARES = {"minilm_6": 95, "minilm_12": 95, "mobilenet": 100, "qwen3": 95}
TRANSFERS = {"minilm_6": (1, 1), "minilm_12": (1, 1), "mobilenet": (1, 1), "qwen3": (1, 1)}


def test_models_run_there(case):
    name, path, args, eager, _ = case
    model = graft.load(path, device=DEVICE)
    for _ in range(2):
        assert differ(model(*args), eager) <= TOLERANCE[eager.dtype]
    counters = model.counters()
    (plan,) = model.describe()["methods"][0]["plans"]
    there, here = (plan["devices"].get(side, {}) for side in (DEVICE, "cpu"))
    launches = sum(there.values()) + sum(here.values())
    ops = len(there) + len(here)
    print(
        f"\n{name}: on the device {sum(there.values())} of {launches} launches, {len(there)} of {ops} ops; a run "
        f"uploads {plan['upload_bytes']} bytes in {plan['uploads']}, downloads {plan['download_bytes']} in "
        f"{plan['downloads']}; on the CPU: {here}"
    )
    assert sum(there.values()) * 100 >= SHARES[name] * launches, here
    assert (plan["uploads"], plan["downloads"]) == TRANSFERS[name]
    assert (counters["uploads"], counters["downloads"]) == (2 * plan["uploads"], 2 * plan["downloads"])
    assert counters["graphs_built"] == 1


def test_layers_that_fit_are_there(tmp_path, monkeypatch):
    torch.manual_seed(3)
    net, ids, path = Decoder(1000, 256, 768, 4, 64).eval(), token_ids(1, 40), tmp_path / "net.pte"
    graft.export(net, (ids,), path=path)
    with torch.no_grad():
        eager = net(ids)
    gc.collect()  # the limit is on all programs of the process
    monkeypatch.setenv("GRAFT_DEVICE_MEMORY", "8M")  # a layer has 3.1 MB
    limited = graft.load(path, device=DEVICE)
    assert differ(limited(ids), eager) <= TOLERANCE[eager.dtype]
    monkeypatch.delenv("GRAFT_DEVICE_MEMORY")
    named = graft.load(path, device=f"{DEVICE}:2,cpu")
    assert differ(named(ids), eager) <= TOLERANCE[eager.dtype]
    for model in (limited, named):
        weights = model.describe()["weights"]
        assert weights["device_left_out"] > 0 and 6e6 < weights["device_bytes"] < 7e6
        (plan,) = model.describe()["methods"][0]["plans"]
        assert "ggml MUL_MAT" in plan["devices"][DEVICE] and "graft matmul" in plan["devices"]["cpu"]
        assert model.counters()["device_losses"] == 0


def test_other_lengths(case):
    name, path, args, _, module = case
    if name == "mobilenet":
        pytest.skip("one size of pictures")
    model = graft.load(path, device=DEVICE)
    for length in (2, 7, 65):
        ids = token_ids(args[0].shape[0], length)
        more = (torch.ones_like(ids),) * (len(args) - 1)
        with torch.no_grad():
            assert differ(model(ids, *more), module(ids, *more)) <= TOLERANCE[torch.float32]


def language_model(**config: int) -> transformers.Qwen3ForCausalLM:
    torch.manual_seed(3)
    sizes = dict(
        vocab_size=1000, hidden_size=128, intermediate_size=384, num_hidden_layers=28, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes | config)).eval()


def step(model, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Logits of all tokens, which are at positions from `first` on."""
    positions = torch.arange(first, first + ids.shape[1])[None].expand(ids.shape[0], -1)
    return model.step(ids, positions, positions, torch.arange(ids.shape[1]))


def test_cached_steps(tmp_path):
    """Keys and values stay there: a step brings token and positions in one transfer, and takes the logits in one."""
    net, ids, path = language_model(), token_ids(1, 60), tmp_path / "llm.pte"
    graft.export_llm(net, path)
    with torch.no_grad():
        eager = net(ids).logits
    model = graft.load(path, device=DEVICE)
    assert differ(step(model, ids[:, :40], 0), eager[:, :40]) <= TOLERANCE[torch.float32]
    before = model.counters()
    for t in range(40, 60):
        logits = step(model, ids[:, t : t + 1], t)
        assert differ(logits, eager[:, t : t + 1]) <= TOLERANCE[torch.float32]
    after = model.counters()
    moved = {name: after[name] - before[name] for name in after}
    assert (moved["uploads"], moved["downloads"], moved["device_graphs"], moved["graphs_built"]) == (20, 20, 20, 1)
    assert moved["download_bytes"] == 20 * 1000 * 4 and moved["upload_bytes"] < 20 * 4096
    assert after["state_uploads"] == after["state_downloads"] == 0
    (plan, _) = next(method for method in model.describe()["methods"] if method["name"] == "step")["plans"]
    there, here = (sum(plan["devices"][side].values()) for side in (DEVICE, "cpu"))
    print(f"\na cached step of Qwen3's shape: on the device {there} of {there + here} launches; a step uploads "
          f"{plan['upload_bytes']} bytes in {plan['uploads']}, downloads {plan['download_bytes']} in {plan['downloads']}")  # fmt: skip
    assert plan["kv"]["held"] == 255 and there * 100 >= 95 * (there + here)


def test_layers_keep_their_caches(tmp_path):
    net, ids, path = language_model(num_hidden_layers=4), token_ids(1, 40), tmp_path / "llm.pte"
    graft.export_llm(net, path)
    with torch.no_grad():
        eager = net(ids).logits
    model = graft.load(path, device=f"{DEVICE}:3,cpu")
    assert differ(step(model, ids[:, :33], 0), eager[:, :33]) <= TOLERANCE[torch.float32]
    assert differ(step(model, ids[:, 33:34], 33), eager[:, 33:34]) <= TOLERANCE[torch.float32]
    (plan, _) = next(method for method in model.describe()["methods"] if method["name"] == "step")["plans"]
    there = plan["devices"][DEVICE]
    # CUDA's attention would round f32 caches to f16: it gets products.
    assert there.get("ggml FLASH_ATTN_EXT", 0) + there.get("ggml SOFT_MAX", 0) == 3 and plan["devices"]["cpu"]["graft cached_attention"] == 1
    counters = model.counters()
    assert counters["state_uploads"] == counters["state_downloads"] == 0


# A sample; GRAFT_DEVICE_FAMILIES=all takes all of them.
FAMILIES = ("qwen3", "mistral", "gemma2", "gpt_oss", "phi3", "qwen3_moe")


@pytest.mark.parametrize("small", [pytest.param(m, id=m.name) for m in (*llm_models.MODELS, *architectures.MORE)])
def test_generate(small):
    """Another caller's code unchanged, token for token as eager PyTorch: a batch that is padded on the left."""
    if small.name not in FAMILIES and os.environ.get("GRAFT_DEVICE_FAMILIES") != "all":
        pytest.skip("GRAFT_DEVICE_FAMILIES=all takes all families")
    if small.name == "gemma4_text" and ON_CPU:
        pytest.skip("lavapipe compiles ggml's attention to heads of 512 elements for more than three minutes")
    net = small.make()
    compiled = graft.compile(copy.deepcopy(net), device=DEVICE)
    ids, mask, *_ = llm_models.left_padded(2, 20, (0, 7))
    options = dict(
        attention_mask=mask, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    expected, found = net.generate(ids, **options), compiled.generate(ids, **options)
    assert torch.equal(found.sequences, expected.sequences)
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        assert differ(ours, theirs) <= 2e-5
    assert compiled.graft.route == "fast"


def in_q8_0(weight: torch.Tensor) -> torch.Tensor:
    blocks = weight.reshape(-1, 32)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    codes = torch.where(scale > 0, blocks / scale, 0).round()
    return (codes * scale.half().float()).reshape(weight.shape)


def test_q8_0_weights_are_read_in_blocks(tmp_path):
    net, ids, path = language_model(num_hidden_layers=3), token_ids(1, 40), tmp_path / "llm.pte"
    with torch.no_grad():
        for weight in (p for p in net.parameters() if p.dim() == 2):
            weight.copy_(in_q8_0(weight))
        eager = net(ids).logits
    graft.export_llm(net, path, quantize="q8_0")
    model = graft.load(path, device=DEVICE)
    # ggml rounds what is multiplied by blocks to 8 bits on GPUs with integer dot products.
    tolerance = TOLERANCE[torch.float32] if ON_CPU else 5e-3
    assert differ(step(model, ids[:, :33], 0), eager[:, :33]) <= tolerance
    assert differ(step(model, ids[:, 33:34], 33), eager[:, 33:34]) <= tolerance
    bytes_there = model.describe()["weights"]["device_bytes"]
    elements = sum(p.numel() for p in net.parameters())
    assert bytes_there < elements * 1.1


@pytest.mark.parametrize("name", ["qwen3_next", "mamba", "lfm2", "recurrent_gemma", "rwkv"])
def test_recurrent_layers(name, tmp_path):
    """Their states stay with the CPU, which runs the recurrences between graphs of the device."""
    model = llm_models.BY_NAME[name].make()
    graft.export_llm(model, tmp_path / "m.pte")
    package = graft.load(tmp_path / "m.pte", device=DEVICE, kv_rows=2, kv_length=64)
    ids = torch.randint(3, llm_models.VOCAB, (1, 30), generator=torch.Generator().manual_seed(1))
    parts = []
    for begin, end in ((0, 7), (7, 8), (8, 30)):
        rows = torch.arange(begin, end)[None]
        parts.append(package.step(ids[:, begin:end].contiguous(), rows, rows, torch.arange(end - begin)))
    with torch.no_grad():
        expected = model(ids).logits
    assert (torch.cat(parts, 1) - expected).abs().max() <= 5e-5 * expected.abs().max()


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0", "q4_0"])
def test_types_of_the_cache(kv_type, tmp_path):
    net, ids, path = language_model(num_hidden_layers=3), token_ids(1, 40), tmp_path / "llm.pte"
    graft.export_llm(net, path)
    results = []
    for device in ("cpu", DEVICE):
        model = graft.load(path, device=device, kv_dtype=kv_type)
        results.append(torch.cat([step(model, ids[:, :33], 0), step(model, ids[:, 33:], 33)], 1))
    assert differ(results[1], results[0]) <= {"f16": 5e-4, "bf16": 5e-3, "q8_0": 5e-3, "q4_0": 2e-2}[kv_type]
    assert model.counters()["state_downloads"] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, tmp_path):
    torch.manual_seed(3)
    parts = nn.Linear(256, 512), nn.GELU(approximate="tanh"), nn.LayerNorm(512), nn.Linear(512, 64)
    net = nn.Sequential(*parts).to(dtype)
    x = torch.randn(40, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    path = tmp_path / "net.pte"
    graft.export(net.eval(), (x,), path=path)
    with torch.no_grad():
        expected = net(x)
    model = graft.load(path, device=DEVICE)
    assert differ(model(x), expected) <= TOLERANCE[dtype]
    (plan,) = model.describe()["methods"][0]["plans"]
    assert plan["devices"][DEVICE]["ggml MUL_MAT"] == 2


# Magnitudes beyond f16, which ggml's products would round to by default.
def test_f32_products_are_f32(tmp_path):
    torch.manual_seed(3)
    net = nn.Linear(128, 96)
    x = 1e6 * torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    path = tmp_path / "net.pte"
    graft.export(net.eval(), (x,), path=path)
    with torch.no_grad():
        assert differ(graft.load(path, device=DEVICE)(x), net(x)) <= TOLERANCE[torch.float32]


def test_too_little_memory_is_a_typed_error(case, monkeypatch):
    _, path, args, eager, _ = case
    model = graft.load(path, device=DEVICE)  # its layers are to be there
    monkeypatch.setenv("GRAFT_DEVICE_MEMORY", "64K")
    with pytest.raises(graft.OutOfMemory, match=rf"{DEVICE}.*GRAFT_DEVICE_MEMORY allows 65536 bytes"):
        model(*args)
    assert differ(model(*args), eager) <= TOLERANCE[eager.dtype]
    assert model.counters()["device_losses"] == 1
