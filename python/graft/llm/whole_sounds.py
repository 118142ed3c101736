"""The tower of Phi-4 multimodal, which takes sounds of any length, as programs without weights.

    embed_audio: input_features [1, frames, mels] -> states [1, positions, hidden]
    encode_audio: states [1, P, hidden], heard [1, P] -> features [P, width]
A sound of more positions than CHUNK is encoded chunk by chunk; the last chunk is as long as the others. heard: 0 for what
is behind a sound. The model adds it to scores, as 1 or 0: it makes what is behind count less, and does not hide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.export import Dim, ExportedProgram

from graft.errors import ExportError
from graft.llm import interface
from graft.llm.trace import skeleton_of, traced

CHUNK = 500  # of Phi4MultimodalAudioModel
_MOST_FRAMES = 1 << 18
# Of Phi4MultimodalFeatureExtractor, where its settings are not in the file.
_DEFAULTS: dict[str, Any] = {
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "padding_value": 0.0,
    "audio_compression_rate": 8,
    "audio_downsample_rate": 1,
    "audio_feat_stride": 1,
    "mel_min_frequency": 0,
    "mel_max_frequency": 7690,
}


def check(model: Any) -> None:
    """Raises ExportError for a tower that does other steps."""
    config = model.config.audio_config
    expected = {"downsample_rate": 1, "time_reduction": 1 << (config.time_reduction.bit_length() - 1)}
    for name, value in expected.items():
        if (found := getattr(config, name)) != value:
            raise ExportError(f"expected an audio_config with {name} {value}, found {found}")
    if config.chunk_size > 0:
        raise ExportError(
            f"expected an audio_config whose positions all see each other, found chunk_size {config.chunk_size}"
        )


def trace(model: Any, mode: Any) -> tuple[dict[str, ExportedProgram], int]:
    """Programs by name, and the elements of a row of features."""
    skeleton = skeleton_of(model, mode).eval()
    kind = type(skeleton)
    config = model.config.audio_config
    embed = skeleton.model.embed_tokens_extend.audio_embed
    encoder = embed.encoder

    def frames_to_states(self: Any, input_features: torch.Tensor) -> torch.Tensor:
        found = encoder.embed.conv(encoder.encoder_embedding(input_features).unsqueeze(1))
        return encoder.embed.out(found[0].transpose(0, 1).flatten(1)).unsqueeze(0)

    def states_to_features(self: Any, states: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
        scores = heard[:, None, None, :] + encoder.relative_attention_bias_layer(states)
        for layer in encoder.encoders:
            states = layer(states, scores)
        return embed.down_proj_for_speech(torch.nn.functional.gelu(embed.up_proj_for_speech(states))).flatten(0, 1)

    # A program of open sizes knows sizes of 2 and more from those of 1: there are two positions at least.
    frames = Dim("frames", min=config.time_reduction + 1, max=_MOST_FRAMES)
    positions = Dim("positions", min=2, max=CHUNK)
    interface.become(skeleton, kind, frames_to_states)
    first = traced(skeleton, (torch.zeros(1, 67, config.input_size, dtype=torch.float32),), ({1: frames},))
    interface.become(skeleton, kind, states_to_features)
    example = torch.zeros(1, 9, config.hidden_size, dtype=torch.float32), torch.ones(1, 9, dtype=torch.bool)
    with interface.instead(dict.fromkeys(encoder.modules(), interface.attend_all)):
        second = traced(skeleton, example, ({1: positions}, {1: positions}))
    return {"embed_audio": first, "encode_audio": second}, model.config.hidden_size


def settings_of(config: Any, given: Mapping[str, Any], filters: Any = None) -> dict[str, Any]:
    """What a package says of its sounds. given: the settings of an extractor as transformers writes them. filters: of one
    in memory [bins, mels], which does not know what they were made of."""
    about, tower = {**_DEFAULTS, **given}, config.audio_config
    kind = about.get("feature_extractor_type", "Phi4MultimodalFeatureExtractor")
    if kind != "Phi4MultimodalFeatureExtractor":
        raise ExportError(f"expected a Phi4MultimodalFeatureExtractor, found {kind}")
    expected = {
        "feature_size": tower.input_size,
        "audio_compression_rate": tower.time_reduction,
        "audio_downsample_rate": 1,
        "audio_feat_stride": 1,
        "padding_value": 0,
        "mel_min_frequency": 0,
    }
    for name, value in expected.items():
        if about[name] != value:
            raise ExportError(f"expected an extractor with {name} {value}, as the model's tower, found {about[name]}")
    if filters is not None and not np.allclose(filters, _filters(about)):
        raise ExportError(
            f"expected an extractor with mel_min_frequency 0 and mel_max_frequency {about['mel_max_frequency']}, found "
            "others"
        )
    return {
        "ends_with_sound": True,
        "frames": _MOST_FRAMES,
        "sampling_rate": about["sampling_rate"],
        "n_fft": about["n_fft"],
        "hop_length": about["hop_length"],
        "mels": about["feature_size"],
        "whole": {
            "win_length": about["win_length"],
            "preemphasis": about["preemphasis"],
            "highest": about["mel_max_frequency"],
            "reduction": tower.time_reduction,
            "chunk": CHUNK,
            "states": tower.hidden_size,
        },
    }


def _filters(about: Mapping[str, Any]) -> np.ndarray:
    from transformers.audio_utils import mel_filter_bank

    return mel_filter_bank(
        about["n_fft"] // 2 + 1, about["feature_size"], 0, about["mel_max_frequency"], about["sampling_rate"],
        mel_scale="kaldi", triangularize_in_mel_space=True,
    )  # fmt: skip


__all__ = ["CHUNK", "check", "settings_of", "trace"]
