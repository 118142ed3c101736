"""Small models of sound and text with random weights, as folders that transformers saves, with a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from speech_models import RATE

SECONDS = 2  # of a window
CONTEXT = 512
_SPECIAL = ["<s>", "</s>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "[AUDIO]", "[BEGIN_AUDIO]"]
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ':' }}{% for c in m['content'] %}"
    "{% if c['type'] == 'audio' %}PLACE{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tokens() -> dict[str, int]:
    """The vocabulary: 256 bytes and what stands around sounds."""
    names = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *_SPECIAL]
    return {name: i for i, name in enumerate(names)}


def _tokenizer(template: str) -> transformers.PreTrainedTokenizerFast:
    ids = tokens()
    model = tokenizers.models.BPE(vocab={name: i for name, i in ids.items() if i < 256}, merges=[])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    for name in _SPECIAL:
        made.add_tokens([tokenizers.AddedToken(name, special=True, normalized=False)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<s>", chat_template=template
    )


def _text() -> dict[str, Any]:
    ids = tokens()
    return dict(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=12, vocab_size=len(ids), max_position_embeddings=CONTEXT,
        bos_token_id=ids["<s>"], eos_token_id=ids["</s>"], pad_token_id=ids["<s>"],
    )  # fmt: skip


def _qwen2_audio() -> Any:
    tower = dict(
        num_mel_bins=80, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
        max_source_positions=50 * SECONDS,
    )  # fmt: skip
    return transformers.Qwen2AudioConfig(
        audio_config=tower, text_config={"model_type": "qwen2", **_text()}, audio_token_id=tokens()["<|AUDIO|>"]
    )


def _voxtral() -> Any:
    tower = dict(
        num_mel_bins=80, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_source_positions=50 * SECONDS,
    )  # fmt: skip
    return transformers.VoxtralConfig(
        audio_config=tower, text_config={"model_type": "llama", **_text()}, audio_token_id=tokens()["[AUDIO]"]
    )


@dataclass(frozen=True)
class AudioModel:
    name: str
    make: Callable[[], Any]
    place: str  # of a sound, in the text of a prompt

    def save(self, folder: Path) -> Path:
        config = self.make()
        config._attn_implementation = "eager"
        torch.manual_seed(len(self.name))
        model = transformers.AutoModelForMultimodalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
                elif "embed" in name:
                    parameter.copy_(torch.randn_like(parameter))
                else:
                    parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter[0].numel() ** 0.5)
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS).save_pretrained(folder)
        _tokenizer(_TEMPLATE.replace("PLACE", self.place)).save_pretrained(folder)
        return folder


AUDIO_MODELS = (
    AudioModel("qwen2_audio", _qwen2_audio, "<|audio_bos|><|AUDIO|><|audio_eos|>"),
    AudioModel("voxtral", _voxtral, "[BEGIN_AUDIO][AUDIO]"),
)


class Processor:
    """What Qwen2AudioProcessor and VoxtralProcessor make of a text and sounds at 16 kHz. Those themselves want mistral-common
    for Voxtral; features are of the same extractor, in f64 as it computes them where torch is not installed."""

    def __init__(self, folder: Path, config: Any) -> None:
        self.extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.config = config
        self.audio_token = self.tokenizer.decode([config.audio_token_id])

    def spectrogram(self, sound: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """[windows, mels, frames], and which frames are heard [windows, frames]."""
        window = SECONDS * RATE
        padded = np.pad(sound, (0, -len(sound) % window))
        found = torch.from_numpy(self.extractor._np_extract_fbank_features(padded[None], "cpu"))[0]
        windows = found.unflatten(1, (-1, window // 160)).transpose(0, 1)
        heard = np.pad(np.ones(len(sound), bool), (0, len(padded) - len(sound)))[::160]
        return windows.float(), torch.from_numpy(heard).reshape(windows.shape[0], -1).long()

    def __call__(self, text: str, sounds: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        parts = text.split(self.audio_token)
        assert len(parts) == len(sounds) + 1
        made = [self.spectrogram(sound) for sound in sounds]
        ends = self.config.model_type == "qwen2_audio"
        for i, (windows, heard) in enumerate(made):
            rows = ((int(heard.sum()) - 1) // 2 + 1 - 2) // 2 + 1 if ends else len(windows) * SECONDS * 100 // 8
            parts[i] += self.audio_token * rows
        ids = torch.tensor([self.tokenizer("".join(parts))["input_ids"]])
        out = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        if made:
            out["input_features"] = torch.cat([windows for windows, _ in made])
        if made and ends:
            out["feature_attention_mask"] = torch.cat([heard for _, heard in made])
        return out
