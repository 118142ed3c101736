"""Shapes of language models: configurations of transformers, and what a token costs each kind of layer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# For gguf_writer and gguf_recurrent. They are imported where they are called: environments of peers have no graft.
sys.path.append(str(Path(__file__).resolve().parents[1] / "test" / "python" / "llm"))

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
    },
    "qwen3.5-0.8b": {
        "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 40960,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    },
    "granite-4.0-h-350m": {
        "vocab_size": 100352, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 32,
        "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "shared_intermediate_size": 2048, "num_local_experts": 0, "num_experts_per_tok": 0,
        "layer_types": ["full_attention" if i in (10, 13, 17, 27) else "linear_attention" for i in range(32)],
        "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 3.0,
        "residual_multiplier": 0.246, "tie_word_embeddings": True,
    },
    "lfm2-350m": {
        "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 4608, "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
        "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
        "tie_word_embeddings": True,
    },
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
# transformers' class and the architecture of GGUF files, as test/python/llm names them.
_KINDS = {
    "qwen3-0.6b": ("Qwen3", "qwen3"),
    "qwen3.5-0.8b": ("Qwen3_5Text", "qwen35"),
    "granite-4.0-h-350m": ("GraniteMoeHybrid", "granitehybrid_dense"),
    "lfm2-350m": ("Lfm2", "lfm2"),
    "qwen3-4b": ("Qwen3", "qwen3"),
    "llama-3.1-8b": ("Llama", "llama"),
    "qwen3-30b-a3b-12": ("Qwen3Moe", "qwen3moe"),
}


LARGE = {"qwen3-4b", "llama-3.1-8b", "qwen3-30b-a3b-12"}  # made by large_models.py


def architecture(model: str) -> str:
    return _KINDS[model][1]


def config_of(model: str) -> Any:
    import transformers

    return getattr(transformers, f"{_KINDS[model][0]}Config")(**CONFIGS[model])


def make(model: str) -> Any:
    """With random weights in f32. Time steps are those that training begins with (arXiv 2405.21060): others would forget a
    token at once."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = config_of(model)
    if model == "qwen3.5-0.8b":
        config.architectures = ["Qwen3_5ForCausalLM"]
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for name, parameter in made.named_parameters():
        if name.endswith("dt_bias"):
            step = torch.logspace(-3, -1, parameter.numel())
            parameter.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
    return made


@dataclass(frozen=True)
class Sizes:
    """Of all layers together, in elements."""

    matrices: int  # but for the output's; of experts those that a token takes
    queries: int  # of a token
    keys: int  # of a token; as many values
    state: int  # of the recurrences of a sequence


def sizes(model: str) -> Sizes:
    config = CONFIGS[model]
    hidden, forward = config["hidden_size"], config.get("shared_intermediate_size", config["intermediate_size"])
    if "moe_intermediate_size" in config:
        forward = config["num_experts_per_tok"] * config["moe_intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    attending = kinds.count("full_attention")
    gate = queries if model.startswith("qwen3.5") else 0
    matrices = attending * hidden * (2 * queries + gate + 2 * keys)
    matrices += len(kinds) * hidden * 3 * forward
    recurrent, state = len(kinds) - attending, 0
    if "linear_num_key_heads" in config:
        key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"]
        value = values * config["linear_value_head_dim"]
        matrices += recurrent * hidden * (2 * key + 3 * value + 2 * values)
        state = recurrent * value * config["linear_key_head_dim"]
    elif "mamba_n_heads" in config:
        inner = config["mamba_n_heads"] * config["mamba_d_head"]
        mixed = 2 * config["mamba_n_groups"] * config["mamba_d_state"] + config["mamba_n_heads"]
        matrices += recurrent * hidden * (3 * inner + mixed)
        state = recurrent * inner * config["mamba_d_state"]
    else:
        matrices += recurrent * hidden * 4 * hidden
    return Sizes(matrices, attending * queries, attending * keys, state)
