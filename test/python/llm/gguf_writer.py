"""Writes small GGUF files, and what llama.cpp computes on them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graft.exporter.quantization import quantize

_ALIGNMENT = 32
TYPES = {  # as ggml numbers them
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q4_0": 2,
    "q8_0": 8,
    "q2_K": 10,
    "q3_K": 11,
    "q4_K": 12,
    "q5_K": 13,
    "q6_K": 14,
    "iq4_nl": 20,
    "iq4_xs": 23,
    "tq1_0": 34,
    "tq2_0": 35,
    "mxfp4": 39,
}
_quiet: list[Any] = []


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, np.ndarray):
        kind = {np.dtype(np.int32): 5, np.dtype(np.float32): 6}[value.dtype]
        return struct.pack("<IIQ", 9, kind, len(value)) + value.tobytes()
    return struct.pack("<I", 8) + _text(value)


# Tables that a recurrent layer has beside its matrices, which llama.cpp keeps in f32.
_TABLES = ("ssm_conv1d", "shortconv.conv", "ssm_a", "ssm_d", "ssm_norm")


def is_matrix(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and not any(table in name for table in _TABLES)


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], kind: str = "f32") -> Path:
    """Matrices in that type, everything else in f32. Values: bool, int (u32), float (f32), text, lists of text, and arrays of i32 and f32."""
    kinds = {name: kind if is_matrix(name, tensor) else "f32" for name, tensor in tensors.items()}
    data = {name: stored(tensor.detach(), kinds[name]) for name, tensor in tensors.items()}
    entries = {name: (tuple(tensor.shape), kinds[name], len(data[name])) for name, tensor in tensors.items()}
    head, _ = gguf_head(values, entries)
    path.write_bytes(head + b"".join(content + bytes(-len(content) % _ALIGNMENT) for content in data.values()))
    return path


def gguf_head(
    values: Mapping[str, Any], entries: Mapping[str, tuple[Sequence[int], str, int]]
) -> tuple[bytes, dict[str, int]]:
    """What comes before the tensors of a file, and where each of them begins. Entries: name: (shape, type, bytes)."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(entries), len(values))]
    head += [_text(key) + _value(value) for key, value in values.items()]
    offset, offsets = 0, {}
    for name, (shape, kind, size) in entries.items():
        head.append(_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape)))
        head.append(struct.pack("<IQ", TYPES[kind], offset))
        offsets[name] = offset
        offset += size + -size % _ALIGNMENT
    whole = b"".join(head)
    whole += bytes(-len(whole) % _ALIGNMENT)
    return whole, {name: len(whole) + offset for name, offset in offsets.items()}


_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def stored(tensor: torch.Tensor, kind: str) -> bytes:
    if kind in _DTYPES:
        return tensor.to(_DTYPES[kind]).contiguous().view(torch.uint8).numpy().tobytes()
    return quantize(tensor.to(torch.float32).contiguous(), kind).tobytes()


def rounded(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """What a matrix is worth after it was stored as that type."""
    if kind in _DTYPES:
        return tensor.to(_DTYPES[kind]).to(tensor.dtype)
    import graft._C  # noqa: F401  (brings ggml into the process)

    data = quantize(tensor, kind)
    result = torch.empty(tensor.shape)
    convert = getattr(ctypes.CDLL("libggml-base.so.graft"), f"dequantize_row_{kind}")
    convert.argtypes, convert.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    convert(data.ctypes.data, result.data_ptr(), tensor.numel())
    return result


# Architectures ----------------------------------------------------------------------------------------------------


def values_of(config: Any, architecture: str, **own: Any) -> dict[str, Any]:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": config.vocab_size,
        **own,
    }
    pairs = {"general.architecture": architecture, "tokenizer.ggml.model": "none"}
    return {**pairs, **{f"{architecture}.{key}": value for key, value in values.items()}}


_OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm"}
_COMMON = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_AFTER = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensors_of(model: torch.nn.Module, architecture: str) -> dict[str, torch.Tensor]:
    """As llama.cpp's converter writes them."""
    config = model.config
    gemma = architecture.startswith("gemma")
    names = {**_COMMON, **(_SANDWICH if gemma else _AFTER)}
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            if not config.tie_word_embeddings:
                tensors["output.weight"] = tensor
            continue
        parts = name.removeprefix("model.").split(".")
        if parts[0] != "layers":
            tensors[f"{_OUTSIDE[parts[0]]}.weight"] = tensor + 1 if gemma and parts[0] == "norm" else tensor
            continue
        block, rest = f"blk.{parts[1]}", ".".join(parts[2:])
        if rest == "mlp.experts.gate_up_proj":
            for kind, half in zip(("gate", "up"), tensor.chunk(2, 1)):
                tensors[f"{block}.ffn_{kind}_exps.weight"] = half
        elif rest == "mlp.experts.down_proj":
            tensors[f"{block}.ffn_down_exps.weight"] = tensor
        else:
            stem, _, end = rest.rpartition(".")
            if architecture == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads
                tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
            tensors[f"{block}.{names[stem]}.{end}"] = tensor + 1 if gemma and stem.endswith("norm") else tensor
    return tensors


# llama.cpp --------------------------------------------------------------------------------------------------------


def llama_cpp_logits(path: Path, tokens: Sequence[int], threads: int = 1) -> torch.Tensor:
    """[T, V]: of every token of one prompt, with the cache in f32."""
    import llama_cpp as lib

    if not _quiet:
        _quiet.append(lib.llama_log_callback(lambda *_: None))  # kept: ggml calls it as long as the process lives
    lib.llama_log_set(_quiet[0], ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    assert model, f"llama.cpp does not load {path}"
    try:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(64, len(tokens))
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = 0  # f32
        params.flash_attn_type = 0
        context = lib.llama_init_from_model(model, params)
        try:
            batch = lib.llama_batch_init(len(tokens), 0, 1)
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                batch.seq_id[i][0] = 0
            assert lib.llama_decode(context, batch) == 0
            width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
            rows = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float * (len(tokens) * width)))
            logits = torch.frombuffer(rows.contents, dtype=torch.float32).reshape(len(tokens), width).clone()
            lib.llama_batch_free(batch)
            return logits
        finally:
            lib.llama_free(context)
    finally:
        lib.llama_model_free(model)
