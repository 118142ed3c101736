"""Architectures under `graft.compile`: those of `llm_models`, more, and some that its fast route does not take, with the reason."""

from __future__ import annotations

import llm_models
from llm_models import _COMMON, _EXPERTS, _LLAMA, SmallModel, _of

_WINDOWED = dict(_LLAMA, sliding_window=8)
_LATENT = dict(
    _COMMON,
    num_key_value_heads=6,
    intermediate_size=80,
    kv_lora_rank=16,
    q_lora_rank=20,
    qk_rope_head_dim=8,
    qk_nope_head_dim=12,
    v_head_dim=10,
)
_ROUTED = dict(
    n_routed_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    n_shared_experts=1,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
)
_SHARED = dict(num_experts=5, moe_intermediate_size=24, shared_expert_intermediate_size=24)
_OLD = dict(vocab_size=llm_models.VOCAB, n_embd=48, n_layer=3, n_head=6, n_positions=llm_models.CONTEXT)

MORE: tuple[SmallModel, ...] = (
    SmallModel("apertus", _of("Apertus", _LLAMA)),
    SmallModel("arcee", _of("Arcee", _LLAMA)),
    SmallModel("biogpt", _of("BioGpt", _COMMON, intermediate_size=80)),
    SmallModel("bitnet", _of("BitNet", _COMMON, num_key_value_heads=2, intermediate_size=80)),
    SmallModel("cohere2", _of("Cohere2", _WINDOWED)),
    SmallModel("cwm", _of("Cwm", _WINDOWED)),
    SmallModel("deepseek_v2", _of("DeepseekV2", _LATENT, **_ROUTED)),
    SmallModel("dots1", _of("Dots1", _LLAMA, **_ROUTED)),
    SmallModel("ernie4_5", _of("Ernie4_5", _LLAMA)),
    SmallModel("exaone4", _of("Exaone4", _WINDOWED)),
    SmallModel("gemma", _of("Gemma", _LLAMA)),
    SmallModel("gemma4_text", _of("Gemma4Text", _WINDOWED)),
    SmallModel("glm", _of("Glm", _LLAMA)),
    SmallModel("glm4", _of("Glm4", _LLAMA)),
    SmallModel("gpt_bigcode", _of("GPTBigCode", _OLD)),
    SmallModel("granitemoe", _of("GraniteMoe", _EXPERTS, num_local_experts=5)),
    SmallModel("helium", _of("Helium", _COMMON, num_key_value_heads=2, head_dim=8, intermediate_size=80)),
    SmallModel("hunyuan_v1_dense", _of("HunYuanDenseV1", _LLAMA)),
    SmallModel(
        "llama4_text",
        _of(
            "Llama4Text",
            _LLAMA,
            intermediate_size_mlp=64,
            attention_chunk_size=6,
            num_local_experts=2,
            num_experts_per_tok=1,
            moe_layers=[],
        ),
    ),
    SmallModel("ministral", _of("Ministral", _WINDOWED)),
    SmallModel("minicpm3", _of("MiniCPM3", _LATENT)),
    SmallModel("modernbert-decoder", _of("ModernBertDecoder", _COMMON, intermediate_size=80, local_attention=8)),
    SmallModel("nanochat", _of("NanoChat", _LLAMA)),
    SmallModel("nemotron", _of("Nemotron", _LLAMA)),
    SmallModel("olmo", _of("Olmo", _LLAMA)),
    SmallModel("olmo3", _of("Olmo3", _WINDOWED)),
    SmallModel(
        "olmoe",
        _of("Olmoe", _COMMON, num_key_value_heads=2, intermediate_size=80, num_experts=5, num_experts_per_tok=2),
    ),
    SmallModel("persimmon", _of("Persimmon", _COMMON, intermediate_size=80)),
    SmallModel("phi", _of("Phi", _COMMON, intermediate_size=80)),
    SmallModel("phimoe", _of("Phimoe", _EXPERTS, num_local_experts=5)),
    SmallModel("qwen2_moe", _of("Qwen2Moe", _EXPERTS, **_SHARED)),
    SmallModel("seed_oss", _of("SeedOss", _LLAMA)),
    SmallModel("stablelm", _of("StableLm", _COMMON, num_key_value_heads=2, intermediate_size=80)),
    SmallModel("starcoder2", _of("Starcoder2", _LLAMA)),
    SmallModel("vaultgemma", _of("VaultGemma", _WINDOWED, query_pre_attn_scalar=20)),
)

# Models that the fast route does not take, with its error message.
REFUSED: tuple[tuple[SmallModel, str], ...] = (
    (SmallModel("bloom", _of("Bloom", dict(vocab_size=99, hidden_size=48, n_layer=2, n_head=6))), "AttentionInterface"),
    (SmallModel("codegen", _of("CodeGen", dict(_OLD, n_head=4, rotary_dim=4))), "AttentionInterface"),
    (SmallModel("diffllama", _of("DiffLlama", _LLAMA)), "one attention through transformers' AttentionInterface"),
    (SmallModel("falcon", _of("Falcon", _COMMON)), "AttentionInterface"),
    (SmallModel("gptj", _of("GPTJ", dict(_OLD, rotary_dim=4))), "AttentionInterface"),
    (SmallModel("mamba", _of("Mamba", dict(vocab_size=99, hidden_size=48, num_hidden_layers=2))), "linear_attention"),
    (SmallModel("mpt", _of("Mpt", dict(vocab_size=99, d_model=48, n_layers=2, n_heads=6))), "AttentionInterface"),
    (SmallModel("qwen3_next", _of("Qwen3Next", _EXPERTS, **_SHARED)), "linear_attention"),
)
