"""From a model of sound and text to programs, without its weights, and what a package says of its sound.

`encode_audio` is the tower and the projector, of one window of a spectrogram: the rows of features that stand where a
prompt has placeholders.
    input_features [1, mels, frames], heard [1, positions] (where the model knows how long the sound is)
    -> features [rows, width]
or of a sound of any length, embed_audio and encode_audio of `graft.llm.whole_sounds`.
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
from graft.llm import interface, pictures, rope, speech, whole_sounds
from graft.llm import trace as decoders
from graft.llm.checkpoint import Checkpoint
from graft.llm.picture_files import added_tokens, own_settings, take_tokenizer
from graft.llm.trace import skeleton_of, traced

#: model_type: whether the features of a sound end where it does. Of the others a window is always whole.
FAMILIES = {"phi4_multimodal": True, "qwen2_audio": True, "voxtral": False}
_WHOLE = ("phi4_multimodal",)  # whose towers take sounds of any length, and which take pictures besides
# The text around the placeholders of a sound where a prompt does not say where it is.
_AROUND = {"qwen2_audio": ("<|audio_bos|>", "<|audio_eos|>"), "voxtral": ("[BEGIN_AUDIO]", "")}
_STRIDE = 2  # frames of a spectrogram for one position of the tower, whose layers are those of Whisper's encoder


def takes_audio(model: torch.nn.Module) -> bool:
    return "audio" in getattr(type(model), "input_modalities", ()) and hasattr(model.config, "audio_config")


def beside_pictures(model: torch.nn.Module) -> bool:
    """Whether a package takes sound besides pictures."""
    return model.config.model_type in _WHOLE


def check(model: torch.nn.Module) -> None:
    """Raises ExportError for a model whose sound graft does not take."""
    if model.config.model_type not in FAMILIES:
        raise ExportError(
            f"{type(model).__name__} cannot be exported with its sound; expected one of {', '.join(sorted(FAMILIES))}. "
            "text_only=True (--text-only) exports its text part"
        )
    if model.config.model_type in _WHOLE:
        whole_sounds.check(model)


@dataclass(frozen=True)
class Sound:
    """The programs that a model of sound has besides `step`, and what its package says of them."""

    programs: dict[str, ExportedProgram]
    rows: int  # features of a whole window; 0: by the length of the sound
    width: int  # elements of a row of features


def trace(model: torch.nn.Module, *, context: int) -> Sound:
    """context: the most tokens of a call."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    if model.config.model_type in _WHOLE:  # their step is that of their pictures
        programs, width = whole_sounds.trace(model, mode)
        return Sound(programs, 0, width)
    skeleton = skeleton_of(model, mode).eval()
    rope.make_traceable(skeleton)
    kind = type(skeleton)
    config = model.config.audio_config
    positions = config.max_source_positions
    spectrogram = torch.zeros(1, config.num_mel_bins, positions * _STRIDE, dtype=torch.float32)
    if FAMILIES[model.config.model_type]:
        example: tuple[torch.Tensor, ...] = (spectrogram, torch.ones(1, positions, dtype=torch.bool))
        interface.become(skeleton, kind, _encode_heard)
    else:
        example = (spectrogram,)
        interface.become(skeleton, kind, _encode)
    with interface.instead(dict.fromkeys(skeleton.model.audio_tower.modules(), interface.attend_all)):
        encoder = traced(skeleton, example, ({},) * len(example))
    found = pictures.output_of(encoder)
    rows, width = (int(size) for size in found.shape)
    if width != model.config.get_text_config().hidden_size:
        raise ExportError(f"expected features of {model.config.get_text_config().hidden_size} elements, found {width}")
    interface.become(skeleton, kind, pictures.decoder_with_features(skeleton, kind, model.config.get_text_config()))
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
    if config.model_type in _WHOLE:
        return _metadata_of_whole(checkpoint, processor, sound)
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
    token = _token(checkpoint, config.audio_token_id)
    known = set(added_tokens(checkpoint).values())
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


def _token(checkpoint: Checkpoint, number: int) -> str:
    """The text of a placeholder; none without a tokenizer."""
    names = added_tokens(checkpoint)
    if names and number not in names:
        raise ExportError(f"expected the token of sound, {number}, among the added tokens of the tokenizer, found none")
    return names.get(number, "")


def _metadata_of_whole(checkpoint: Checkpoint, processor: Any, sound: Sound) -> dict[str, Any]:
    config, filters = checkpoint.model.config, None
    if processor is not None:
        take_tokenizer(checkpoint, processor)
        extractor = getattr(processor, "audio_processor", processor)
        given, filters = extractor.to_dict(), getattr(extractor, "mel_filters", None)
    else:
        given = own_settings(checkpoint.folder, "audio_processor")
    number = config.audio_config.audio_token_id
    token = _token(checkpoint, number)
    about = whole_sounds.settings_of(config, given, filters)
    return {"token_id": number, "token": token, "place": token, "rows": sound.rows, "width": sound.width, **about}
