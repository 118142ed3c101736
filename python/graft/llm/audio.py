"""From a model of sound and text to programs, without its weights, and what a package says of its sound.

`encode_audio` is the tower and the projector, of one window of a spectrogram: the rows of features that stand where a
prompt has placeholders.
    input_features [1, mels, frames], heard [1, positions] (where the model knows how long the sound is)
    -> features [rows, width]
`step` is the decoder, as of a model without a tower; `step_with_audio` has features besides, as `step_with_images` of
`graft.llm.pictures`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graft.errors import ExportError
from graft.llm import interface, pictures, rope, speech
from graft.llm import trace as decoders
from graft.llm.checkpoint import Checkpoint
from graft.llm.picture_files import added_tokens, take_tokenizer
from graft.llm.trace import become, skeleton_of, traced

#: model_type: whether the features of a sound end where it does. Of the others a window is always whole.
FAMILIES = {"qwen2_audio": True, "voxtral": False}
# The text around the placeholders of a sound where a prompt does not say where it is.
_AROUND = {"qwen2_audio": ("<|audio_bos|>", "<|audio_eos|>"), "voxtral": ("[BEGIN_AUDIO]", "")}
_STRIDE = 2  # frames of a spectrogram for one position of the tower, whose layers are those of Whisper's encoder


def takes_audio(model: torch.nn.Module) -> bool:
    return "audio" in getattr(type(model), "input_modalities", ()) and hasattr(model.config, "audio_config")


def check(model: torch.nn.Module) -> None:
    """Raises ExportError for a model whose sound graft does not take."""
    if model.config.model_type not in FAMILIES:
        raise ExportError(
            f"{type(model).__name__} cannot be exported with its sound; expected one of {', '.join(sorted(FAMILIES))}. "
            "text_only=True (--text-only) exports its text part"
        )


@dataclass(frozen=True)
class Sound:
    """The programs that a model of sound has besides `step`, and what its package says of them."""

    programs: dict[str, ExportedProgram]
    rows: int  # features of a whole window
    width: int  # elements of a row of features


def trace(model: torch.nn.Module, *, context: int) -> Sound:
    """context: the most tokens of a call."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton = skeleton_of(model, mode).eval()
    rope.make_traceable(skeleton)
    kind = type(skeleton)
    config = model.config.audio_config
    positions = config.max_source_positions
    spectrogram = torch.zeros(1, config.num_mel_bins, positions * _STRIDE, dtype=torch.float32)
    if FAMILIES[model.config.model_type]:
        example: tuple[torch.Tensor, ...] = (spectrogram, torch.ones(1, positions, dtype=torch.bool))
        become(skeleton, kind, _encode_heard)
    else:
        example = (spectrogram,)
        become(skeleton, kind, _encode)
    with interface.instead(dict.fromkeys(skeleton.model.audio_tower.modules(), interface.attend_all)):
        encoder = traced(skeleton, example, ({},) * len(example))
    found = pictures.output_of(encoder)
    rows, width = (int(size) for size in found.shape)
    if width != model.config.get_text_config().hidden_size:
        raise ExportError(f"expected features of {model.config.get_text_config().hidden_size} elements, found {width}")
    become(skeleton, kind, pictures.decoder_with_features(skeleton, kind, model.config.get_text_config()))
    step = pictures.traced_step(skeleton, context, width)
    decoders.check_layers(step, model.config.get_text_config())
    return Sound({"encode_audio": encoder, "step_with_audio": step}, rows, width)


def _encode(self: Any, input_features: torch.Tensor) -> torch.Tensor:
    return self.model.get_audio_features(input_features, return_dict=True).pooler_output


def _encode_heard(self: Any, input_features: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
    """Positions that are not heard are seen by none, as Qwen2AudioModel masks them."""
    hidden = self.model.audio_tower(input_features, attention_mask=heard[:, None, None, :])
    return self.model.multi_modal_projector(hidden.last_hidden_state).flatten(0, 1)


def metadata(checkpoint: Checkpoint, processor: Any, sound: Sound) -> dict[str, Any]:
    """For `graft.llm.json`. processor: of a model in memory; of a folder its preprocessor_config.json is read. Raises
    ExportError for features that are not computed as Whisper's."""
    config = checkpoint.model.config
    if processor is None and checkpoint.folder is None:
        raise ExportError(
            f"expected the processor of a {type(checkpoint.model).__name__} in memory (processor=), or text_only=True for "
            "its text part alone"
        )
    given = json.loads(checkpoint.files.get("preprocessor_config.json", b"{}"))
    if processor is not None:
        take_tokenizer(checkpoint, processor)
        given = getattr(processor, "feature_extractor", processor).to_dict()
    if (name := given.get("feature_extractor_type", "WhisperFeatureExtractor")) != "WhisperFeatureExtractor":
        raise ExportError(f"expected a WhisperFeatureExtractor, found {name}")
    frames = config.audio_config.max_source_positions * _STRIDE
    features = speech.spectrogram(given, config.audio_config.num_mel_bins)
    if (length := given.get("nb_max_frames", frames)) != frames:
        raise ExportError(f"expected windows of {frames} frames, as the model's tower, found {length}")
    names = added_tokens(checkpoint)
    token = names.get(config.audio_token_id, "")
    if names and not token:
        raise ExportError(
            f"expected the token of sound, {config.audio_token_id}, among the added tokens of the tokenizer, found none"
        )
    known = set(names.values())
    before, after = (text if text in known else "" for text in _AROUND[config.model_type])
    return {
        "token_id": config.audio_token_id,
        "token": token,
        "place": f"{before}{token}{after}",
        "rows": sound.rows,
        "width": sound.width,
        "ends_with_sound": FAMILIES[config.model_type],
        "frames": frames,
        **features,
    }
