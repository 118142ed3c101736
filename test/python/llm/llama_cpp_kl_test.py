"""graft beside llama.cpp on the same GGUF file, teacher-forced over 512 tokens: the mean KL divergence of their
distributions over the next token, and of each from exact arithmetic on the same weights.

Both round activations to 8 bits ahead of a product with blocks: graft in blocks of 32, llama.cpp for Q4_K in blocks of
256. That, and not the kernels, is what is seen here; so for Q4_K the bound is llama.cpp's own distance from the exact.
"""

import pytest
import torch
import transformers

import graft
import llm_models
from gguf_writer import llama_cpp_logits, rounded, tensors_of, values_of, write_gguf

TOKENS = 512
MOST = 1e-4
KINDS = ["q8_0", "q4_0", "f16", "q4_K"]
pytestmark = pytest.mark.slow  # llama.cpp is built for slow tests alone


def mean_kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    """Of [T, V] logits, in nats."""
    total = 0.0
    for p, q in zip(reference.split(64), other.split(64)):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        total += (p.exp() * (p - q)).sum().item()
    return total / len(reference)


def check(tmp_path, model, kind):
    path = write_gguf(tmp_path / "model.gguf", values_of(model.config, "qwen3"), tensors_of(model, "qwen3"), kind)
    vocabulary = model.config.vocab_size
    tokens = torch.randint(3, vocabulary, (TOKENS,), generator=torch.Generator().manual_seed(1))
    theirs = llama_cpp_logits(path, tokens.tolist(), threads=2)
    package = tmp_path / "model.pte"
    graft.export_llm(path, package)
    positions = torch.arange(TOKENS)[None]
    ours = graft.load(package, kv_length=TOKENS).step(tokens[None], positions, positions, torch.arange(TOKENS))[0]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(rounded(parameter, kind))
        exact = model(tokens[None]).logits[0]

    between = mean_kl(theirs, ours)
    own, peer = mean_kl(exact, ours), mean_kl(exact, theirs)
    agreement = (theirs.argmax(-1) == ours.argmax(-1)).double().mean().item()
    print(
        f"{kind}: mean KL {between:.2e}; from the exact {own:.2e}, llama.cpp's {peer:.2e}; "
        f"the same best token at {agreement:.1%} of the places"
    )
    # The distributions are far from uniform and differ between neighbouring tokens, so agreement is meaningful.
    assert mean_kl(theirs, torch.zeros_like(theirs)) > 0.1
    assert mean_kl(theirs, torch.roll(ours, 1, 0)) > 10 * MOST
    # Both round alike for Q8_0 and Q4_0: their distances differ only by rounding ties.
    assert own <= max(1.1 * peer, 1e-7)
    assert 0 <= between <= (max(MOST, 1.5 * peer) if kind == "q4_K" else MOST)


def random_model(config: transformers.Qwen3Config) -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(config).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_small(tmp_path, kind):
    config = transformers.Qwen3Config(
        **{**llm_models._LLAMA, "pad_token_id": None, "initializer_range": 0.04, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    )  # fmt: skip
    check(tmp_path, random_model(config), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_qwen3_0_6b(tmp_path, kind):
    check(tmp_path, random_model(transformers.Qwen3Config(**llm_models.QWEN3_0_6B)), kind)
