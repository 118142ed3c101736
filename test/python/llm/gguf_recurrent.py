"""Models with recurrent layers as llama.cpp's converter writes them: configurations, keys and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

import llm_models

_BASE = {**llm_models._LLAMA, "pad_token_id": None}
_EXPERTS = {**_BASE, "num_experts_per_tok": 2}
_KINDS = ["linear_attention", "full_attention", "linear_attention"]
_MAMBA2 = dict(mamba_n_heads=6, mamba_d_head=16, mamba_d_state=16, mamba_chunk_size=16)
# llama.cpp wants heads of keys and values of one size, and layers of attention at one interval.
_DELTA = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    num_hidden_layers=4,
    layer_types=["linear_attention", "full_attention"] * 2,
)
_MULTIPLIERS = dict(
    embedding_multiplier=1.5,
    lm_head_multiplier=0.7,
    key_multiplier=0.9,
    attention_in_multiplier=1.1,
    attention_out_multiplier=0.8,
    ssm_in_multiplier=1.2,
    ssm_out_multiplier=0.6,
    mlp_multipliers=[1.3, 0.9],
    ssm_multipliers=[1.1, 0.9, 1.2, 0.8, 1.05],
)


def _qwen35() -> Any:
    config = transformers.Qwen3_5TextConfig(
        **{**_BASE, **_DELTA},
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )
    config.architectures = ["Qwen3_5ForCausalLM"]
    return config


CONFIGS: dict[str, Callable[[], Any]] = {
    "mamba": lambda: transformers.MambaConfig(
        vocab_size=llm_models.VOCAB, hidden_size=48, num_hidden_layers=3, state_size=16, tie_word_embeddings=True
    ),
    "mamba2": lambda: transformers.Mamba2Config(
        vocab_size=llm_models.VOCAB,
        hidden_size=48,
        num_hidden_layers=3,
        num_heads=6,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=16,
    ),
    "lfm2": lambda: transformers.Lfm2Config(
        **{**_BASE, "head_dim": 8},
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=True,
    ),
    "granitehybrid": lambda: transformers.GraniteMoeHybridConfig(
        **{**_EXPERTS, "head_dim": 8},
        **_MAMBA2,
        mamba_n_groups=1,
        num_local_experts=4,
        shared_intermediate_size=40,
        layer_types=_KINDS,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.5,
        attention_multiplier=0.2,
    ),
    "granitehybrid_dense": lambda: transformers.GraniteMoeHybridConfig(
        **{**_BASE, "head_dim": 8, "intermediate_size": 40},
        **_MAMBA2,
        mamba_n_groups=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=40,
        layer_types=_KINDS,
        attention_multiplier=0.2,
        position_embedding_type="rope",
    ),
    "falcon-h1": lambda: transformers.FalconH1Config(
        **_BASE, **_MAMBA2, **_MULTIPLIERS, mamba_n_groups=2, mamba_d_ssm=96, mamba_rms_norm=True, mamba_norm_before_gate=False
    ),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **_BASE,
        layers_block_type=["mamba", "attention", "mlp"],
        mamba_num_heads=6,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=16,
    ),
    "jamba": lambda: transformers.JambaConfig(
        **{**_EXPERTS, "head_dim": 8},
        num_experts=4,
        attn_layer_period=3,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=16,
    ),
    "qwen3next": lambda: transformers.Qwen3NextConfig(
        **{**_EXPERTS, **_DELTA},
        num_experts=4,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=24,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ),
    "qwen35": _qwen35,
}


def settle(model: torch.nn.Module) -> None:
    """transformers lets no time step of Nemotron-H come below 0.001, llama.cpp does: here none is smaller."""
    for name, parameter in model.named_parameters():
        if model.config.model_type == "nemotron_h" and name.endswith("dt_bias"):
            parameter.add_(8.0)


def architecture_of(name: str) -> str:
    return name.removesuffix("_dense")


def values(config: Any, name: str) -> dict[str, Any]:
    own: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", 1 << 20),
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "attention.layer_norm_rms_epsilon": _eps(config),
        **_KEYS[architecture_of(name)](config),
    }
    if getattr(config, "num_attention_heads", None):
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        own.setdefault("feed_forward_length", config.intermediate_size)
        own["attention.head_count"] = config.num_attention_heads
        own.setdefault("attention.head_count_kv", config.num_key_value_heads)
        own["attention.key_length"] = own["attention.value_length"] = size
        own.setdefault("rope.dimension_count", size)
        if getattr(config, "rope_parameters", None):
            own["rope.freq_base"] = float(config.rope_parameters["rope_theta"])
    architecture = architecture_of(name)
    pairs = {"general.architecture": architecture, "tokenizer.ggml.model": "none"}
    written = {key: np.array(value, np.int32) if isinstance(value, list) else value for key, value in own.items()}
    return {**pairs, **{f"{architecture}.{key}": value for key, value in written.items()}}


def _eps(config: Any) -> float:
    names = ("layer_norm_epsilon", "norm_eps", "rms_norm_eps")
    return next(getattr(config, name) for name in names if getattr(config, name, None) is not None)


def _ssm(kernel: int, inner: int, state: int, rank: int, groups: int | None = None) -> dict[str, int]:
    found = {"conv_kernel": kernel, "inner_size": inner, "state_size": state, "time_step_rank": rank}
    return {f"ssm.{key}": value for key, value in {**found, **({"group_count": groups} if groups else {})}.items()}


def _kv(config: Any) -> dict[str, list[int]]:
    attends = [kind in ("full_attention", "attention") for kind in config.layer_types]
    return {"attention.head_count_kv": [config.num_key_value_heads if one else 0 for one in attends]}


def _prefixed(config: Any) -> dict[str, int]:
    inner = config.mamba_n_heads * config.mamba_d_head
    return _ssm(config.mamba_d_conv, inner, config.mamba_d_state, config.mamba_n_heads, config.mamba_n_groups)


def _delta(config: Any) -> dict[str, Any]:
    inner = config.linear_num_value_heads * config.linear_value_head_dim
    return {
        **_ssm(config.linear_conv_kernel_dim, inner, config.linear_key_head_dim, config.linear_num_value_heads, config.linear_num_key_heads),
        "full_attention_interval": config.layer_types.index("full_attention") + 1,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
    }  # fmt: skip


_NO_ATTENTION = {"feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0}
_KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "mamba": lambda c: {
        **_NO_ATTENTION,
        **_ssm(c.conv_kernel, c.intermediate_size, c.state_size, c.time_step_rank),
        "ssm.dt_b_c_rms": False,
    },
    "mamba2": lambda c: {
        **_NO_ATTENTION,
        **_ssm(c.conv_kernel, c.num_heads * c.head_dim, c.state_size, c.num_heads, c.n_groups),
    },
    "lfm2": lambda c: {**_kv(c), "shortconv.l_cache": c.conv_L_cache},
    "granitehybrid": lambda c: {
        **_kv(c),
        **_prefixed(c),
        "attention.scale": float(c.attention_multiplier),
        "embedding_scale": float(c.embedding_multiplier),
        "residual_scale": float(c.residual_multiplier),
        "logit_scale": float(c.logits_scaling),
        "rope.scaling.finetuned": c.position_embedding_type == "rope",
        "expert_shared_feed_forward_length": c.shared_intermediate_size,
        **({"expert_count": c.num_local_experts, "expert_used_count": c.num_experts_per_tok} if c.num_local_experts else {}),
    },
    "falcon-h1": _prefixed,
    "nemotron_h": lambda c: {
        "attention.layer_norm_epsilon": float(c.layer_norm_epsilon),
        **_ssm(c.conv_kernel, c.mamba_num_heads * c.mamba_head_dim, c.ssm_state_size, c.mamba_num_heads, c.n_groups),
        "attention.head_count_kv": [c.num_key_value_heads if kind in ("attention", "full_attention") else 0 for kind in c.layers_block_type],
        "feed_forward_length": [c.intermediate_size if kind == "mlp" else 0 for kind in c.layers_block_type],
    },
    "jamba": lambda c: {
        **_kv(c),
        **_ssm(c.mamba_d_conv, c.mamba_expand * c.hidden_size, c.mamba_d_state, c.mamba_dt_rank),
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
    },
    "qwen3next": lambda c: {
        **_delta(c),
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.moe_intermediate_size,
        "expert_shared_feed_forward_length": c.shared_expert_intermediate_size,
    },
    "qwen35": lambda c: {**_delta(c), "rope.dimension_sections": [*c.rope_parameters["mrope_section"], 0]},
}  # fmt: skip


# Tensors: names by the last parts of transformers' -------------------------------------------------------------------

_ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "out_proj": "attn_output"}
_MIXER = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
    "in_proj_ba": "ssm_ba",
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
}
_FORWARD = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
    "gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
}
_NORMS = {
    "norm": "attn_norm",
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
}
_OUTSIDE = {
    "embeddings": "token_embd",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "embedding_norm": "token_embd_norm",
}
_MIXERS = ("mamba", "linear_attn")


def _tiled(tensor: torch.Tensor, config: Any, size: int, dim: int = 0) -> torch.Tensor:
    """Heads of values in turns by head of keys, not in groups."""
    keys = config.linear_num_key_heads
    heads = tensor.unflatten(dim, (keys, -1, size))
    return heads.transpose(dim, dim + 1).flatten(dim, dim + 2)


def tensors(model: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
    config, architecture = model.config, architecture_of(name)
    tied = getattr(config, "tie_word_embeddings", False)
    found: dict[str, torch.Tensor] = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight":
            if not tied:
                found["output.weight"] = tensor * getattr(config, "lm_head_multiplier", 1.0)
            continue
        parts = key.split(".")[1:]
        if parts[0] != "layers":
            tensor = tensor * getattr(config, "embedding_multiplier", 1.0) if architecture == "falcon-h1" and "embed" in key else tensor
            found[f"{_OUTSIDE[parts[0]]}.weight"] = tensor + _offset(architecture, key)
            continue
        for rest, part in _of_layer(architecture, config, parts[2:], tensor):
            found[f"blk.{parts[1]}.{rest}"] = part
    return found


def _offset(architecture: str, key: str) -> float:
    own = key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight")
    return 1.0 if own and architecture in ("qwen3next", "qwen35") else 0.0


def _of_layer(architecture: str, config: Any, parts: list[str], tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    path, last = ".".join(parts), parts[-2] if parts[-1] in ("weight", "bias") else parts[-1]
    if last.endswith("norm") and not (last == "norm" and len(parts) > 2) and last in _NORMS:
        stem = _NORMS[last]
        if architecture == "granitehybrid" and stem == "post_attention_norm":
            stem = "ffn_norm"
        end = "" if architecture == "falcon-h1" and stem == "ffn_norm" else ".weight"
        return [(stem + end, tensor + _offset(architecture, path))]
    if "experts" in parts:
        if last == "down_proj":
            return [("ffn_down_exps.weight", tensor)]
        return [(f"ffn_{kind}_exps.weight", half) for kind, half in zip(("gate", "up"), tensor.chunk(2, 1))]
    if parts[0] == "shared_mlp":
        end = "_shexp" if config.num_local_experts else ""
        if last == "output_linear":
            return [(f"ffn_down{end}.weight", tensor)]
        return [(f"ffn_{kind}{end}.weight", half) for kind, half in zip(("gate", "up"), tensor.chunk(2, 0))]
    if "shared_expert" in parts:
        return [(f"{_FORWARD[last]}_shexp.weight", tensor)]
    if parts[0] == "conv":
        return [(f"shortconv.{last}.weight", tensor.squeeze(1))]
    if parts[0] in _MIXERS or (parts[0] == "mixer" and last not in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")):
        return _of_mixer(architecture, config, last, parts[-1], tensor)
    if architecture == "granitehybrid" and last in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if last == "q_proj" else config.num_key_value_heads
        tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
    if architecture == "falcon-h1":
        factors = {
            "q_proj": config.attention_in_multiplier,
            "k_proj": config.key_multiplier * config.attention_in_multiplier,
            "v_proj": config.attention_in_multiplier,
            "o_proj": config.attention_out_multiplier,
            "gate_proj": config.mlp_multipliers[0],
            "down_proj": config.mlp_multipliers[1],
        }
        tensor = tensor * factors.get(last, 1.0)
    names = _ATTENTION if last in _ATTENTION else _FORWARD
    stem = names[last]
    return [(f"{stem}.weight", tensor.squeeze(0) if stem == "ffn_gate_inp_shexp" else tensor)]


def _of_mixer(architecture: str, config: Any, last: str, end: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    second = architecture in ("mamba2", "granitehybrid", "falcon-h1", "nemotron_h")
    if architecture == "qwen35":
        size = config.linear_value_head_dim
        mixed = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        if last in ("in_proj_qkv", "conv1d"):
            tensor = torch.cat([tensor[:mixed], _tiled(tensor[mixed:], config, size)])
        elif last == "in_proj_z":
            tensor = _tiled(tensor, config, size)
        elif last == "out_proj":
            tensor = _tiled(tensor, config, size, 1)
        elif last != "norm":
            tensor = _tiled(tensor, config, 1)
    if last == "A_log":
        return [("ssm_a", (-tensor.exp())[:, None] if second else -tensor.exp())]
    if last == "D":
        return [("ssm_d", tensor[:, None] if second else tensor)]
    if last == "dt_bias":
        return [("ssm_dt.bias", tensor)]
    if last == "conv1d":
        return [(f"ssm_conv1d.{end}", tensor.squeeze(1) if end == "weight" else tensor)]
    if last == "norm" and second:
        groups = getattr(config, "mamba_n_groups", None) or config.n_groups
        return [("ssm_norm.weight", tensor.reshape(groups, -1))]
    if last == "in_proj_qkvz":
        keys, size, values = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim
        each = config.linear_num_value_heads // keys * values
        q, k, v, z = (part.flatten(0, 1) for part in tensor.unflatten(0, (keys, -1)).split([size, size, each, each], 1))
        return [("attn_qkv.weight", torch.cat([q, k, v])), ("attn_gate.weight", z)]
    if architecture == "falcon-h1" and last == "in_proj":
        states = config.mamba_n_groups * config.mamba_d_state
        sizes = [config.mamba_d_ssm, config.mamba_d_ssm, states, states, config.mamba_n_heads]
        parts = tensor.split(sizes)
        tensor = torch.cat([part * factor for part, factor in zip(parts, config.ssm_multipliers)]) * config.ssm_in_multiplier
    if architecture == "falcon-h1" and last == "out_proj":
        tensor = tensor * config.ssm_out_multiplier
    return [(f"{_MIXER[last]}.{end}", tensor)]
