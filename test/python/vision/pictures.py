"""Pictures, and a small model of them, for tests."""

from __future__ import annotations

import numpy as np
import torch
import transformers


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with noise, and edges."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    waves = [np.sin(x / (5 + 7 * c) + y / (9 - 2 * c) + seed) for c in range(3)]
    out = np.stack(waves, -1) * 100 + 128 + random.normal(0, 12, (height, width, 3))
    out[height // 3 : height // 2, width // 4 :] = random.integers(0, 255, 3)
    return out.clip(0, 255).astype(np.uint8)


def vit(size=(32, 32), labels=3):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        image_size=size,
        patch_size=8,
        num_labels=labels,
        id2label={i: f"kind {i}" for i in range(labels)},
    )
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():  # so that pictures differ
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model
