"""Networks of given sizes with random weights, for tests of devices."""

from __future__ import annotations

import torch
import transformers
from torch import nn


class Encoder(nn.Module):
    """Sentence embeddings, as MiniLM has them."""

    def __init__(self, vocabulary: int, size: int, layers: int, heads: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=vocabulary, hidden_size=size, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=4 * size,
        )  # fmt: skip
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


class Decoder(nn.Module):
    """Qwen3 without a cache: grouped heads, norms of heads, rotary positions, a gated MLP."""

    def __init__(self, vocabulary: int, size: int, inner: int, layers: int, head: int) -> None:
        super().__init__()
        config = transformers.Qwen3Config(
            vocab_size=vocabulary, hidden_size=size, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, head_dim=head, tie_word_embeddings=True,
        )  # fmt: skip
        self.model = transformers.Qwen3ForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def token_ids(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(length))


def padded_call(length: int, first_padding: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of two texts, the second one padded."""
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, first_padding:] = 0
    return token_ids(2, length, vocabulary), mask


def differ(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest value."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    return ((found - expected).abs().max() / expected.abs().max()).item()
