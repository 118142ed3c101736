"""Linear layers in f32 with weights of the model: packed at load, activation and residual in the epilogue."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import graft
import pytest
import torch
from matmul_precision_test import Rounded
from torch import nn


class Layers(nn.Module):
    """A residual around two layers, as in transformers, then outputs that leave a part of a panel."""

    def __init__(self, width: int = 40, hidden: int = 100, outputs: int = 33) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.head(x), self.head(x.transpose(0, 1))


def exported(model, inputs, tmp_path, **options):
    path = tmp_path / "model.pte"
    graft.export(model.eval(), inputs, path=path, **options)
    return path


def launches(model, inputs) -> list[dict]:
    model(*inputs)
    [plan] = json.loads(model._program.describe(True))["methods"][0]["plans"]
    return plan["order"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("width", "hidden", "outputs"), [(40, 100, 33), (300, 520, 8), (384, 1536, 384)])
def test_rows_that_are_open(tmp_path, threads, width, hidden, outputs):
    torch.manual_seed(0)
    layers = Layers(width, hidden, outputs)
    rows = torch.export.Dim("rows", max=400)
    path = exported(layers, (torch.randn(2, 9, width),), tmp_path, dynamic_shapes=({1: rows},))
    model = graft.load(path, threads=threads)
    for count in (1, 2, 3, 5, 8, 11, 12, 13, 24, 25, 97, 300, 400):
        x = torch.randn(2, count, width)
        for found, expected in zip(model(x), layers(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def check_bits_of_rows() -> int:
    """Rows of products of 9 to 200 rows beside those of the largest one, for sizes that leave narrow panels."""
    compared = 0
    for outputs in (1, 12, 16, 17, 33, 172):
        torch.manual_seed(outputs)
        linear, rows = nn.Linear(64, outputs), torch.export.Dim("rows", min=4, max=200)
        with tempfile.TemporaryDirectory() as folder:
            model = graft.load(exported(linear, (torch.randn(16, 64),), Path(folder), dynamic_shapes=({0: rows},)), threads=1)
            x = torch.randn(200, 64)
            whole = model(x)
            for count in range(9, 200):
                assert torch.equal(model(x[:count]), whole[:count]), (outputs, count)
                compared += 1
    return compared


def printed(code: str, isa: str, flag: str) -> str:
    """What code that has this file's names prints with the kernels of an instruction set, of which CPUs have the flag."""
    if flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this CPU has no {flag}")
    code = f"import sys\nsys.path[:] = {sys.path!r}\nfrom packed_linear_test import *\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "GRAFT_ISA": isa})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("isa", "flag"), [("baseline", ""), ("avx2", "avx2"), ("avx512", "avx512f")])
def test_a_row_has_the_same_bits_in_every_product(isa, flag):
    assert int(printed("print(check_bits_of_rows())", isa, flag)) == 6 * 191


def test_what_is_launched(tmp_path):
    layers, x = Layers(), torch.randn(1, 60, 40)
    model = graft.load(exported(layers, (x,), tmp_path))
    found = [(launch["kernel"].removeprefix("graft "), launch["explanation"]) for launch in launches(model, (x,))]
    # The heads read the same rows, the second one by another view of them: one launch.
    assert [kernel for kernel, _ in found] == ["packed_linear", "packed_linear", "packed_linears"]
    assert "2 layers of the same rows" in found[2][1]
    assert "gelu in the epilogue" in found[0][1] and "a sum in the epilogue" in found[1][1]
    assert not {"elementwise", "matmul"} & {kernel for kernel, _ in found}


def test_the_plain_lowering_leaves_weights_as_they_are(tmp_path):
    layers, x = Layers(), torch.randn(1, 60, 40)
    model = graft.load(exported(layers, (x,), tmp_path), options=graft.LoadOptions(fast_kernels=False))
    assert not any("packed_linear" in launch["kernel"] for launch in launches(model, (x,)))
    for found, expected in zip(model(x), layers(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def check_medium(stored: str | None = None) -> list[str]:
    """Layers at precision medium, weights stored as they are or in bf16; the kernels that ran."""
    torch.manual_seed(0)
    layers, x = Layers(384, 1536, 384).eval(), torch.randn(1, 60, 384)
    if stored == "bf16":
        layers.requires_grad_(False).apply(lambda m: m.weight.copy_(m.weight.bfloat16()) if isinstance(m, nn.Linear) else None)
    rounded = Layers(384, 1536, 384).eval()
    rounded.load_state_dict(layers.state_dict())
    for name in ("up", "down", "head"):
        setattr(rounded, name, Rounded(getattr(layers, name)))
    with tempfile.TemporaryDirectory() as folder:
        path = exported(layers, (x,), Path(folder), quantize=stored)
        torch.set_float32_matmul_precision("medium")
        try:
            models = [graft.load(path, threads=threads) for threads in (1, 2, 3)]
        finally:
            torch.set_float32_matmul_precision("highest")
        results = [model(x) for model in models]
        kernels = [launch["kernel"].removeprefix("graft ") for launch in launches(models[0], (x,))]
    in_bf16 = {"packed_linear_bf16", "packed_linears_bf16"} <= set(kernels)
    for found, others, expected, exact in zip(results[0], zip(*results[1:], strict=True), rounded(x), layers(x), strict=True):
        assert [torch.equal(found, other) for other in others] == [True, True]
        near = (found - (expected if in_bf16 else exact)).abs().max()
        assert near < (2e-3 if in_bf16 else 1e-5)  # a sum next to a rounding boundary moves by one step of bf16
        assert ((found - exact).abs().max() > 3 * near) == in_bf16
    return kernels


def test_medium_rounds_where_the_cpu_multiplies_bf16_faster():
    assert {"packed_linears_bf16", "packed_linears"} & set(check_medium())


def test_in_bf16_with_the_kernels_asked_for():
    lines = printed('for stored in (None, "bf16"): print(check_medium(stored))', "avx512bf16", "avx512_bf16").splitlines()
    for kernels in lines:
        # Activation and residual are part of the products; nothing is packed per run.
        assert kernels == str(["packed_linear_bf16", "packed_linear_bf16", "packed_linears_bf16"]), kernels
    assert len(lines) == 2


def test_a_tied_embedding_is_not_held_twice(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    tied, ids = Tied(), torch.randint(500, (1, 30))
    model = graft.load(exported(tied, (ids,), tmp_path))
    torch.testing.assert_close(model(ids), tied(ids), rtol=1e-5, atol=1e-5)
    assert model.stats()["constant_bytes"] == 0


def test_methods_share_packed_weights(tmp_path):
    layers = Layers()
    path = tmp_path / "methods.pte"
    inputs = {"short": torch.randn(1, 16, 40), "long": torch.randn(1, 64, 40)}
    graft.export(methods={name: {"model": layers.eval(), "args": (x,)} for name, x in inputs.items()}, path=path)
    model = graft.load(path)
    for name, x in inputs.items():
        for found, expected in zip(getattr(model, name)(x), layers(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    panel = 4 * 32  # bytes of one step of a panel, whatever the instruction set at most
    once = panel * (40 * -(-100 // 32) + 100 * -(-40 // 32) + 40 * -(-33 // 32))
    assert 0 < model.stats()["constant_bytes"] <= once
