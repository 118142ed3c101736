"""The architectures of GGUF files: what their keys and tensors are called in transformers, and what llama.cpp's converter
has changed in them.

A recurrent layer's tensors are those of transformers in another form: A = -exp(A_log), sizes of 1 left out or put in, the
gated norm in its groups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from graft.errors import ExportError
from graft.llm.trace import without_weights


class Reader(Protocol):
    """The file, as an architecture asks for it."""

    def get(self, key: str, default: Any = None) -> Any:
        """Of a key of the architecture."""

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor; None where there is none."""


@dataclass(frozen=True)
class Architecture:
    config: str  # transformers' class
    layer: dict[str, str]  # a name with its end ("ssm_dt.bias") is for that tensor alone
    special: Callable[[Reader, dict[str, Any]], None] = lambda reader, config: None
    fields: dict[str, str] = field(default_factory=dict)  # besides FIELDS
    handled: frozenset[str] = frozenset()  # keys that `special` reads, or without effect on the results
    optional: frozenset[str] = frozenset()  # of FIELDS
    lists: frozenset[str] = frozenset()  # keys that may have a number for each layer; the field is the largest
    permuted: bool = False  # rows of q and k are in the order of interleaved rotation
    norm_offset: float = 0.0  # the file's norm weights are larger by this
    outside: dict[str, str] = field(default_factory=lambda: _OUTSIDE)
    layers: str = "model.layers"
    experts: str = "mlp.experts"
    joined: Mapping[tuple[str, str], str] = field(default_factory=dict)  # two tensors, one after the other by rows
    prepare: Callable[[torch.nn.Module], None] = lambda model: None  # to hold the weights as the file has them


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

_RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
# Keys of every architecture -> fields of transformers' configurations.
FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    **_RMS,
    "vocab_size": "vocab_size",
}

# Attention --------------------------------------------------------------------------------------------------------


def _llama(reader: Reader, config: dict[str, Any]) -> None:
    config["attention_bias"] = reader.sizes("blk.0.attn_q.bias") is not None
    config["mlp_bias"] = reader.sizes("blk.0.ffn_up.bias") is not None


def _qwen3(reader: Reader, config: dict[str, Any]) -> None:
    config["attention_bias"] = reader.sizes("blk.0.attn_q.bias") is not None


def _qwen3_moe(reader: Reader, config: dict[str, Any]) -> None:
    config["norm_topk_prob"] = True  # what llama.cpp does for this architecture


def _gemma2(reader: Reader, config: dict[str, Any]) -> None:
    # llama.cpp scales by the size of a head, except in the 27B model.
    wide = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = wide if config["num_hidden_layers"] == 46 else config["head_dim"]


def _gemma3(reader: Reader, config: dict[str, Any]) -> None:
    wide = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = wide if config["num_hidden_layers"] == 62 else config["head_dim"]
    # One layer in six has full attention; the others have a rotary base of their own.
    config["layer_types"] = [
        "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(config["num_hidden_layers"])
    ]
    full = {**config["rope_parameters"], "rope_theta": float(reader.get("rope.freq_base", 1_000_000.0))}
    local = {"rope_type": "default", "rope_theta": 10000.0}
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": local}


# Recurrent layers -------------------------------------------------------------------------------------------------

_KV_HEADS, _FORWARD = "attention.head_count_kv", "feed_forward_length"
_OTHER_EPSILON = "attention.layer_norm_epsilon"  # the same number, in files of some converters the only one
_SSM = frozenset({"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"})
_SSM2 = _SSM | {"ssm.group_count"}
_MIXER = {
    "ssm_in": "in_proj",
    "ssm_conv1d": "conv1d",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_out": "out_proj",
}
_MIXER1 = {**_MIXER, "ssm_x": "x_proj", "ssm_dt": "dt_proj"}
_MIXER2 = {**_MIXER, "ssm_dt.bias": "dt_bias", "ssm_norm": "norm"}
_ATTENTION = {name: to for name, to in _LLAMA.items() if name.startswith("attn_") and name != "attn_norm"}


def _within(module: str, names: Mapping[str, str]) -> dict[str, str]:
    return {name: f"{module}.{to}" for name, to in names.items()}


def _experts(**own: str) -> dict[str, str]:
    return {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", **own}


def _needed(reader: Reader, key: str) -> Any:
    value = reader.get(key)
    if value is None:
        raise ExportError(f"expected the key '{key}' of the file's architecture, found none")
    return value


def _kinds(reader: Reader, config: Mapping[str, Any], recurrent: str = "linear_attention") -> list[str]:
    """Of each layer, by its heads of keys and values."""
    heads = _needed(reader, _KV_HEADS)
    heads = heads if isinstance(heads, list) else [heads] * config["num_hidden_layers"]
    return ["full_attention" if count else recurrent for count in heads]


def _every(numbers: list[int], layers: int, what: str) -> tuple[int, int]:
    """Period and offset of layers with these numbers, which configurations have instead of a list."""
    if not numbers:
        return layers + 1, layers
    period = numbers[1] - numbers[0] if len(numbers) > 1 else layers
    if numbers != list(range(numbers[0], layers, period)):
        raise ExportError(f"expected {what} at equal distances, found them in the layers {numbers}")
    return period, numbers[0]


def _mamba(reader: Reader, config: dict[str, Any]) -> None:
    if reader.get("ssm.dt_b_c_rms"):
        raise ExportError("expected a model without norms of dt, B and C ('ssm.dt_b_c_rms'), found one of FalconMamba")
    for field_of_attention in ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"):
        config.pop(field_of_attention, None)
    config.update(
        layer_norm_epsilon=config.pop("rms_norm_eps"),
        conv_kernel=_needed(reader, "ssm.conv_kernel"),
        state_size=_needed(reader, "ssm.state_size"),
        time_step_rank=_needed(reader, "ssm.time_step_rank"),
        expand=_expansion(reader, config),
    )


def _mamba2(reader: Reader, config: dict[str, Any]) -> None:
    _mamba(reader, config)
    heads = config.pop("time_step_rank")
    config.update(num_heads=heads, head_dim=_of_head(reader, heads), n_groups=_needed(reader, "ssm.group_count"))


def _expansion(reader: Reader, config: Mapping[str, Any]) -> int:
    return _divided(_needed(reader, "ssm.inner_size"), config["hidden_size"], "ssm.inner_size by embedding_length")


def _of_head(reader: Reader, heads: int) -> int:
    return _divided(_needed(reader, "ssm.inner_size"), heads, "ssm.inner_size by ssm.time_step_rank")


def _divided(number: int, by: int, what: str) -> int:
    if not by or number % by:
        raise ExportError(f"expected to divide {what}, found {number} and {by}")
    return number // by


def _prefixed_mamba2(reader: Reader) -> dict[str, Any]:
    """Mamba-2 within a hybrid, by the names that most configurations have for its sizes."""
    heads = _needed(reader, "ssm.time_step_rank")
    return dict(
        mamba_n_heads=heads,
        mamba_d_head=_of_head(reader, heads),
        mamba_n_groups=_needed(reader, "ssm.group_count"),
        mamba_d_state=_needed(reader, "ssm.state_size"),
        mamba_d_conv=_needed(reader, "ssm.conv_kernel"),
    )


def _lfm2(reader: Reader, config: dict[str, Any]) -> None:
    config.update(
        norm_eps=config.pop("rms_norm_eps"),
        conv_L_cache=_needed(reader, "shortconv.l_cache"),
        layer_types=_kinds(reader, config, "conv"),
        block_auto_adjust_ff_dim=False,  # feed_forward_length is the adjusted one
    )
    del config["head_dim"]


def _granite_hybrid(reader: Reader, config: dict[str, Any]) -> None:
    scales = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "attention_multiplier": "attention.scale",
    }
    config.update({to: value for to, key in scales.items() if (value := reader.get(key)) is not None})
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)
    kinds = _kinds(reader, config)
    config.update(
        _prefixed_mamba2(reader),
        mamba_expand=_expansion(reader, config),
        layer_types=kinds,
        # As llama.cpp: models without recurrent layers have another architecture; of the others Bamba has positions.
        position_embedding_type="rope" if reader.get("rope.scaling.finetuned") else None,
    )
    shared = reader.sizes("blk.0.ffn_gate_shexp.weight") or reader.sizes("blk.0.ffn_gate.weight")
    config.update(shared_intermediate_size=shared[0] if shared else 0)
    config.setdefault("num_local_experts", 0)


def _falcon_h1(reader: Reader, config: dict[str, Any]) -> None:
    """Its multipliers are in the weights."""
    config.update(
        _prefixed_mamba2(reader),
        mamba_d_ssm=_needed(reader, "ssm.inner_size"),
        mamba_rms_norm=reader.sizes("blk.0.ssm_norm.weight") is not None,
        mamba_norm_before_gate=False,
    )


def _nemotron_h(reader: Reader, config: dict[str, Any]) -> None:
    forward = _needed(reader, _FORWARD)
    if not isinstance(forward, list):
        raise ExportError(f"expected '{_FORWARD}' as a list, a number for each layer, found {forward}")
    kinds = ["mlp" if width else "attention" if kind == "full_attention" else "mamba"
             for width, kind in zip(forward, _kinds(reader, config), strict=True)]  # fmt: skip
    heads = _needed(reader, "ssm.time_step_rank")
    config.update(
        layer_norm_epsilon=config.pop("rms_norm_eps", None) or _needed(reader, _OTHER_EPSILON),
        layers_block_type=kinds,
        mamba_num_heads=heads,
        mamba_head_dim=_of_head(reader, heads),
        n_groups=_needed(reader, "ssm.group_count"),
        ssm_state_size=_needed(reader, "ssm.state_size"),
        conv_kernel=_needed(reader, "ssm.conv_kernel"),
    )
    del config["num_hidden_layers"]


def _jamba(reader: Reader, config: dict[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    attention = [i for i, kind in enumerate(_kinds(reader, config)) if kind == "full_attention"]
    routed = [i for i in range(layers) if reader.sizes(f"blk.{i}.ffn_gate_inp.weight") is not None]
    config["attn_layer_period"], config["attn_layer_offset"] = _every(attention, layers, "layers of attention")
    config["expert_layer_period"], config["expert_layer_offset"] = _every(routed, layers, "layers with experts")
    config.update(
        mamba_d_state=_needed(reader, "ssm.state_size"),
        mamba_d_conv=_needed(reader, "ssm.conv_kernel"),
        mamba_dt_rank=_needed(reader, "ssm.time_step_rank"),
        mamba_expand=_expansion(reader, config),
    )
    del config["head_dim"]


def _delta(reader: Reader, config: dict[str, Any]) -> None:
    """The gated delta rule of Qwen3-Next and Qwen3.5."""
    layers, values = config["num_hidden_layers"], _needed(reader, "ssm.time_step_rank")
    recurrent = reader.get("attention.recurrent_layers")
    if recurrent is None:
        interval = reader.get("full_attention_interval", 4)
        recurrent = [(i + 1) % interval != 0 for i in range(layers)]
    config.update(
        layer_types=["linear_attention" if one else "full_attention" for one in recurrent[:layers]],
        linear_conv_kernel_dim=_needed(reader, "ssm.conv_kernel"),
        linear_num_key_heads=_needed(reader, "ssm.group_count"),
        linear_key_head_dim=_needed(reader, "ssm.state_size"),
        linear_num_value_heads=values,
        linear_value_head_dim=_of_head(reader, values),
    )


def _qwen35(reader: Reader, config: dict[str, Any]) -> None:
    config["num_hidden_layers"] -= reader.get("nextn_predict_layers", 0)  # blocks that draft tokens come last
    _delta(reader, config)
    # The sections of a rotation are for positions in pictures: a text has the same three times.
    config["rope_parameters"].update(mrope_section=list(_needed(reader, "rope.dimension_sections"))[:3], mrope_interleaved=True)


class _Halves(torch.nn.Module):
    """Queries, keys and values of all heads one after the other, and the gate: two matrices instead of Qwen3-Next's one,
    whose rows are in groups by head of keys."""

    def __init__(self, inputs: int, mixed: int, gate: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(inputs, mixed, bias=False)
        self.z = torch.nn.Linear(inputs, gate, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.qkv(x), self.z(x)


def _in_order(module: Any, mixed: tuple[torch.Tensor, torch.Tensor], beta_alpha: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`fix_query_key_value_ordering` of what `_Halves` gives, in which it is in order."""
    query, key, value = mixed[0].split([module.key_dim, module.key_dim, module.value_dim], dim=-1)
    value, z = (x.unflatten(-1, (-1, module.head_v_dim)) for x in (value, mixed[1]))
    # Of each head of keys, those of its heads of values.
    beta, alpha = beta_alpha.unflatten(-1, (module.num_k_heads, -1)).chunk(2, dim=-1)
    return query, key, value, z, beta.flatten(-2), alpha.flatten(-2)


def _linear_attention(model: torch.nn.Module) -> list[Any]:
    return [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]


def _with_halves(model: torch.nn.Module) -> None:
    for module in _linear_attention(model):
        with without_weights():
            module.in_proj_qkvz = _Halves(module.hidden_size, module.conv_dim, module.value_dim)
        module.fix_query_key_value_ordering = functools.partial(_in_order, module)


def _with_tiled_heads(model: torch.nn.Module) -> None:
    """Head h of the values has the key of head h mod the heads of keys in llama.cpp's files of Qwen3.5, also where columns
    of blocks hold several heads: they stay in this order."""
    for module in _linear_attention(model):
        module.forward = functools.partial(type(module).forward, module, tiled_heads=True)


_DELTA = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    **_ATTENTION,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_DELTA_KEYS = _SSM2 | {"full_attention_interval", "attention.recurrent_layers"}
_MAMBA_OUTSIDE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
_FINAL_OUTSIDE = {**_OUTSIDE, "output_norm": "model.final_layernorm"}

_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
ARCHITECTURES = {
    "llama": Architecture("LlamaConfig", _LLAMA, _llama, permuted=True),
    "qwen2": Architecture("Qwen2Config", _LLAMA),
    "qwen3": Architecture("Qwen3Config", _QWEN3, _qwen3),
    "qwen3moe": Architecture(
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
    "gemma2": Architecture("Gemma2Config", _GEMMA2, _gemma2, fields={**_WINDOW, **_CAPS}, norm_offset=1.0),
    "gemma3": Architecture(
        "Gemma3TextConfig",
        {**_GEMMA2, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
        _gemma3,
        fields={**_WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        norm_offset=1.0,
    ),
    "phi3": Architecture("Phi3Config", _PHI3, fields=_WINDOW),
    "mamba": Architecture(
        "MambaConfig",
        {"attn_norm": "norm", **_within("mixer", _MIXER1)},
        _mamba,
        handled=_SSM | {"ssm.dt_b_c_rms"},
        outside=_MAMBA_OUTSIDE,
        layers="backbone.layers",
    ),
    "mamba2": Architecture(
        "Mamba2Config",
        {"attn_norm": "norm", **_within("mixer", _MIXER2)},
        _mamba2,
        handled=_SSM2,
        outside=_MAMBA_OUTSIDE,
        layers="backbone.layers",
    ),
    "lfm2": Architecture(
        "Lfm2Config",
        {
            **_ATTENTION,
            "attn_norm": "operator_norm",
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.conv": "conv.conv",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_norm": "ffn_norm",
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
        },
        _lfm2,
        handled=frozenset({"shortconv.l_cache"}),
        lists=frozenset({_KV_HEADS}),
        outside={**_OUTSIDE, "token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"},
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridConfig",
        {
            "attn_norm": "input_layernorm",
            **_ATTENTION,
            **_within("mamba", _MIXER2),
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate_inp": "block_sparse_moe.router",
            "ffn_down": "shared_mlp.output_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
        },
        _granite_hybrid,
        fields=_experts(expert_count="num_local_experts"),
        handled=_SSM2
        | {"embedding_scale", "residual_scale", "logit_scale", "attention.scale", "expert_shared_feed_forward_length"},
        lists=frozenset({_KV_HEADS}),
        permuted=True,
        experts="block_sparse_moe.experts",
        joined={
            ("ffn_gate", "ffn_up"): "shared_mlp.input_linear",
            ("ffn_gate_shexp", "ffn_up_shexp"): "shared_mlp.input_linear",
        },
    ),
    "falcon-h1": Architecture(
        "FalconH1Config",
        {
            "attn_norm": "input_layernorm",
            **_ATTENTION,
            **_within("mamba", _MIXER2),
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        _falcon_h1,
        handled=_SSM2,
        outside=_FINAL_OUTSIDE,
    ),
    "nemotron_h": Architecture(
        "NemotronHConfig",
        {
            "attn_norm": "norm",
            **{name: to.replace("self_attn", "mixer") for name, to in _ATTENTION.items()},
            **_within("mixer", _MIXER2),
            "ffn_up": "mixer.up_proj",
            "ffn_down": "mixer.down_proj",
        },
        _nemotron_h,
        handled=_SSM2 | {_OTHER_EPSILON},
        optional=frozenset(_RMS),
        lists=frozenset({_KV_HEADS, _FORWARD}),
        outside={**_OUTSIDE, "token_embd": "model.embeddings", "output_norm": "model.norm_f"},
    ),
    "jamba": Architecture(
        "JambaConfig",
        {
            "attn_norm": "input_layernorm",
            **_ATTENTION,
            **_within("mamba", _MIXER1),
            "ssm_dt_norm": "mamba.dt_layernorm",
            "ssm_b_norm": "mamba.b_layernorm",
            "ssm_c_norm": "mamba.c_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        _jamba,
        fields=_experts(),
        handled=_SSM,
        lists=frozenset({_KV_HEADS}),
        outside=_FINAL_OUTSIDE,
        experts="feed_forward.experts",
    ),
    "qwen3next": Architecture(
        "Qwen3NextConfig",
        {
            **_DELTA,
            "attn_qkv": "linear_attn.in_proj_qkvz.qkv",
            "attn_gate": "linear_attn.in_proj_qkvz.z",
            "ssm_ba": "linear_attn.in_proj_ba",
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        },
        _delta,
        fields=_experts(
            expert_feed_forward_length="moe_intermediate_size",
            expert_shared_feed_forward_length="shared_expert_intermediate_size",
        ),
        handled=_DELTA_KEYS,
        norm_offset=1.0,
        prepare=_with_halves,
    ),
    "qwen35": Architecture(
        "Qwen3_5TextConfig",
        {
            **_DELTA,
            "attn_qkv": "linear_attn.in_proj_qkv",
            "attn_gate": "linear_attn.in_proj_z",
            "ssm_beta": "linear_attn.in_proj_b",
            "ssm_alpha": "linear_attn.in_proj_a",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
        _qwen35,
        handled=_DELTA_KEYS | {"nextn_predict_layers", "rope.dimension_sections"},
        norm_offset=1.0,
        prepare=_with_tiled_heads,
    ),
}

__all__ = ["ARCHITECTURES", "FIELDS", "Architecture", "Reader"]
