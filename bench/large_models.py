"""Shapes that are too large to be made by PyTorch: their weights are drawn from a pool of random blocks, and written matrix by matrix.

A matrix of [rows, columns] is [rows, columns / 256] blocks of the pool, by a generator that the matrix's name starts. The file has the
stored bytes of the blocks, the reference their values, so that neither holds more than one layer. Vectors are ones.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from language_models import CONFIGS, architecture, config_of

if TYPE_CHECKING:
    import torch

BLOCK = 256  # elements: a multiple of what any type of ggml has in one of its blocks
POOL = 1 << 16  # blocks, 64 MiB in f32
TOKENS = 1 << 13  # of the reference, at once
DEVIATION = 0.02  # transformers' initializer_range


def _without_weights(model: str) -> Any:
    import torch
    import transformers

    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config_of(model), dtype=torch.float32).eval().requires_grad_(False)


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


def _type_of(name: str, dimensions: int, weights: str) -> str:
    """How a tensor of transformers' name is stored: vectors and routers of experts are not rounded."""
    return "f32" if dimensions == 1 or name.endswith("mlp.gate.weight") else weights


def _tensors(model: Any, kind: str, weights: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """What the file of an architecture of that kind holds: names, types, and the blocks of matrices or the elements of vectors."""
    import gguf_writer
    import torch

    for name, tensor in model.state_dict().items():
        given = _blocks(name, tuple(tensor.shape)) if tensor.dim() > 1 else torch.ones(tensor.shape)
        alone = SimpleNamespace(config=model.config, state_dict=lambda name=name, given=given: {name: given})
        for stored_name, stored in gguf_writer.tensors_of(alone, kind).items():
            yield stored_name, _type_of(name, tensor.dim(), weights), stored


def write_gguf(model: str, weights: str, path: Path) -> None:
    import gguf_writer

    made, kind, pool, config = _without_weights(model), architecture(model), _pool(), CONFIGS[model]
    own = {}
    if "num_experts" in config:
        own = {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
               "expert_feed_forward_length": config["moe_intermediate_size"]}  # fmt: skip
    blocks = {type_: np.frombuffer(gguf_writer.stored(pool, type_), np.uint8).reshape(POOL, -1) for type_ in {weights, "f32"}}
    entries = {}
    for name, type_, tensor in _tensors(made, kind, weights):
        *rows, columns = tensor.shape
        if rows:
            entries[name] = (*rows, columns * BLOCK), type_, tensor.numel() * blocks[type_].shape[1]
        else:
            entries[name] = (columns,), type_, tensor.numel() * 4
    head, offsets = gguf_writer.gguf_head(gguf_writer.values_of(made.config, kind, **own), entries)
    with path.open("wb") as file:
        file.write(head)
        for name, type_, tensor in _tensors(made, kind, weights):
            file.seek(offsets[name])
            if tensor.dim() == 1:
                file.write(tensor.numpy().tobytes())
                continue
            for rows in tensor.reshape(-1, tensor.shape[-1]).split(1 << 12):
                file.write(blocks[type_][rows.numpy()].tobytes())


def _values_of_pool(weights: str) -> dict[str, torch.Tensor]:
    """By type, after they were stored as it: [POOL, BLOCK] f32."""
    import gguf_writer

    pool = _pool()
    return {type_: gguf_writer.rounded(pool, type_) for type_ in {weights, "f32"}}


def _values(name: str, shape: tuple[int, ...], weights: str, pool: dict[str, torch.Tensor]) -> torch.Tensor:
    """A tensor of transformers' name, of _values_of_pool."""
    import torch

    if len(shape) == 1:
        return torch.ones(shape)
    return pool[_type_of(name, len(shape), weights)][_blocks(name, shape).long()].reshape(shape)


def write_folder(model: str, weights: str, folder: Path) -> None:
    """A folder of Hugging Face in bf16 with the values that the GGUF file stores, a file per tensor."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    made, pool = _without_weights(model), _values_of_pool(weights)
    made.config.architectures, made.config.dtype = [type(made).__name__], torch.bfloat16
    made.config.save_pretrained(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    if made.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    files = {name: f"model-{name}.safetensors" for name in shapes}
    for name, file in files.items():
        tensor = _values(name, shapes[name], weights, pool).to(torch.bfloat16)
        save_file({name: tensor}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def logits(model: str, weights: str, texts: list[np.ndarray], ends: list[int]) -> list[np.ndarray]:
    """Eager PyTorch's in f32 on the weights as stored, [ends, vocabulary] of each text of token ids; all are of one length. A layer
    has its weights while it runs."""
    import torch

    made, pool = _without_weights(model), _values_of_pool(weights)
    names = {module: name for name, module in made.named_modules()}

    def fill(module: torch.nn.Module, *_: Any) -> None:
        for inner in module.modules():
            for key, parameter in inner._parameters.items():
                if parameter is None:
                    continue
                tensor = _values(f"{names[inner]}.{key}", tuple(parameter.shape), weights, pool)
                inner._parameters[key] = torch.nn.Parameter(tensor, requires_grad=False)

    def empty(module: torch.nn.Module, *_: Any) -> None:
        module.to_empty(device="meta")

    base = made.model
    for layer in base.layers:
        layer.register_forward_pre_hook(fill)
        layer.register_forward_hook(empty)
    fill(base.embed_tokens)
    fill(base.norm)
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
