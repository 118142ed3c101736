"""graft beside llama.cpp on the same GGUF file, teacher-forced over 512 tokens: the mean KL divergence of their
distributions over the next token."""

import pytest
import torch
import transformers

import graft
import llm_models
from gguf_writer import llama_cpp_logits, tensors_of, values_of, write_gguf

TOKENS = 512
MOST = 1e-4
KINDS = ["q8_0", "q4_0", "f16", "q4_K"]


def mean_kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    """Of [T, V] logits, in nats."""
    total = 0.0
    for p, q in zip(reference.split(64), other.split(64)):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        total += (p.exp() * (p - q)).sum().item()
    return total / len(reference)


def both(tmp_path, model, kind):
    path = write_gguf(
        tmp_path / "model.gguf", values_of(model.config, "qwen3"), tensors_of(model, "qwen3"), kind
    )
    vocabulary = model.config.vocab_size
    tokens = torch.randint(3, vocabulary, (TOKENS,), generator=torch.Generator().manual_seed(1))
    reference = llama_cpp_logits(path, tokens.tolist(), threads=2)
    package = tmp_path / "model.pte"
    graft.export_llm(path, package)
    ours = graft.load(package, kv_length=TOKENS)
    positions = torch.arange(TOKENS)[None]
    return reference, ours(tokens[None], positions, positions, torch.arange(TOKENS))[0]


def check(tmp_path, model, kind):
    reference, ours = both(tmp_path, model, kind)
    # The distributions are far from uniform: agreement says something.
    uniform = torch.zeros_like(reference)
    assert mean_kl(reference, uniform) > 0.1
    divergence = mean_kl(reference, ours)
    agreement = (reference.argmax(-1) == ours.argmax(-1)).double().mean().item()
    print(f"{kind}: mean KL {divergence:.2e}, the same best token at {agreement:.1%} of the places")
    assert 0 <= divergence <= MOST
    # The last token's key and value left out: no longer.
    shifted = torch.cat([ours[1:], ours[:1]])
    assert mean_kl(reference, shifted) > 10 * MOST


def peaked(config: transformers.Qwen3Config) -> torch.nn.Module:
    """Random weights whose next token is far from uniform, as a trained model's is."""
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.model.norm.weight.mul_(2.0)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_small(tmp_path, kind):
    config = transformers.Qwen3Config(
        **{**llm_models._LLAMA, "pad_token_id": None, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    )  # fmt: skip
    check(tmp_path, peaked(config), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_qwen3_0_6b(tmp_path, kind):
    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    check(tmp_path, peaked(config), kind)
