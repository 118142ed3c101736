"""torch.set_float32_matmul_precision and --matmul-precision: "medium" rounds products of f32 to bf16 where the CPU can
multiply it, and nothing else does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from plain_lowering_test import far, linear_net, qwen3, reasons
from torch import nn
from torch.export import Dim

import graft

IN_BF16 = "products in bf16"


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def in_bf16(model: graft.Model) -> bool:
    return any(IN_BF16 in text for texts in reasons(model).values() for text in texts)


class Rounded(nn.Module):
    """A linear layer whose operands are rounded to bf16, with sums in f32."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = (t.bfloat16().double() for t in (x, self.layer.weight))
        bias = None if self.layer.bias is None else self.layer.bias.double()
        return nn.functional.linear(x, weight, bias).float()


@pytest.mark.parametrize("stored", ["f32", "bf16"])
def test_medium_rounds_operands_and_highest_does_not(stored: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = linear_net().eval().requires_grad_(False)
    if stored == "bf16":
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(layer.weight.bfloat16())
    x = torch.randn(30, 64)
    program = torch.export.export(net, (x,), dynamic_shapes={"input": {0: Dim("n", min=1, max=64)}})
    path = graft.export(program, path=tmp_path / "m.pte", quantize=None if stored == "f32" else stored)
    rounded = nn.Sequential(*(Rounded(layer) if isinstance(layer, nn.Linear) else layer for layer in net))
    exact = net(x)  # before eager PyTorch rounds too, which it does where the CPU has AMX
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        model = graft.load(path)
        found = model(x)
        if in_bf16(model):
            assert precision == "medium"
            assert far(found, rounded(x)) < 1e-3  # a sum next to a rounding boundary moves by one step of bf16
            assert far(found, exact) > 1e-4
        else:
            assert far(found, exact) < 1e-5
        assert far(model(x[:8]), exact[:8]) < 1e-5  # few rows
    torch.set_float32_matmul_precision("highest")


def test_language_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = qwen3()
    path = graft.export_llm(model, tmp_path / "m.pte", quantize="bf16")
    ids, positions = torch.randint(0, 199, (1, 24)), torch.arange(24)[None]
    exact = graft.load(path, kv_length=64).step(ids, positions, positions, torch.arange(24))
    torch.set_float32_matmul_precision("medium")
    medium = graft.load(path, kv_length=64)
    found = medium.step(ids, positions, positions, torch.arange(24))
    assert 0 < far(found, exact) < 1e-2 if in_bf16(medium) else torch.equal(found, exact)


def test_command_line(tmp_path: Path) -> None:
    path = graft.export(nn.Linear(16, 24), (torch.zeros(12, 16),), path=tmp_path / "m.pte")
    command = [str(Path(sys.executable).with_name("graft")), "inspect", str(path), "--json"]

    def why(*flags: str) -> str:
        ran = subprocess.run([*command, *flags], check=True, capture_output=True, text=True)
        plan = json.loads(ran.stdout)["methods"][0]["plans"][0]
        return " ".join(launch["explanation"] for node in plan["nodes"] for launch in node["launches"])

    torch.set_float32_matmul_precision("medium")
    model = graft.load(path)
    model(torch.zeros(12, 16))
    assert (IN_BF16 in why("--matmul-precision", "medium")) == in_bf16(model)
    assert IN_BF16 not in why() and IN_BF16 not in why("--matmul-precision", "high")
    wrong = subprocess.run([*command, "--matmul-precision", "low"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--matmul-precision" in wrong.stderr and "medium" in wrong.stderr, wrong.stderr
