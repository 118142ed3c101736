"""Models of all_cpus_check.sh. usage: all_cpus_models.py make|check FOLDER, or compare FOLDER RESULTS"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import torch
import transformers
from torch import nn

import graft

# : Largest integer in a block of weights. graft's kernels read the first two formats, ggml's kernels the third.
BLOCKS = {"q8_0": 127, "q4_0": 8, "q5_0": 16}
# : Relative to the largest value. Products with block formats round the other operand to 8 bits.
TOLERANCE = {"convolution": 1e-5} | dict.fromkeys(BLOCKS, 0.02)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 24, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    ).eval()


def language_model(largest: int) -> nn.Module:
    """Weights are such that blocks of 32 integers and a scale hold them exactly."""
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            integers = torch.randint(-largest, largest, weight.shape)
            integers[:, ::32] = -largest
            weight.copy_(integers / (8.0 * (largest + 1 & -2)))
    return model


@torch.no_grad()
def make(folder: Path) -> None:
    folder.mkdir()
    torch.manual_seed(0)
    model, pixels = convolution(), torch.randn(1, 3, 32, 32)
    graft.export(model, (pixels,), path=folder / "convolution.pte")
    numpy.savez(folder / "convolution.npz", pixels)
    numpy.save(folder / "convolution.npy", model(pixels))

    ids = torch.randint(0, 96, (1, 12))
    inputs = {
        "input_ids": ids,
        "position_ids": torch.arange(12)[None],
        "cache_position": torch.arange(12)[None],
        "logits_to_keep": torch.arange(12),
    }
    for blocks, largest in BLOCKS.items():
        model = language_model(largest)
        graft.export_llm(model, folder / f"{blocks}.pte", quantize=blocks)
        numpy.savez(folder / f"{blocks}.npz", **inputs)
        numpy.save(folder / f"{blocks}.npy", model(ids).logits)


def difference(found: numpy.ndarray, expected: numpy.ndarray) -> float:
    return float(numpy.abs(found - expected).max() / numpy.abs(expected).max())


def require(name: str, found: numpy.ndarray, expected: numpy.ndarray) -> None:
    off, allowed = difference(found, expected), TOLERANCE[name.removesuffix("--no-fast-kernels")]
    if not off <= allowed:
        raise SystemExit(f"{name}: {off:.2g} of the largest value off, at most {allowed} expected")


def check(folder: Path) -> None:
    """What Python gives."""
    for model in sorted(folder.glob("*.pte")):
        inputs = numpy.load(model.with_suffix(".npz"))
        package = graft.load(model)
        method = package.methods.get("step", package)  # of a language model
        found = method(*(torch.from_numpy(value) for value in inputs.values()))
        found = found[0] if isinstance(found, (list, tuple)) else found
        require(model.stem, torch.as_tensor(found).numpy(), numpy.load(model.with_suffix(".npy")))


def compare(folder: Path, results: Path) -> None:
    """What the command line wrote."""
    files = sorted(results.glob("*.npz"))
    if len(files) != 2 * len(TOLERANCE):
        raise SystemExit(f"{len(files)} results in {results}, expected {2 * len(TOLERANCE)}")
    for file in files:
        (found,) = numpy.load(file).values()
        require(file.stem, found, numpy.load(folder / f"{file.stem.removesuffix('--no-fast-kernels')}.npy"))


if __name__ == "__main__":
    {"make": make, "check": check, "compare": compare}[sys.argv[1]](*map(Path, sys.argv[2:]))
