"""Shapes that are too large to be made by PyTorch: their weights are drawn from a pool of random blocks, and written matrix by matrix.

A matrix of [rows, columns] is [rows, columns / 256] blocks of the pool, by a generator that the matrix's name starts. The file has the
stored bytes of the blocks, the reference their values, so that neither holds more than one layer. Vectors are ones.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

TOOLS = Path(__file__).resolve().parents[1] / "test" / "python" / "llm"
BLOCK = 256  # elements: a multiple of what any type of ggml has in one of its blocks
POOL = 1 << 16  # blocks, 64 MiB in f32
TOKENS = 1 << 13  # of the reference, at once
DEVIATION = 0.02  # transformers' initializer_range

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-4b": {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False,
    },
    # Qwen3-30B-A3B with 12 of its 48 layers.
    "qwen3-30b-a3b-12": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    },
}  # fmt: skip
# transformers' class and the architecture of GGUF files.
KINDS = {"qwen3-4b": ("Qwen3", "qwen3"), "llama-3.1-8b": ("Llama", "llama"), "qwen3-30b-a3b-12": ("Qwen3Moe", "qwen3moe")}


def _without_weights(model: str) -> Any:
    import torch
    import transformers

    config = getattr(transformers, f"{KINDS[model][0]}Config")(**CONFIGS[model])
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)


def _pool() -> torch.Tensor:
    """[POOL, BLOCK] f32."""
    import torch

    return torch.randn(POOL, BLOCK, generator=torch.Generator().manual_seed(0)) * DEVIATION


def _blocks(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Which blocks of the pool a matrix of transformers' name is made of: [..., rows, columns / BLOCK] int32."""
    import torch

    if shape[-1] % BLOCK:
        raise ValueError(f"{name}: expected rows of a multiple of {BLOCK} elements, found {shape[-1]}")
    count = (*shape[:-1], shape[-1] // BLOCK)
    return torch.from_numpy(np.random.default_rng(zlib.crc32(name.encode())).integers(0, POOL, count, dtype=np.int32))


class _One:
    """A model of one tensor, as the names of GGUF files are made from models."""

    def __init__(self, config: Any, name: str, tensor: torch.Tensor) -> None:
        self.config, self._state = config, {name: tensor}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._state


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, torch.Tensor]]:
    """What the file holds, by its names: blocks of matrices, and vectors."""
    import gguf_writer
    import torch

    for name, tensor in model.state_dict().items():
        given = _blocks(name, tuple(tensor.shape)) if tensor.dim() > 1 else torch.ones(tensor.shape)
        yield from gguf_writer.tensors_of(_One(model.config, name, given), architecture).items()


def _type_of(name: str, tensor: torch.Tensor, weights: str) -> str:
    return "f32" if tensor.dim() == 1 or "ffn_gate_inp" in name else weights


def write_gguf(model: str, weights: str, path: Path) -> None:
    sys.path.append(str(TOOLS))
    import gguf_writer

    made, architecture, pool = _without_weights(model), KINDS[model][1], _pool()
    own = {}
    if "num_experts" in CONFIGS[model]:
        config = CONFIGS[model]
        own = {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
               "expert_feed_forward_length": config["moe_intermediate_size"]}  # fmt: skip
    stored = {
        kind: np.frombuffer(gguf_writer.stored(pool, kind), np.uint8).reshape(POOL, -1) for kind in {weights, "f32"}
    }
    entries = {}
    for name, tensor in _tensors(made, architecture):
        kind = _type_of(name, tensor, weights)
        shape = tuple(tensor.shape) if tensor.dim() == 1 else (*tensor.shape[:-1], tensor.shape[-1] * BLOCK)
        size = tensor.numel() * (4 if tensor.dim() == 1 else stored[kind].shape[1])
        entries[name] = (shape, kind, size)
    head, offsets = gguf_writer.gguf_head(gguf_writer.values_of(made.config, architecture, **own), entries)
    with path.open("wb") as file:
        file.write(head)
        for name, tensor in _tensors(made, architecture):
            file.seek(offsets[name])
            if tensor.dim() == 1:
                file.write(tensor.numpy().tobytes())
                continue
            blocks = stored[_type_of(name, tensor, weights)]
            for rows in tensor.reshape(-1, tensor.shape[-1]).split(1 << 12):
                file.write(blocks[rows.numpy()].tobytes())


def logits(model: str, weights: str, texts: list[np.ndarray], ends: list[int]) -> list[np.ndarray]:
    """Eager PyTorch's in f32 on the weights as stored, [ends, vocabulary] of each text of token ids; all are of one length. A layer
    has its weights while it runs."""
    import torch

    sys.path.append(str(TOOLS))
    import gguf_writer

    made, pool = _without_weights(model), _pool()
    values = {kind: gguf_writer.rounded(pool, kind) for kind in {weights, "f32"}}
    names = {module: name for name, module in made.named_modules()}

    def fill(module: torch.nn.Module, *_: Any) -> None:
        for inner in module.modules():
            for key, parameter in inner._parameters.items():
                if parameter is None:
                    continue
                name, shape = f"{names[inner]}.{key}", tuple(parameter.shape)
                if parameter.dim() == 1:
                    tensor = torch.ones(shape)
                else:
                    kind = "f32" if name.endswith("mlp.gate.weight") else weights
                    tensor = values[kind][_blocks(name, shape).long()].reshape(shape)
                inner._parameters[key] = torch.nn.Parameter(tensor, requires_grad=False)

    def empty(module: torch.nn.Module, *_: Any) -> None:
        module.to_empty(device="meta")

    base = made.model
    for layer in base.layers:
        layer.register_forward_pre_hook(fill)
        layer.register_forward_hook(empty)
    fill(base.embed_tokens), fill(base.norm)
    if made.config.tie_word_embeddings:
        made.lm_head.weight = base.embed_tokens.weight
    else:
        fill(made.lm_head)
    base.rotary_emb = type(base.rotary_emb)(made.config)  # its tables are computed, not stored
    found: list[np.ndarray] = []
    at_once = max(1, TOKENS // len(texts[0]))
    with torch.inference_mode():
        for begin in range(0, len(texts), at_once):
            ids = torch.from_numpy(np.stack(texts[begin : begin + at_once]))
            found.extend(made(input_ids=ids, logits_to_keep=torch.tensor(ends) - 1, use_cache=False).logits.numpy())
    return found
