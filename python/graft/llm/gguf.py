"""GGUF files as models: configuration and weights of the architectures below, in terms of transformers.

A key or tensor of the file that is not understood is an error, because it may change the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graft import _C
from graft.errors import Error, ExportError
from graft.llm.checkpoint import Checkpoint, make_empty, match
from graft.llm.stored import Stored, changed, file_range

# GGUF name in a layer -> transformers' name in the layer.
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QWEN3 = {**_LLAMA, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA2 = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Keys of every architecture -> fields of transformers' configurations.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
# Handled by the code below, or without effect on the results.
_HANDLED = {
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}


# ggml's names of types without blocks.
_PLAIN = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}


class File:
    """values: the file's key-value pairs; None for arrays of strings. tensors: by name. vocabulary: the pairs as a GGUF
    file without tensors."""

    def __init__(self, path: Path) -> None:
        try:
            self.values, tensors, self.vocabulary = _C.read_gguf(str(path))
        except Error as e:
            raise ExportError(f"'{path}' cannot be read as GGUF: {e}") from e
        self.tensors = {tensor[0]: self._stored(path, *tensor) for tensor in tensors}

    @staticmethod
    def _stored(path: Path, name: str, kind: str, sizes: tuple[int, ...] | None, offset: int, size: int) -> Stored:
        if sizes is None:
            raise ExportError(f"'{path}': expected tensors of types that graft computes with, found '{name}' in {kind}")
        return Stored(
            name=name,
            sizes=sizes,
            dtype=_PLAIN.get(kind, torch.float32),
            byte_size=size,
            chunks=file_range(path, offset, size),
            block_type="" if kind in _PLAIN else kind,
            file=path,
        )


@dataclass(frozen=True)
class _Architecture:
    config: str  # transformers' class
    layer: dict[str, str]
    special: Callable[["_Reader", dict[str, Any]], None] = lambda reader, config: None
    fields: dict[str, str] = field(default_factory=dict)  # besides _FIELDS
    permuted: bool = False  # rows of q and k are in the order of interleaved rotation
    norm_offset: float = 0.0  # the file's norm weights are larger by this


class _Reader:
    def __init__(self, file: File, path: Path) -> None:
        self.file, self.path = file, path
        self.name = file.values.get("general.architecture")
        if self.name not in _ARCHITECTURES:
            raise ExportError(
                f"'{path}': expected one of the architectures {', '.join(_ARCHITECTURES)}, "
                f"found {self.name!r}"
            )
        self.architecture = _ARCHITECTURES[self.name]

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.values.get(f"{self.name}.{key}", default)

    def config(self) -> Any:
        import transformers

        fields = {**_FIELDS, **self.architecture.fields}
        unknown = [
            key
            for key in self.file.values
            if key.startswith(f"{self.name}.") and key.removeprefix(f"{self.name}.") not in fields.keys() | _HANDLED
        ]
        if unknown:
            raise ExportError(f"'{self.path}': expected keys that graft knows, found {', '.join(unknown)}")
        config = {to: self.get(key) for key, to in fields.items() if self.get(key) is not None}
        for key, to in _FIELDS.items():
            if to not in config and key != "vocab_size":
                raise ExportError(f"'{self.path}': expected the key '{self.name}.{key}', found none")
            if isinstance(config.get(to), list):
                raise ExportError(
                    f"'{self.path}': expected one '{self.name}.{key}' for all layers, found a list"
                )
        heads = config["hidden_size"] // config["num_attention_heads"]
        config["head_dim"] = self.get("attention.key_length", heads)
        if self.get("attention.value_length", config["head_dim"]) != config["head_dim"]:
            raise ExportError(f"'{self.path}': expected keys and values of one size, found two")
        config["vocab_size"] = self.file.tensors["token_embd.weight"].sizes[0] if self._has("token_embd") else 0
        config["tie_word_embeddings"] = not self._has("output")
        config["rope_parameters"] = self._rope(config["head_dim"])
        for kind in ("bos", "eos", "padding"):
            found = self.file.values.get(f"tokenizer.ggml.{kind}_token_id")
            config["pad_token_id" if kind == "padding" else f"{kind}_token_id"] = found
        self.architecture.special(self, config)
        return getattr(transformers, self.architecture.config)(**config)

    def _has(self, name: str) -> bool:
        return f"{name}.weight" in self.file.tensors

    def _rope(self, head_dim: int) -> dict[str, Any]:
        rope = {"rope_type": "default", "rope_theta": float(self.get("rope.freq_base", 10000.0))}
        kind = self.get("rope.scaling.type", "none")
        if kind == "linear":
            rope.update(rope_type="linear", factor=float(self.get("rope.scaling.factor", 1.0)))
        elif kind != "none":
            raise ExportError(f"'{self.path}': expected rotary scaling 'none' or 'linear', found {kind!r}")
        turned = self.get("rope.dimension_count", head_dim)
        if turned != head_dim:
            rope["partial_rotary_factor"] = turned / head_dim
        return rope

    def weights(self, config: Any) -> dict[str, Stored]:
        """By transformers' names, as the model needs them: in the file's own bytes where these are that."""
        left = dict(self.file.tensors)
        left.pop("rope_freqs.weight", None)  # `frequencies` uses it
        result: dict[str, Stored] = {}
        for name, stored in self.file.tensors.items():
            to = self._translated(name)
            if to is not None:
                result[to] = self._adapted(to, stored, config)
                del left[name]
        for layer in range(config.num_hidden_layers):
            self._stack_experts(layer, left, result)
        if left:
            raise ExportError(
                f"'{self.path}': expected tensors of {self.architecture.config}, found besides: "
                + ", ".join(sorted(left)[:10])
            )
        return result

    def _translated(self, name: str) -> str | None:
        stem, _, end = name.rpartition(".")
        if stem in _OUTSIDE:
            return f"{_OUTSIDE[stem]}.{end}"
        parts = stem.split(".")
        if len(parts) == 3 and parts[0] == "blk" and parts[2] in self.architecture.layer:
            return f"model.layers.{parts[1]}.{self.architecture.layer[parts[2]]}.{end}"
        return None

    def _adapted(self, name: str, stored: Stored, config: Any) -> Stored:
        if self.architecture.permuted and ".q_proj." in name:
            return _unpermuted(stored, config.num_attention_heads)
        if self.architecture.permuted and ".k_proj." in name:
            return _unpermuted(stored, config.num_key_value_heads)
        if self.architecture.norm_offset and name.endswith("norm.weight"):
            offset = self.architecture.norm_offset
            if stored.dtype != torch.float32 or stored.block_type:
                raise ExportError(f"'{self.path}': expected '{stored.name}' in f32, found {stored.dtype}")

            def less(data: bytes) -> bytes:
                return (torch.frombuffer(bytearray(data), dtype=torch.float32) - offset).numpy().tobytes()

            return changed(stored, less)
        return stored

    def _stack_experts(self, layer: int, left: dict[str, Stored], result: dict[str, Stored]) -> None:
        """The experts' matrices; gate and up are one tensor [E, 2 I, H] in transformers."""
        if (down := left.pop(f"blk.{layer}.ffn_down_exps.weight", None)) is not None:
            result[f"model.layers.{layer}.mlp.experts.down_proj"] = down
        gate, up = (left.pop(f"blk.{layer}.ffn_{which}_exps.weight", None) for which in ("gate", "up"))
        if gate is None or up is None:
            return
        experts, rows, columns = gate.sizes
        if (gate.sizes, gate.dtype, gate.block_type) != (up.sizes, up.dtype, up.block_type):
            raise ExportError(f"'{self.path}': expected '{gate.name}' and '{up.name}' of one type and size")

        def chunks() -> Any:
            first, second = b"".join(gate.chunks()), b"".join(up.chunks())
            step = len(first) // experts
            for expert in range(experts):
                yield first[expert * step : (expert + 1) * step]
                yield second[expert * step : (expert + 1) * step]

        name = f"model.layers.{layer}.mlp.experts.gate_up_proj"
        sizes = (experts, 2 * rows, columns)
        result[name] = Stored(name, sizes, gate.dtype, 2 * gate.byte_size, chunks, gate.block_type)

    def frequencies(self, model: torch.nn.Module) -> None:
        """Divides rotary frequencies by the file's factors, as llama.cpp does (Llama 3.1 and later)."""
        factors = self.file.tensors.get("rope_freqs.weight")
        if factors is None:
            return
        rotary = model.model.rotary_emb
        if rotary.inv_freq.shape != factors.sizes:
            raise ExportError(
                f"'{self.path}': expected {rotary.inv_freq.shape[0]} rope_freqs, "
                f"found {list(factors.sizes)}"
            )
        rotary.inv_freq.div_(factors.tensor().to(torch.float32))


def _unpermuted(stored: Stored, heads: int) -> Stored:
    """Rows of each head from interleaved halves (0, n/2, 1, n/2 + 1, ...) to the order of transformers (0, 1, ...)."""
    rows = stored.sizes[0]
    if rows % (2 * heads):
        raise ExportError(f"'{stored.name}': expected rows in pairs for {heads} heads, found {rows}")
    order = torch.arange(rows).reshape(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)

    def change(data: bytes) -> bytes:
        table = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(rows, -1)
        return table[order].contiguous().numpy().tobytes()

    return changed(stored, change)


# Architectures ----------------------------------------------------------------------------------------------------


def _llama(reader: _Reader, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in reader.file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in reader.file.tensors


def _qwen3(reader: _Reader, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in reader.file.tensors


def _qwen3_moe(reader: _Reader, config: dict[str, Any]) -> None:
    config["norm_topk_prob"] = True  # what llama.cpp does for this architecture


def _gemma2(reader: _Reader, config: dict[str, Any]) -> None:
    # llama.cpp scales by the size of a head, except in the 27B model.
    wide = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = wide if config["num_hidden_layers"] == 46 else config["head_dim"]


def _gemma3(reader: _Reader, config: dict[str, Any]) -> None:
    wide = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = wide if config["num_hidden_layers"] == 62 else config["head_dim"]
    # One layer in six has full attention; the others have a rotary base of their own.
    config["layer_types"] = [
        "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(config["num_hidden_layers"])
    ]
    full = {**config["rope_parameters"], "rope_theta": float(reader.get("rope.freq_base", 1_000_000.0))}
    local = {"rope_type": "default", "rope_theta": 10000.0}
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": local}


_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_ARCHITECTURES = {
    "llama": _Architecture("LlamaConfig", _LLAMA, _llama, permuted=True),
    "qwen2": _Architecture("Qwen2Config", _LLAMA),
    "qwen3": _Architecture("Qwen3Config", _QWEN3, _qwen3),
    "qwen3moe": _Architecture(
        "Qwen3MoeConfig",
        {
            **{k: v for k, v in _QWEN3.items() if not k.startswith("ffn_") or k == "ffn_norm"},
            "ffn_gate_inp": "mlp.gate",
        },
        _qwen3_moe,
        fields={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
    ),
    "gemma2": _Architecture("Gemma2Config", _GEMMA2, _gemma2, fields={**_WINDOW, **_CAPS}, norm_offset=1.0),
    "gemma3": _Architecture(
        "Gemma3TextConfig",
        {**_GEMMA2, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
        _gemma3,
        fields={**_WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        norm_offset=1.0,
    ),
    "phi3": _Architecture("Phi3Config", _PHI3, fields=_WINDOW),
}


def open_gguf(path: Path) -> Checkpoint:
    file = File(path)
    reader = _Reader(file, path)
    config = reader.config()
    model = make_empty(config)
    reader.frequencies(model)
    weights = match(model, reader.weights(config), path.name)
    # A file without a vocabulary is a model that takes ids only.
    tokenizer = {"tokenizer.gguf": file.vocabulary} if "tokenizer.ggml.tokens" in file.values else {}
    return Checkpoint(path.name, model, weights, tokenizer)
