"""Files of bench/cuda_language.py: GGUF files of random weights, and the programs that read them."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from language import CONFIGS

sys.path.append(str(Path(__file__).resolve().parents[1] / "test" / "python" / "llm"))
import gguf_writer  # noqa: E402

KINDS = ("bf16", "q8_0", "q4_K")
_BLOCKS = {"f32": (1, 4), "bf16": (1, 2), "q8_0": (32, 34), "q4_K": (256, 144)}  # elements, bytes
_TINY = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
_PIECE = 1 << 20  # elements that a thread converts at a time


def config(tiny: bool) -> Qwen3Config:
    return Qwen3Config(**(_TINY if tiny else CONFIGS["qwen3-0.6b"]))


def stem(tiny: bool, kind: str) -> str:
    return f"{'tiny' if tiny else 'qwen3-0.6b'}-{kind}"


def parameters(config: Qwen3Config) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name in GGUF files: name in PyTorch, shape. A tied head has no weight of its own."""
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    names = [name for name in model.state_dict() if name != "lm_head.weight"]
    stored = gguf_writer.tensors_of(model, "qwen3")
    if len(names) != len(stored):
        raise ValueError(f"expected {len(names)} tensors in the GGUF file, found {len(stored)}")
    return {at: (name, tuple(tensor.shape)) for name, (at, tensor) in zip(names, stored.items())}


def _head(config: Qwen3Config, kind: str) -> tuple[bytes, dict[str, int], dict[str, tuple[tuple[int, ...], str, int]]]:
    entries = {}
    for name, (_, shape) in parameters(config).items():
        stored = kind if len(shape) > 1 else "f32"
        elements, size = _BLOCKS[stored]
        entries[name] = (shape, stored, int(np.prod(shape)) // elements * size)
    return *gguf_writer.gguf_head(gguf_writer.values_of(config, "qwen3"), entries), entries


def export(folder: Path, tiny: bool) -> None:
    """The programs alone. Their weights are in GGUF files beside them, which `write` makes where the programs run: here
    they are files of the same layout without content."""
    import graft

    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        path = folder / f"{stem(tiny, kind)}.gguf"
        head, offsets, entries = _head(config(tiny), kind)
        last = list(entries)[-1]
        with path.open("wb") as file:
            file.write(head)
            file.truncate(offsets[last] + entries[last][2])
        program = graft.export_llm(path, path.with_suffix(".pte"), weights="external")
        path.unlink()
        print(f"{program}: {program.stat().st_size // 1024} KiB", flush=True)


def random_weights(config: Qwen3Config, device: torch.device) -> dict[str, torch.Tensor]:
    """By GGUF name, f32 on that device. Norms are not all ones, so that a wrong one shows."""
    generator = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, (_, shape) in parameters(config).items():
        values = torch.randn(shape, generator=generator, device=device)
        weights[name] = 1 + 0.1 * values if len(shape) == 1 else 0.02 * values
    return weights


def write(
    path: Path, config: Qwen3Config, kind: str, weights: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Writes the file; gives each weight as it is worth in it, by PyTorch's name, f32 in the CPU's memory."""
    head, offsets, entries = _head(config, kind)
    names = {name: at for name, (at, _) in parameters(config).items()}
    with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as threads:
        file.write(head)
        for name, (shape, stored, size) in entries.items():
            values = weights[name].cpu()
            data, worth = _stored(values, stored, size, threads)
            file.seek(offsets[name])
            file.write(memoryview(data))
            yield names[name], worth.reshape(shape)


def _stored(values: torch.Tensor, kind: str, size: int, threads: ThreadPoolExecutor) -> tuple[np.ndarray, torch.Tensor]:
    if kind == "f32":
        return values.numpy().view(np.uint8).reshape(-1), values
    if kind == "bf16":
        rounded = values.to(torch.bfloat16)
        return rounded.view(torch.uint8).numpy().reshape(-1), rounded.float()
    ggml = _ggml()
    rows, columns = values.shape
    data, worth = np.empty(size, np.uint8), torch.empty(rows, columns)
    row_size, step = size // rows, max(1, _PIECE // columns)
    dequantize = getattr(ggml, f"dequantize_row_{kind}")

    def convert(begin: int) -> None:
        count = min(step, rows - begin)
        at = data.ctypes.data + begin * row_size
        ggml.ggml_quantize_chunk(
            gguf_writer.TYPES[kind], values[begin].data_ptr(), at, 0, count, columns, None
        )
        dequantize(at, worth[begin].data_ptr(), count * columns)

    list(threads.map(convert, range(0, rows, step)))
    return data, worth


def _ggml() -> ctypes.CDLL:
    import graft._C  # noqa: F401  (brings ggml into the process)

    ggml = ctypes.CDLL("libggml-base.so.graft")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    for kind in KINDS[1:]:
        function = getattr(ggml, f"dequantize_row_{kind}")
        function.argtypes, function.restype = [pointer, pointer, number], None
    return ggml


def torch_model(config: Qwen3Config, device: torch.device) -> Any:
    """In f32; `bench/cuda_language.py` copies the weights of each file into it."""
    with torch.device(device):
        return Qwen3ForCausalLM(config).eval().requires_grad_(False)
