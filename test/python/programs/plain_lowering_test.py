"""`fast_kernels=False`, the plain ggml lowering, against graft's kernels; and what `graft inspect` says of both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from load_test import Encoder
from torch import nn
from torch.export import Dim

import graft


def linear_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 33, bias=False), nn.SiLU(), nn.Linear(33, 10))


class Convolutions(nn.Module):
    """The parts of MobileNet: strided, depthwise and pointwise convolutions with norms and clamped activations."""

    def __init__(self) -> None:
        super().__init__()

        def part(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
            conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=groups > 1)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())

        self.parts = nn.Sequential(
            part(3, 16, 3, stride=2), part(16, 16, 3, groups=16), part(16, 24, 1), part(24, 24, 3, 2, 24), part(24, 40, 1)
        )
        self.head = nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.parts(x).mean((2, 3)))


def qwen3() -> transformers.PreTrainedModel:
    config = transformers.Qwen3Config(
        vocab_size=199, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        intermediate_size=512, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)


def kernels(model: graft.Model) -> dict[str, int]:
    return model.describe()["methods"][0]["plans"][0]["kernels"]


def reasons(model: graft.Model) -> dict[str, set[str]]:
    """By kernel."""
    out: dict[str, set[str]] = {}
    for node in model.describe()["methods"][0]["plans"][0]["nodes"]:
        for launch in node["launches"]:
            out.setdefault(launch["kernel"], set()).add(launch["explanation"])
    return out


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("make", "args", "wanted"),
    [
        (linear_net, lambda: (torch.randn(9, 64),), {"ggml MUL_MAT", "ggml ADD"}),
        (
            Encoder,
            lambda: (torch.randint(0, 100, (2, 20)), torch.ones(2, 20, dtype=torch.long)),
            {"ggml MUL_MAT", "ggml NORM", "ggml SOFT_MAX"},
        ),
        (Convolutions, lambda: (torch.randn(2, 3, 32, 32),), {"ggml MUL_MAT", "ggml CONV_2D", "ggml CONV_2D_DW"}),
    ],
    ids=["linear", "encoder", "convolutions"],
)
def test_f32_models_agree(make, args, wanted, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = make().eval(), args()
    path = graft.export(model, inputs, path=tmp_path / "m.pte")
    fast, plain = graft.load(path, threads=2), graft.load(path, threads=2, options=graft.LoadOptions(fast_kernels=False))
    with torch.no_grad():
        expected = model(*inputs)
    a, b = fast(*inputs), plain(*inputs)
    assert far(a, expected) < 2e-5 and far(b, expected) < 2e-5 and far(a, b) < 2e-5
    torch.testing.assert_close(plain(*inputs), b, rtol=0, atol=0)  # and again
    assert wanted <= kernels(plain).keys()
    assert not any(kernel.startswith("ggml ") for kernel in kernels(fast))


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 2e-5), ("bf16", 2e-2), ("q8_0", 2e-2), ("q4_k", 5e-2)])
def test_language_models_agree(kind: str, tolerance: float, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = qwen3()
    path = graft.export_llm(model, tmp_path / "m.pte", quantize=None if kind == "f32" else kind)
    fast, plain = (
        graft.load(path, threads=2, kv_length=64, options=graft.LoadOptions(fast_kernels=f)) for f in (True, False)
    )
    ids = torch.randint(0, 199, (1, 24))
    for first, last in ((0, 20), (20, 21), (21, 24)):  # a prompt, one token, some more
        positions = torch.arange(first, last)[None]
        inputs = (ids[:, first:last], positions, positions, torch.arange(last - first))
        a, b = fast.step(*inputs), plain.step(*inputs)
        with torch.no_grad():
            expected = model(ids[:, :last]).logits[:, first:]
        assert far(a, b) < tolerance, (first, far(a, b))
        if kind == "f32":
            assert far(a, expected) < 2e-5 and far(b, expected) < 2e-5
    assert "ggml MUL_MAT" in kernels(plain) and "ggml RMS_NORM" in kernels(plain)
    why = reasons(fast)
    if kind.startswith("q"):
        name = {"q4_k": "q4_K"}.get(kind, kind)
        assert any(re.match(f"weight {name} packed for a(vx|mx)", text) for text in why["graft block_matmul"]), why
        assert f"plain lowering: ggml reads {name} as it is stored" in reasons(plain)["ggml MUL_MAT"]
        assert fast.stats()["packed_count"] > 0 and plain.stats()["packed_count"] == 0
    elif kind == "f32":
        assert any(text.startswith("f32, weights packed at load") for text in why["graft packed_linear"]), why
    else:
        assert any(text.startswith("f32 x " + kind) for text in why["graft matmul"]), why
    # ggml has no op for a KV cache.
    assert all("ggml has no op" in text for text in reasons(plain)["graft cached_attention"])


def test_refusals_are_named(tmp_path: Path) -> None:
    """Where ggml's op does not take the node, the kernel that does says what was wrong with ggml's."""
    model = nn.Linear(8, 4).double()
    path = graft.export(model, (torch.randn(3, 8, dtype=torch.float64),), path=tmp_path / "m.pte")
    plain = graft.load(path, options=graft.LoadOptions(fast_kernels=False))
    plain(torch.randn(3, 8, dtype=torch.float64))
    (why,) = reasons(plain)["graft plain_matmul"]
    assert why.startswith("f64 has no vector products; ggml's MUL_MAT takes f32, f16 and bf16"), why


def test_command_line(tmp_path: Path) -> None:
    binary = os.environ.get("GRAFT_CLI") or Path(sys.executable).parent / "graft"
    if not Path(binary).exists():
        pytest.skip(f"no command line at {binary}: make build")

    def call(*args: object) -> str:
        done = subprocess.run([str(binary), *map(str, args)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shapes = {"x": {0: Dim("n", min=1, max=64)}}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    path = graft.export(Net().eval(), (torch.randn(3, 64),), path=tmp_path / "m.pte", dynamic_shapes=shapes, quantize="q8_0")
    shape = ("--shape", "x=5,64")
    assert re.search("weight q8_0 packed for a(vx|mx)", call("inspect", path, *shape))
    said = call("inspect", path, *shape, "--no-fast-kernels", "--plan")
    assert "ggml MUL_MAT" in said and "plain lowering: ggml reads q8_0 as it is stored" in said
    nodes = json.loads(call("inspect", path, *shape, "--json"))["methods"][0]["plans"][0]["nodes"]
    assert all(launch["explanation"] for node in nodes for launch in node["launches"])


def test_sizes_of_the_cache_have_their_own_section(tmp_path: Path) -> None:
    binary = os.environ.get("GRAFT_CLI") or Path(sys.executable).parent / "graft"
    if not Path(binary).exists():
        pytest.skip(f"no command line at {binary}: make build")
    path = graft.export_llm(qwen3(), tmp_path / "m.pte")
    sizes = ["--shape=input_ids=1,3", "--shape=position_ids=1,3", "--shape=cache_position=1,3", "--shape=logits_to_keep=1"]
    done = subprocess.run([str(binary), "inspect", str(path), "--method", "step", *sizes], capture_output=True, text=True, timeout=120)
    assert "plan for the sizes [1,3,1,3,1,3,1]: " in done.stdout, done.stderr
    assert "cache of keys and values" in done.stdout
    model = graft.load(path, kv_length=64, kv_rows=2, kv_dtype="f16")
    ids = torch.zeros(1, 1, dtype=torch.long)
    model.step(ids, ids, ids, ids[0])
    plan = next(m for m in model.describe()["methods"] if m["name"] == "step")["plans"][0]
    assert plan["sizes"] == [1, 1, 1, 1, 1, 1, 1]
    assert plan["kv"] == {"rows": 2, "length": 64, "type": "f16", "window_slack": 512, "encoder_length": 4096}
