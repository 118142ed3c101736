"""GGUF files as models: configuration and weights, in terms of transformers.

A key or tensor of the file that is not understood is an error, because it may change the results.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graft import _C
from graft.errors import Error, ExportError
from graft.llm.checkpoint import Checkpoint, make_empty, match, named_tensors
from graft.llm.gguf_architectures import ARCHITECTURES, FIELDS
from graft.llm.stored import Stored, changed, file_range

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


_WITHOUT_END = {"ssm_a", "ssm_d"}  # tensors that are no weight of a layer

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


class _Reader:
    def __init__(self, file: File, path: Path) -> None:
        self.file, self.path = file, path
        self.name = file.values.get("general.architecture")
        if self.name not in ARCHITECTURES:
            raise ExportError(
                f"'{path}': expected one of the architectures {', '.join(ARCHITECTURES)}, "
                f"found {self.name!r}"
            )
        self.architecture = ARCHITECTURES[self.name]

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.values.get(f"{self.name}.{key}", default)

    def sizes(self, name: str) -> tuple[int, ...] | None:
        return self.file.tensors[name].sizes if name in self.file.tensors else None

    def config(self) -> Any:
        import transformers

        fields = {**FIELDS, **self.architecture.fields}
        unknown = [
            key
            for key in self.file.values
            if key.startswith(f"{self.name}.")
            and key.removeprefix(f"{self.name}.") not in fields.keys() | _HANDLED | self.architecture.handled
        ]
        if unknown:
            raise ExportError(f"'{self.path}': expected keys that graft knows, found {', '.join(unknown)}")
        config = {to: self.get(key) for key, to in fields.items() if self.get(key) is not None}
        for key, to in FIELDS.items():
            if to not in config and key not in {"vocab_size", *self.architecture.optional}:
                raise ExportError(f"'{self.path}': expected the key '{self.name}.{key}', found none")
            if isinstance(config.get(to), list):
                if key not in self.architecture.lists or not config[to]:
                    raise ExportError(
                        f"'{self.path}': expected one '{self.name}.{key}' for all layers, found a list"
                    )
                config[to] = max(config[to])
        if heads := config["num_attention_heads"]:
            config["head_dim"] = self.get("attention.key_length", config["hidden_size"] // heads)
            if self.get("attention.value_length", config["head_dim"]) != config["head_dim"]:
                raise ExportError(f"'{self.path}': expected keys and values of one size, found two")
            config["rope_parameters"] = self._rope(config["head_dim"])
        config["vocab_size"] = self.file.tensors["token_embd.weight"].sizes[0] if self._has("token_embd") else 0
        config["tie_word_embeddings"] = not self._has("output")
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

    def weights(self, config: Any, wanted: Mapping[str, torch.Tensor]) -> dict[str, Stored]:
        """By transformers' names, as the model needs them: in the file's own bytes where these are that. wanted: the
        model's tensors."""
        left = dict(self.file.tensors)
        left.pop("rope_freqs.weight", None)  # `frequencies` uses it
        for layer in range(config.num_hidden_layers, self.get("block_count")):  # they draft tokens
            for name in [name for name in left if name.startswith(f"blk.{layer}.")]:
                del left[name]
        result: dict[str, Stored] = {}
        for layer in range(config.num_hidden_layers):
            self._join(layer, left, result)
            self._stack_experts(layer, left, result)
        for name in list(left):
            to = self._translated(name)
            if to is not None and to not in result:
                result[to] = self._adapted(to, left.pop(name), config, wanted.get(to))
        if left:
            raise ExportError(
                f"'{self.path}': expected tensors of {self.architecture.config}, found besides: "
                + ", ".join(sorted(left)[:10])
            )
        return result

    def _translated(self, name: str) -> str | None:
        stem, _, end = name.rpartition(".")
        if stem in self.architecture.outside:
            return f"{self.architecture.outside[stem]}.{end}"
        block, _, rest = name.removeprefix("blk.").partition(".")
        if not name.startswith("blk.") or not rest:
            return None
        prefix, names = f"{self.architecture.layers}.{block}", self.architecture.layer
        if rest in names:  # it has no end, or is named with it
            return f"{prefix}.{names[rest]}" + ("" if rest in _WITHOUT_END or "." in rest else ".weight")
        stem, _, end = rest.rpartition(".")
        return f"{prefix}.{names[stem]}.{end}" if stem in names and stem not in _WITHOUT_END else None

    def _adapted(self, name: str, stored: Stored, config: Any, wanted: torch.Tensor | None) -> Stored:
        if self.architecture.permuted and ".q_proj." in name:
            return _unpermuted(stored, config.num_attention_heads)
        if self.architecture.permuted and ".k_proj." in name:
            return _unpermuted(stored, config.num_key_value_heads)
        if self.architecture.norm_offset and name.endswith("norm.weight") and not name.endswith("attn.norm.weight"):
            return self._computed(stored, lambda values: values - self.architecture.norm_offset)
        if name.endswith(".A_log"):
            stored = self._computed(stored, functools.partial(_log_of_decay, f"'{self.path}': '{stored.name}'"))
        if wanted is None or stored.block_type or stored.sizes == tuple(wanted.shape):
            return stored
        # Sizes of 1 are left out or put in, and a norm is in its groups; `match` reports what is otherwise.
        in_groups = name.endswith("norm.weight") and torch.Size(stored.sizes).numel() == wanted.numel()
        if in_groups or _without_ones(stored.sizes) == _without_ones(wanted.shape):
            return dataclasses.replace(changed(stored, lambda data: data), sizes=tuple(wanted.shape))
        return stored

    def _computed(self, stored: Stored, change: Callable[[torch.Tensor], torch.Tensor]) -> Stored:
        if stored.dtype != torch.float32 or stored.block_type:
            raise ExportError(f"'{self.path}': expected '{stored.name}' in f32, found {stored.dtype}")
        return changed(stored, lambda data: change(torch.frombuffer(bytearray(data), dtype=torch.float32)).numpy().tobytes())

    def _join(self, layer: int, left: dict[str, Stored], result: dict[str, Stored]) -> None:
        """Matrices that are one in transformers, by rows."""
        for names, to in self.architecture.joined.items():
            parts = [left.get(f"blk.{layer}.{name}.weight") for name in names]
            if any(part is None for part in parts):
                continue
            for name in names:
                del left[f"blk.{layer}.{name}.weight"]
            first, second = parts
            if (first.sizes[1:], first.dtype, first.block_type) != (second.sizes[1:], second.dtype, second.block_type):
                raise ExportError(f"'{self.path}': expected '{first.name}' and '{second.name}' of one type and size")

            def chunks(parts: Sequence[Stored] = (first, second)) -> Iterator[Any]:
                for part in parts:
                    yield from part.chunks()

            name = f"{self.architecture.layers}.{layer}.{to}.weight"
            sizes = (first.sizes[0] + second.sizes[0], *first.sizes[1:])
            result[name] = Stored(
                name, sizes, first.dtype, first.byte_size + second.byte_size, chunks, first.block_type
            )

    def _stack_experts(self, layer: int, left: dict[str, Stored], result: dict[str, Stored]) -> None:
        """The experts' matrices; gate and up are one tensor [E, 2 I, H] in transformers."""
        if (down := left.pop(f"blk.{layer}.ffn_down_exps.weight", None)) is not None:
            result[f"{self.architecture.layers}.{layer}.{self.architecture.experts}.down_proj"] = down
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

        name = f"{self.architecture.layers}.{layer}.{self.architecture.experts}.gate_up_proj"
        sizes = (experts, 2 * rows, columns)
        result[name] = Stored(name, sizes, gate.dtype, 2 * gate.byte_size, chunks, gate.block_type)

    def frequencies(self, model: torch.nn.Module) -> None:
        """Divides rotary frequencies by the file's factors, as llama.cpp does (Llama 3.1 and later)."""
        factors = self.file.tensors.get("rope_freqs.weight")
        if factors is None:
            return
        if not hasattr(model.model, "rotary_emb"):
            raise ExportError(f"'{self.path}': expected no rope_freqs for a model without rotary embeddings")
        rotary = model.model.rotary_emb
        if rotary.inv_freq.shape != factors.sizes:
            raise ExportError(
                f"'{self.path}': expected {rotary.inv_freq.shape[0]} rope_freqs, "
                f"found {list(factors.sizes)}"
            )
        rotary.inv_freq.div_(factors.tensor().to(torch.float32))


def _without_ones(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def _log_of_decay(what: str, a: torch.Tensor) -> torch.Tensor:
    """A_log of A = -exp(A_log)."""
    if not bool((a < 0).all()):
        raise ExportError(f"{what}: expected negative numbers, found {float(a.max())}")
    return (-a).log()


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


def open_gguf(path: Path) -> Checkpoint:
    file = File(path)
    reader = _Reader(file, path)
    config = reader.config()
    model = make_empty(config)
    reader.architecture.prepare(model)
    reader.frequencies(model)
    weights = match(model, reader.weights(config, named_tensors(model)), path.name)
    # A file without a vocabulary is a model that takes ids only.
    tokenizer = {"tokenizer.gguf": file.vocabulary} if "tokenizer.ggml.tokens" in file.values else {}
    return Checkpoint(path.name, model, weights, tokenizer)
