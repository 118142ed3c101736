"""Small random language models, one per architecture that graft's tests cover.

Each has a head size other than hidden size / heads and fewer KV heads than heads where the architecture allows, a window
shorter than the prompts, and softcaps that change the results. Weights are drawn wide, so that what is left out shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers

VOCAB = 199
CONTEXT = 512


@dataclass(frozen=True)
class SmallModel:
    name: str
    config: Callable[[], Any]
    slow: bool = False

    def make(self) -> Any:
        """The model in f32, always with the same weights. Its attention is eager PyTorch's."""
        config = self.config()
        config._attn_implementation = "eager"
        torch.manual_seed(len(self.name) + 7)
        auto = transformers.AutoModelForCausalLM
        if config.is_encoder_decoder:
            speech = config.model_type == "whisper"
            auto = transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM
        model = auto.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # norms, biases, sinks
                    parameter.add_(torch.randn_like(parameter) * 0.3)
                # T5 does not scale scores; Zamba2's adapters add to them.
                elif name.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")) or "adapter" in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.3 / parameter.shape[-1] ** 0.5)
                elif any(part in name for part in ("embed", "wte", "wpe", "shared.", "attention_bias")):
                    parameter.copy_(torch.randn_like(parameter))
                else:
                    parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
        return model.requires_grad_(False)


_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=6,
    max_position_embeddings=CONTEXT,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
#: The configuration of Qwen3-0.6B.
QWEN3_0_6B = dict(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=True,
)
_LLAMA = dict(_COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=80)
_EXPERTS = dict(_LLAMA, num_experts_per_tok=2)


def _of(name: str, base: dict[str, Any], **own: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}Config")(**{**base, **own})


_DELTA = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
)
# Mamba-2, by the names that configurations have for its sizes.
_MAMBA2 = dict(mamba_n_heads=6, mamba_n_groups=2, mamba_d_head=16, mamba_d_state=8, mamba_expand=2, mamba_chunk_size=16)
_MIXED = ["linear_attention", "full_attention", "linear_attention"]
# Layers with recurrent states: packages take them, the fast route of `graft.compile` does not.
RECURRENT: tuple[SmallModel, ...] = (
    SmallModel(
        "qwen3_next",
        _of("Qwen3Next", _EXPERTS, num_experts=5, moe_intermediate_size=24, shared_expert_intermediate_size=20, **_DELTA),
    ),
    SmallModel("mamba", _of("Mamba", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, state_size=8))),
    SmallModel("lfm2", _of("Lfm2", _LLAMA, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)),
    SmallModel("falcon_h1", _of("FalconH1", _LLAMA, mamba_d_ssm=96, **_MAMBA2)),
    SmallModel("qwen3_5", _of("Qwen3_5Text", _LLAMA, architecture="Qwen3_5ForCausalLM", **{**_DELTA, "linear_key_head_dim": 16}), slow=True),
    SmallModel(
        "mamba2",
        _of(
            "Mamba2",
            dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_heads=6, head_dim=16, state_size=8, n_groups=2),
            chunk_size=16,
        ),
        slow=True,
    ),
    SmallModel(
        "granite_hybrid",
        _of("GraniteMoeHybrid", _EXPERTS, num_local_experts=4, shared_intermediate_size=40, layer_types=_MIXED, **_MAMBA2),
        slow=True,
    ),
    SmallModel(
        "nemotron_h",
        _of(
            "NemotronH",
            _LLAMA,
            layers_block_type=["mamba", "attention", "mlp"],
            mamba_num_heads=6,
            mamba_head_dim=16,
            n_groups=2,
            ssm_state_size=8,
            chunk_size=16,
        ),
        slow=True,
    ),
    SmallModel(
        "jamba",
        _of(
            "Jamba",
            _EXPERTS,
            num_experts=4,
            attn_layer_period=3,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
        ),
        slow=True,
    ),
    SmallModel(
        "lfm2_moe",
        _of(
            "Lfm2Moe",
            _EXPERTS,
            layer_types=["conv", "full_attention", "conv"],
            num_experts=4,
            moe_intermediate_size=24,
            num_dense_layers=1,
        ),
        slow=True,
    ),
    SmallModel(
        "qwen3_5_moe",
        _of(
            "Qwen3_5MoeText",
            _EXPERTS,
            architecture="Qwen3_5MoeForCausalLM",
            num_experts=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=20,
            **{**_DELTA, "linear_key_head_dim": 16},
        ),
        slow=True,
    ),
    SmallModel(  # three convolutions in a layer, and latent attention
        "kimi_linear",
        _of(
            "KimiLinear",
            {**_EXPERTS, "num_key_value_heads": 6},
            num_experts=4,
            moe_intermediate_size=24,
            num_shared_experts=1,
            kv_lora_rank=16,
            q_lora_rank=None,
            qk_rope_head_dim=8,
            qk_nope_head_dim=12,
            v_head_dim=12,
            linear_attn_config=dict(
                kda_layers=[1, 3], full_attn_layers=[2], head_dim=8, num_heads=4, short_conv_kernel_size=4
            ),
        ),
        slow=True,
    ),
    SmallModel(
        "falcon_mamba",
        _of("FalconMamba", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, state_size=8)),
        slow=True,
    ),
    SmallModel("bamba", _of("Bamba", _LLAMA, attn_layer_indices=[1], **_MAMBA2), slow=True),
    SmallModel("olmo_hybrid", _of("OlmoHybrid", _LLAMA, **_DELTA), slow=True),
    SmallModel(  # layers that share one transformer block, and scans head by head
        "zamba",
        _of(
            "Zamba",
            {**_COMMON, "num_hidden_layers": 4},
            num_key_value_heads=2,
            attention_head_dim=16,
            intermediate_size=80,
            mamba_d_state=8,
            mamba_dt_rank=5,
            n_mamba_heads=2,
            layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
        ),
    ),
    SmallModel(  # two shared blocks with adapters
        "zamba2",
        _of(
            "Zamba2",
            _COMMON,
            num_key_value_heads=6,
            intermediate_size=80,
            mamba_d_state=8,
            mamba_ngroups=2,
            n_mamba_heads=6,
            chunk_size=16,
            num_mem_blocks=2,
            use_shared_attention_adapter=True,
            adapter_rank=8,
            use_mem_rope=True,
            time_step_min=1e-6,  # below it transformers has other steps in a prompt than one by one
            layers_block_type=["hybrid"] * 3,
        ),
        slow=True,
    ),
    SmallModel(
        "recurrent_gemma",
        _of(
            "RecurrentGemma",
            _COMMON,
            num_key_value_heads=2,
            intermediate_size=96,
            attention_window_size=9,
            tie_word_embeddings=False,
        ),
    ),
    SmallModel(
        "rwkv",
        _of("Rwkv", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, rescale_every=2)),
    ),
)

_SHARED = {
    **_LLAMA,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB,
}
MODELS: tuple[SmallModel, ...] = (
    SmallModel("llama", _of("Llama", _LLAMA, attention_bias=True)),
    SmallModel("qwen2", _of("Qwen2", _LLAMA, use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    SmallModel("qwen3", _of("Qwen3", _LLAMA, tie_word_embeddings=True)),
    SmallModel(
        "qwen3_moe",
        _of("Qwen3Moe", _EXPERTS, num_experts=5, moe_intermediate_size=24, norm_topk_prob=True, mlp_only_layers=[1]),
    ),
    SmallModel("mixtral", _of("Mixtral", _EXPERTS, num_local_experts=5, sliding_window=11)),
    SmallModel("mistral", _of("Mistral", _LLAMA, sliding_window=7)),
    SmallModel(
        "gemma2",
        _of(
            "Gemma2",
            _LLAMA,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=6.0,
            query_pre_attn_scalar=20,
        ),
    ),
    SmallModel(
        "gemma3",
        lambda: transformers.Gemma3TextConfig(
            **_LLAMA, sliding_window=8, sliding_window_pattern=2, query_pre_attn_scalar=20
        ),
    ),
    SmallModel(
        "gemma3n",
        lambda: transformers.Gemma3nTextConfig(
            **_SHARED,
            laurel_rank=4,
            altup_num_inputs=2,
            activation_sparsity_pattern=[0.5, 0.0, 0.5, 0.0],
            final_logit_softcapping=9.0,
        ),
        slow=True,
    ),
    # Layers with keys and values of another layer, and an input of each token for each layer.
    SmallModel("gemma4", lambda: transformers.Gemma4TextConfig(**_SHARED, global_head_dim=16, use_double_wide_mlp=True)),
    SmallModel("phi3", _of("Phi3", _LLAMA, sliding_window=10, partial_rotary_factor=0.5)),
    SmallModel("smollm3", _of("SmolLM3", _LLAMA, no_rope_layers=[1, 0, 1])),
    SmallModel(
        "gpt2",
        lambda: transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=6, n_positions=CONTEXT, bos_token_id=1, eos_token_id=2
        ),
    ),
    SmallModel("opt", _of("OPT", _COMMON, ffn_dim=80, word_embed_proj_dim=32, do_layer_norm_before=True)),
    SmallModel("gpt_neox", _of("GPTNeoX", _COMMON, intermediate_size=80, rotary_pct=0.5), slow=True),
    SmallModel("cohere", _of("Cohere", _LLAMA, logit_scale=0.25, use_qk_norm=True), slow=True),
    SmallModel("olmo2", _of("Olmo2", _LLAMA), slow=True),
    SmallModel(
        "granite",
        _of(
            "Granite",
            _LLAMA,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            residual_multiplier=0.5,
            attention_multiplier=0.2,
        ),
        slow=True,
    ),
    SmallModel("gpt_oss", _of("GptOss", _EXPERTS, num_local_experts=5, sliding_window=8), slow=True),
    SmallModel(
        "deepseek_v3",
        lambda: transformers.DeepseekV3Config(
            **{k: v for k, v in _COMMON.items()},
            num_key_value_heads=6,
            intermediate_size=80,
            moe_intermediate_size=24,
            n_routed_experts=6,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=20,
            qk_rope_head_dim=8,
            qk_nope_head_dim=12,
            v_head_dim=10,
        ),
        slow=True,
    ),
)


def whisper(source: int) -> SmallModel:
    """Its encoder takes sources of one length alone."""
    config = _of(
        "Whisper", _SEQ2SEQ, num_mel_bins=8, max_source_positions=source, max_target_positions=96, bos_token_id=1
    )
    return SmallModel(f"whisper{source}", config)


# Encoder and decoder of different depth, and heads where the architecture allows.
_SEQ2SEQ = dict(
    vocab_size=VOCAB,
    d_model=48,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=6,
    encoder_ffn_dim=80,
    decoder_ffn_dim=64,
    pad_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=1,
)
_T5 = dict(
    vocab_size=VOCAB,
    d_model=48,
    d_kv=16,
    d_ff=80,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    relative_attention_num_buckets=12,
    relative_attention_max_distance=40,
    decoder_start_token_id=0,
)
SEQ2SEQ: tuple[SmallModel, ...] = (
    SmallModel("t5", _of("T5", _T5)),
    SmallModel("t5_gated", _of("T5", _T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False), slow=True),
    SmallModel("bart", _of("Bart", _SEQ2SEQ, max_position_embeddings=CONTEXT, scale_embedding=True)),
    whisper(64),
)
BY_NAME = {model.name: model for model in (*MODELS, *RECURRENT, *SEQ2SEQ)}
SEQ2SEQ_CASES = [pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.slow else []) for m in SEQ2SEQ]
CASES = [pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.slow else []) for m in (*MODELS, *RECURRENT)]


_TAKE_PADDING_FOR_TOKENS = ("recurrent_gemma", "rwkv")


def logits(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """Those of eager PyTorch. Where its code takes padding for tokens, of each row without it, behind zeros."""
    if mask is not None and model.config.model_type in _TAKE_PADDING_FOR_TOKENS:
        rows = [logits(model, row[real == 1][None])[0] for row, real in zip(ids, mask)]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, ids.shape[1] - len(row), 0)) for row in rows])
    with torch.no_grad():
        return model(ids, attention_mask=mask, position_ids=positions).logits


def left_padded(batch: int, tokens: int, pads: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Prompts padded on the left: ids, attention mask, position_ids, cache_position."""
    ids = torch.randint(3, VOCAB, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones(batch, tokens, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    positions = mask.cumsum(1) - 1
    return ids, mask, positions.clamp(min=0), positions.masked_fill(mask == 0, -1)
