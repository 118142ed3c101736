"""Architectures under `graft.compile`: those of `llm_models`, more, and some that cannot be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers

import llm_models
from llm_models import _COMMON, _EXPERTS, _LLAMA, SmallModel, _of

_WINDOWED = dict(_LLAMA, sliding_window=8)

MORE: tuple[SmallModel, ...] = (
    SmallModel("apertus", _of("Apertus", _LLAMA)),
    SmallModel("arcee", _of("Arcee", _LLAMA)),
    SmallModel("bitnet", _of("BitNet", _LLAMA)),
    SmallModel("cohere2", _of("Cohere2", _WINDOWED)),
    SmallModel("cwm", _of("Cwm", _WINDOWED)),
    SmallModel("deepseek_v2", _of("DeepseekV2", _COMMON, num_key_value_heads=6, intermediate_size=80, kv_lora_rank=16, q_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)),
    SmallModel("dots1", _of("Dots1", _LLAMA, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)),
    SmallModel("ernie4_5", _of("Ernie4_5", _LLAMA)),
    SmallModel("exaone4", _of("Exaone4", _WINDOWED)),
    SmallModel("gemma", _of("Gemma", _LLAMA)),
    SmallModel("gemma4_text", _of("Gemma4Text", _WINDOWED)),
    SmallModel("glm", _of("Glm", _LLAMA)),
    SmallModel("glm4", _of("Glm4", _LLAMA)),
    SmallModel("granitemoe", _of("GraniteMoe", _EXPERTS, num_local_experts=5)),
    SmallModel("helium", _of("Helium", _LLAMA)),
    SmallModel("hunyuan_v1_dense", _of("HunYuanDenseV1", _LLAMA)),
    SmallModel("llama4_text", _of("Llama4Text", _LLAMA, intermediate_size_mlp=64, attention_chunk_size=6, num_local_experts=2, num_experts_per_tok=1, moe_layers=[], num_hidden_layers=4)),
    SmallModel("ministral", _of("Ministral", _WINDOWED)),
    SmallModel("minicpm3", _of("MiniCPM3", _COMMON, num_key_value_heads=6, intermediate_size=80, kv_lora_rank=16, q_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10)),
    SmallModel("nanochat", _of("NanoChat", _LLAMA)),
    SmallModel("nemotron", _of("Nemotron", _LLAMA)),
    SmallModel("olmo", _of("Olmo", _LLAMA)),
    SmallModel("olmo3", _of("Olmo3", _WINDOWED)),
    SmallModel("olmoe", _of("Olmoe", _EXPERTS, num_experts=5)),
    SmallModel("persimmon", _of("Persimmon", _COMMON, intermediate_size=80)),
    SmallModel("phi", _of("Phi", _COMMON, intermediate_size=80)),
    SmallModel("phimoe", _of("Phimoe", _EXPERTS, num_local_experts=5)),
    SmallModel("qwen2_moe", _of("Qwen2Moe", _EXPERTS, num_experts=5, moe_intermediate_size=24, shared_expert_intermediate_size=24)),
    SmallModel("seed_oss", _of("SeedOss", _LLAMA)),
    SmallModel("stablelm", _of("StableLm", _LLAMA)),
    SmallModel("starcoder2", _of("Starcoder2", _LLAMA)),
    SmallModel("vaultgemma", _of("VaultGemma", _WINDOWED, query_pre_attn_scalar=20)),
    SmallModel("xglm", _of("XGLM", {}, vocab_size=llm_models.VOCAB, d_model=48, num_layers=3, attention_heads=6, ffn_dim=80, max_position_embeddings=512)),
    SmallModel("biogpt", _of("BioGpt", _COMMON, intermediate_size=80)),
    SmallModel("gpt_bigcode", _of("GPTBigCode", {}, vocab_size=llm_models.VOCAB, n_embd=48, n_layer=3, n_head=6, n_positions=512)),
    SmallModel("gptj", _of("GPTJ", {}, vocab_size=llm_models.VOCAB, n_embd=48, n_layer=3, n_head=6, n_positions=512, rotary_dim=4)),
    SmallModel("codegen", _of("CodeGen", {}, vocab_size=llm_models.VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=512, rotary_dim=4)),
    SmallModel("gpt_neo", _of("GPTNeo", {}, vocab_size=llm_models.VOCAB, hidden_size=48, num_layers=2, num_heads=6, max_position_embeddings=512, attention_types=[[["global", "local"], 1]], window_size=8)),
    SmallModel("bloom", _of("Bloom", {}, vocab_size=llm_models.VOCAB, hidden_size=48, n_layer=3, n_head=6)),
    SmallModel("falcon", _of("Falcon", _COMMON)),
    SmallModel("mpt", _of("Mpt", {}, vocab_size=llm_models.VOCAB, d_model=48, n_layers=3, n_heads=6)),
    SmallModel("gemma3n_text", _of("Gemma3nText", _WINDOWED, num_hidden_layers=5)),
    SmallModel("qwen3_next", _of("Qwen3Next", _EXPERTS, num_experts=5, moe_intermediate_size=24, shared_expert_intermediate_size=24, num_hidden_layers=4)),
    SmallModel("mamba", _of("Mamba", {}, vocab_size=llm_models.VOCAB, hidden_size=48, num_hidden_layers=2)),
    SmallModel("diffllama", _of("DiffLlama", _LLAMA)),
    SmallModel("doge", _of("Doge", _LLAMA)),
    SmallModel("modernbert-decoder", _of("ModernBertDecoder", _COMMON, intermediate_size=80, local_attention=8)),
)
