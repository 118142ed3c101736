"""What a package says of a model of speech: how sound becomes its input, and the tokens that guide its decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graft.errors import ExportError
from graft.llm.checkpoint import Checkpoint

_STRIDE = 2  # frames of a spectrogram for one position of Whisper's encoder
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
