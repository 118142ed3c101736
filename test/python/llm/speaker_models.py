"""A small model that speaks with random weights, as a folder that transformers saves, with a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

RATE, FRAME = 2400, 24
_SPECIAL = ["<pad>", "<voice>", "<frame>", "<before voice>", "<begin>"]
TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'audio' %}<before voice><voice>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}<begin>"
)


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    names = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    for name in _SPECIAL:
        made.add_tokens([tokenizers.AddedToken(name, special=True, normalized=False)])
    pad, voice, frame, before, begin = _SPECIAL
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=pad, clean_up_tokenization_spaces=False,
        extra_special_tokens={
            "audio_prompt_token": voice, "audio_latent_token": frame, "audio_prompt_bos_token": before,
            "audio_bos_token": begin,
        },
    )  # fmt: skip


def _codec(**more: Any) -> Any:
    sizes = dict(
        hidden_size=32, num_filters=4, upsampling_ratios=[3, 2], num_hidden_layers=1, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=4, upsample_groups=32, sliding_window=10, latent_stride=4, latent_dim=8,
        sampling_rate=RATE, layer_scale_initial_scale=0.5,
    )  # fmt: skip
    config = transformers.PocketTTSAudioTokenizerConfig(**{**sizes, **more})
    assert config.frame_size == FRAME
    return transformers.PocketTTSAudioTokenizerModel(config).eval()


def make(flow_type: str = "lsd", tiny: bool = False, **codec: Any) -> tuple[Any, Any]:
    """The model and its processor."""
    torch.manual_seed(1)
    width, layers = (8, 1) if tiny else (48, 2)
    if tiny:
        codec.update(hidden_size=8, num_filters=2, intermediate_size=8, upsample_groups=8)
    config = transformers.PocketTTSConfig(
        flow_head_config=dict(
            hidden_size=width, num_hidden_layers=layers, latent_dim=8, condition_dim=width, frequency_embedding_size=16,
            flow_type=flow_type,
        ),
        vocab_size=261, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=1024, latent_dim=8, pad_token_id=256, audio_prompt_token_id=257, audio_latent_token_id=258,
        audio_prompt_bos_token_id=259, audio_bos_token_id=260, frame_rate=10.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.PocketTTSForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() == 1 else 0.7 / parameter[0].numel() ** 0.5
            parameter.add_(torch.randn_like(parameter) * scale)
        model.latent_mean.normal_()
        model.latent_std.uniform_(0.5, 1.5)
    extractor = transformers.PocketTTSFeatureExtractor(sampling_rate=RATE, frame_size=FRAME, pad_to_multiple_of=FRAME)
    kind = transformers.PocketTTSProcessor
    return model, kind(extractor, _tokenizer(), audio_tokenizer=_codec(**codec), chat_template=TEMPLATE)


def save(folder: Path) -> Path:
    """The model's folder; that of its codec lies beside it."""
    model, processor = make()
    model.save_pretrained(folder)
    processor.audio_tokenizer.save_pretrained(folder.with_name("codec"))
    processor.audio_tokenizer.name_or_path = str(folder.with_name("codec"))
    processor.save_pretrained(folder)
    return folder
