"""Small models of speech with random weights that are decoded by CTC, as folders that transformers saves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from speech_models import sound

LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")
PIECES = ("<unk>", *(f"▁{letter}" for letter in "thesandofqu"), *"eioarnlst", "ing", "ed", "▁", ".", "<pad>")
_CONV = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
_SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@dataclass(frozen=True)
class CtcModel:
    name: str
    kind: str  # the class of transformers
    settings: dict[str, Any]
    normalize: bool = True
    tokenizer: dict[str, Any] | None = None  # settings of Wav2Vec2CTCTokenizer

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        model = self.model()
        model.save_pretrained(folder)
        self.processor(folder).save_pretrained(folder)
        return folder

    def model(self) -> torch.nn.Module:
        kind = getattr(transformers, self.kind)
        torch.manual_seed(0)
        model = kind(kind.config_class(**self.settings)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
                elif "original0" not in name and name != "masked_spec_embed":
                    scale = 4.5 if "q_proj" in name or "k_proj" in name else 1.5
                    parameter.copy_(torch.randn_like(parameter) * scale / parameter[0].numel() ** 0.5)
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.normal_(0, 0.1)
                elif name.endswith("running_var"):
                    buffer.uniform_(0.5, 2)
            if self.kind != "ParakeetForCTC":  # what all positions have in common says one letter for ever
                samples = torch.from_numpy(sound(2, 99))
                if self.normalize:
                    samples = (samples - samples.mean()) / samples.std()
                model.lm_head.bias.sub_(model(samples[None]).logits.mean((0, 1)))
        return model

    def processor(self, folder: Path) -> Any:
        if self.kind == "ParakeetForCTC":
            mels = self.settings["encoder_config"]["num_mel_bins"]
            extractor = transformers.ParakeetFeatureExtractor(feature_size=mels)
            return transformers.ParakeetProcessor(extractor, _pieces_tokenizer())
        vocabulary = folder / "vocab.json"
        vocabulary.write_text(json.dumps({letter: i for i, letter in enumerate(LETTERS)}))
        tokenizer = transformers.Wav2Vec2CTCTokenizer(str(vocabulary), **(self.tokenizer or {}))
        extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=self.normalize)
        return transformers.Wav2Vec2Processor(extractor, tokenizer)


def _pieces_tokenizer() -> transformers.ParakeetTokenizer:
    """As Parakeet's: pieces of SentencePiece, the blank behind them."""
    model = tokenizers.models.Unigram([(piece, -float(i)) for i, piece in enumerate(PIECES)], unk_id=0)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<pad>"])
    return transformers.ParakeetTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


_WAV2VEC2 = {"vocab_size": len(LETTERS), "pad_token_id": 0, **_SIZES, **_CONV}
CTC_MODELS = [
    CtcModel("wav2vec2", "Wav2Vec2ForCTC", _WAV2VEC2),
    CtcModel(
        "wav2vec2-layer",
        "Wav2Vec2ForCTC",
        {**_WAV2VEC2, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
        normalize=False,
        tokenizer={"do_lower_case": True, "clean_up_tokenization_spaces": True},
    ),
    CtcModel("hubert", "HubertForCTC", _WAV2VEC2),
    CtcModel(
        "conformer",
        "Wav2Vec2ConformerForCTC",
        {**_WAV2VEC2, "position_embeddings_type": "relative", "max_source_positions": 250},
    ),
    CtcModel("conformer-rotary", "Wav2Vec2ConformerForCTC", {**_WAV2VEC2, "position_embeddings_type": "rotary"}),
    CtcModel("wavlm", "WavLMForCTC", _WAV2VEC2),
    CtcModel("unispeech", "UniSpeechForCTC", _WAV2VEC2),
    CtcModel("unispeech-sat", "UniSpeechSatForCTC", _WAV2VEC2),
    CtcModel("data2vec-audio", "Data2VecAudioForCTC", _WAV2VEC2),
    CtcModel(
        "parakeet",
        "ParakeetForCTC",
        {
            "vocab_size": len(PIECES),
            "pad_token_id": len(PIECES) - 1,
            "encoder_config": {
                **_SIZES,
                "num_mel_bins": 80,
                "subsampling_conv_channels": 16,
                "subsampling_factor": 8,
                "conv_kernel_size": 9,
                "max_position_embeddings": 200,
            },
        },
    ),
]
BY_NAME = {model.name: model for model in CTC_MODELS}
