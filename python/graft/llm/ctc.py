"""From a model of speech whose output is decoded by CTC to a package, without its weights.

The package has one method, `encode`, of one sound of any length in bounds:
    input_values [1, samples] or input_features [1, frames, mels] -> logits [1, T, vocabulary]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graft.errors import ExportError
from graft.llm import interface, seq2seq
from graft.llm.checkpoint import Checkpoint
from graft.llm.picture_files import take_tokenizer
from graft.llm.trace import skeleton_of, traced

#: Named data of the package.
METADATA = "graft.ctc.json"
#: model_type: whether it takes samples; the others take spectrograms.
FAMILIES = {
    "wav2vec2": True,
    "wav2vec2-conformer": True,
    "hubert": True,
    "wavlm": True,
    "unispeech": True,
    "unispeech-sat": True,
    "data2vec-audio": True,
    "parakeet_ctc": False,
}
_MOST_SAMPLES = 1 << 24  # of one call where the model names no limit: 17 minutes at 16 kHz
_FRAMES = 205  # of the example: a size that no other is equal to


def check(model: torch.nn.Module) -> None:
    """Raises ExportError for a model that graft does not take."""
    config = model.config
    if config.model_type not in FAMILIES:
        raise ExportError(f"{type(model).__name__} cannot be exported; expected one of {', '.join(sorted(FAMILIES))}")
    if getattr(config, "adapter_attn_dim", None) is not None:
        raise ExportError(
            f"expected a {type(model).__name__} without adapters for languages (adapter_attn_dim), found "
            f"{config.adapter_attn_dim}"
        )


def trace(model: torch.nn.Module) -> ExportedProgram:
    config = model.config
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton = skeleton_of(model, mode).eval()
    kind = type(skeleton)
    if FAMILIES[config.model_type]:
        example = torch.zeros(1, seq2seq.SAMPLES, dtype=torch.float32)
        layers = list(zip(config.conv_kernel, config.conv_stride))
        least, most = seq2seq.samples_of(layers, seq2seq.FEWEST_POSITIONS), _MOST_SAMPLES
        if getattr(config, "position_embeddings_type", None) == "relative":  # a table of so many
            most = min(most, seq2seq.samples_of(layers, config.max_source_positions + 1) - 1)
        interface.become(skeleton, kind, lambda self, input_values: kind.forward(self, input_values).logits)
    else:
        encoder = config.encoder_config
        example = torch.zeros(1, _FRAMES, encoder.num_mel_bins, dtype=torch.float32)
        least = encoder.subsampling_factor * (seq2seq.FEWEST_POSITIONS - 1) + 1
        most = encoder.subsampling_factor * encoder.max_position_embeddings
        interface.become(skeleton, kind, lambda self, input_features: kind.forward(self, input_features).logits)
    # Sizes in convolutions are quotients, of which the tracer cannot prove what models check.
    length = Dim.DYNAMIC(min=least, max=most)
    with interface.instead(dict.fromkeys(skeleton.modules(), interface.attend_all)):
        return traced(skeleton, (example,), ({1: length},))


def metadata(checkpoint: Checkpoint, processor: Any) -> dict[str, Any]:
    """For `graft.ctc.json`; leaves the tokenizer with the checkpoint. processor: of a model in memory; of a folder it is
    read from there."""
    model = checkpoint.model
    if processor is None:
        if checkpoint.folder is None:
            raise ExportError(f"expected the processor of a {type(model).__name__} in memory (processor=)")
        processor = read_processor(checkpoint.folder)
    extractor, tokenizer = getattr(processor, "feature_extractor", None), getattr(processor, "tokenizer", None)
    if extractor is None or tokenizer is None:
        raise ExportError(
            f"expected a processor with a feature extractor and a tokenizer, found {type(processor).__name__}"
        )
    about = {
        "version": 1,
        "source": checkpoint.name,
        "architecture": type(model).__name__,
        "model_type": model.config.model_type,
        "vocab_size": model.config.vocab_size,
        "blank_id": tokenizer.pad_token_id,
        "sampling_rate": extractor.sampling_rate,
        "input": samples(extractor) if FAMILIES[model.config.model_type] else _spectrogram(extractor, model),
    }
    if about["blank_id"] is None:
        raise ExportError("expected a tokenizer with a pad_token, which is the blank of CTC, found none")
    text = _pieces(tokenizer, model.config.vocab_size)
    if text is None:
        take_tokenizer(checkpoint, processor)
        if "tokenizer.json" not in checkpoint.files:
            raise ExportError(f"expected a tokenizer with a tokenizer.json, found {type(tokenizer).__name__}")
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            checkpoint.files.pop(name, None)
        about["text"] = text
    return about


def read_processor(folder: Path) -> Any:
    import transformers

    try:
        # Not by the processor's class: that of beams needs a language model and pyctcdecode.
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, ImportError) as e:
        raise ExportError(f"'{folder}' has no feature extractor and tokenizer that transformers reads: {e}") from e
    return _Processor(extractor, tokenizer)


class _Processor:
    def __init__(self, extractor: Any, tokenizer: Any) -> None:
        self.feature_extractor, self.tokenizer = extractor, tokenizer


def samples(extractor: Any) -> dict[str, Any]:
    if (name := type(extractor).__name__) != "Wav2Vec2FeatureExtractor":
        raise ExportError(f"expected a Wav2Vec2FeatureExtractor, found {name}")
    return {"normalize": bool(extractor.do_normalize)}


def _spectrogram(extractor: Any, model: torch.nn.Module) -> dict[str, Any]:
    if (name := type(extractor).__name__) != "ParakeetFeatureExtractor":
        raise ExportError(f"expected a ParakeetFeatureExtractor, found {name}")
    mels = model.config.encoder_config.num_mel_bins
    if extractor.feature_size != mels:
        raise ExportError(f"expected a feature_size of num_mel_bins, {mels}, found {extractor.feature_size}")
    return {
        "n_fft": extractor.n_fft,
        "win_length": extractor.win_length,
        "hop_length": extractor.hop_length,
        "mels": mels,
        "preemphasis": extractor.preemphasis or 0.0,
    }


def _pieces(tokenizer: Any, vocabulary: int) -> dict[str, Any] | None:
    """Of a tokenizer whose tokens are joined as they are: what they become."""
    if not hasattr(tokenizer, "word_delimiter_token"):
        return None
    if (name := type(tokenizer).__name__) != "Wav2Vec2CTCTokenizer":
        raise ExportError(f"expected a Wav2Vec2CTCTokenizer, found {name}")
    pieces = tokenizer.convert_ids_to_tokens(list(range(vocabulary)))
    delimiter, space = tokenizer.word_delimiter_token, tokenizer.replace_word_delimiter_char
    return {
        "pieces": [space if piece == delimiter else "" if piece is None else piece for piece in pieces],
        "lowercase": bool(tokenizer.do_lower_case),
        "clean_up": bool(tokenizer.clean_up_tokenization_spaces),
    }


__all__ = ["FAMILIES", "METADATA", "check", "metadata", "trace"]
