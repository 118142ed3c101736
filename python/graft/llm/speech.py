"""What a package says of a model of speech: how sound becomes its input, and the tokens that guide its decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graft.errors import ExportError
from graft.llm import ctc, seq2seq
from graft.llm.checkpoint import Checkpoint
from graft.llm.picture_files import take_tokenizer

_STRIDE = 2  # frames of a spectrogram for one position of Whisper's encoder
# The most of a text of Moonshine, with the token that begins it: as its authors generate, and transformers documents.
_TOKENS_PER_SECOND = 6.5
# Of preprocessor_config.json: what WhisperFeatureExtractor takes where it says nothing.
_DEFAULTS = {"sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "dither": 0.0}


def metadata(checkpoint: Checkpoint, generation: Mapping[str, Any], context: int) -> dict[str, Any] | None:
    """For `graft.llm.json`; none for a model without time stamps, which transcribes nothing. context: positions of the
    encoder. Raises ExportError for features that are not computed as Whisper's."""
    config = checkpoint.model.config
    if config.model_type != "whisper" or generation.get("no_timestamps_token_id") is None:
        return None
    features = spectrogram(json.loads(checkpoint.files.get("preprocessor_config.json", b"{}")), config.num_mel_bins)
    suppressed = generation.get("suppress_tokens") or []
    previous = generation.get("prev_sot_token_id", suppressed[-2] if len(suppressed) >= 2 else None)
    optional = {
        "previous_text_id": previous,
        "max_initial_timestamp_index": generation.get("max_initial_timestamp_index"),
    }
    multilingual = generation.get("is_multilingual", True)
    return {
        **features,
        "frames": context * _STRIDE,
        "max_length": generation.get("max_length") or config.max_target_positions,
        "no_timestamps_id": generation["no_timestamps_token_id"],
        "languages": _names(generation.get("lang_to_id")) if multilingual else {},
        "tasks": dict(generation.get("task_to_id") or {}) if multilingual else {},
        "suppressed_tokens": suppressed,
        "suppressed_first_tokens": generation.get("begin_suppress_tokens") or [],
        **{name: value for name, value in optional.items() if value is not None},
    }


def of_samples(checkpoint: Checkpoint, processor: Any, context: int) -> dict[str, Any]:
    """For `graft.llm.json`, of Moonshine, whose encoder reads samples. context: tokens of the decoder, which say how long
    a sound may be. Raises ExportError for a model without a feature extractor, and others."""
    kind = type(checkpoint.model).__name__
    if checkpoint.model.config.model_type != "moonshine":
        raise ExportError(f"{kind} cannot be exported; of models that read samples expected Moonshine")
    if processor is None and checkpoint.folder is None:
        raise ExportError(f"expected the processor of a {kind} in memory (processor=)")
    if processor is None:
        extractor = ctc.read_processor(checkpoint.folder).feature_extractor
    else:
        extractor = processor.feature_extractor
        take_tokenizer(checkpoint, processor)
    rate = extractor.sampling_rate
    layers = seq2seq.convolutions(checkpoint.model)
    # A sound's text may have int(samples * _TOKENS_PER_SECOND / rate) tokens, at most `context`.
    most = int((context + 1) * rate / _TOKENS_PER_SECOND) - 1
    return {
        "sampling_rate": rate,
        **ctc.samples(extractor),
        "tokens_per_second": _TOKENS_PER_SECOND,
        "min_samples": seq2seq.samples_of(layers, seq2seq.FEWEST_POSITIONS),
        "max_samples": most,
    }


def spectrogram(given: Mapping[str, Any], mels: int) -> dict[str, int]:
    """How the features of a preprocessor_config.json are computed. Raises ExportError where it is not for this number of
    mels, and for dither."""
    features = {name: given.get(name, default) for name, default in _DEFAULTS.items()}
    if features.pop("dither"):
        raise ExportError(f"expected a dither of 0 in preprocessor_config.json, found {given['dither']}")
    if given.get("feature_size", mels) != mels:
        raise ExportError(
            f"expected the feature_size of preprocessor_config.json to be num_mel_bins, {mels}, "
            f"found {given['feature_size']}"
        )
    return {**features, "mels": mels}


def _names(languages: Mapping[str, int] | None) -> dict[str, int]:
    """"<|en|>" is "en"."""
    return {token.removeprefix("<|").removesuffix("|>"): number for token, number in (languages or {}).items()}
