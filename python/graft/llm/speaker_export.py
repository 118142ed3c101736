"""`graft.export_speaker`: from a model that speaks to a package."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graft.errors import ExportError, raised_by, typed
from graft.llm import export as language_models
from graft.llm import container, text_to_speech
from graft.llm.checkpoint import Checkpoint, named_tensors
from graft.llm.lower import lower
from graft.llm.picture_files import take_tokenizer
from graft.llm.stored import of_tensor

#: Named data of the package.
METADATA = "graft.speaker.json"
_PLACEHOLDERS = ("audio_prompt_bos_token_id", "audio_prompt_token_id", "audio_bos_token_id", "audio_latent_token_id")


@typed
def export_speaker(
    model: Any,
    path: str | os.PathLike[str],
    *,
    processor: Any = None,
    quantize: str | Mapping[str, str] | None = None,
    context: int | None = None,
    flow_steps: int | None = None,
    progress: bool = False,
) -> Path:
    """Writes a model that speaks (Pocket TTS) as a package for `graft.Speaker` and `graft speak`.

        graft.export_speaker("./pocket-tts", "tts.pte")
        graft speak tts.pte --text "Hello, world!" --voice somebody.wav -o hello.wav

    model: a folder or name on the Hugging Face hub, or a transformers model.
    path: of the package, ending in .pte. A file there is replaced.
    processor: of a model in memory: its tokenizer, chat template and audio tokenizer, which is the codec. Of a folder or
        name it is read from there.
    quantize: as in `graft.export_llm`.
    context: the most tokens of a text with its voice and its sound; by default the model's max_position_embeddings.
    flow_steps: how often the head is asked for a frame; by default as generation_config.json says, else once.

    The package has step, decode_audio and, where the codec has an encoder, encode_voice. Raises `graft.ExportError`.
    """
    with raised_by("export_speaker"):
        return write_speaker(model, path, processor, quantize, context, flow_steps, progress)


def write_speaker(
    model: Any, path: Any, processor: Any, quantize: Any, context: int | None, flow_steps: int | None, progress: bool
) -> Path:
    target = Path(path)
    if target.suffix != ".pte":
        raise ExportError(f"expected a path that ends in .pte, found '{path}'")
    say = language_models.say_on_stderr if progress else language_models.silent
    name = str(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__
    if isinstance(model, (str, os.PathLike)):
        model, processor = _read(model, processor)
    if processor is None:
        raise ExportError(f"expected the processor of a {name} in memory (processor=)")
    codec = getattr(processor, "audio_tokenizer", None)
    text_to_speech.check(model, codec)
    config, generation = model.config, getattr(model, "generation_config", None)
    most = config.max_position_embeddings
    context = most if context is None else context
    if not 1 <= context <= most:
        raise ExportError(f"expected a context from 1 to {most}, found {context}")
    steps = flow_steps or getattr(generation, "num_flow_steps", None) or 1
    speech = text_to_speech.Speech(model.eval(), codec.eval())
    weights = {name: of_tensor(name, tensor) for name, tensor in named_tensors(speech).items()}
    checkpoint = Checkpoint(name, speech, weights)
    take_tokenizer(checkpoint, processor)
    say(f"tracing {type(model).__name__}, {config.num_hidden_layers} layers")
    with torch.no_grad():
        programs = text_to_speech.trace(speech, context=context, flow_steps=steps)
    if quantize is not None:
        rules = {"*": quantize} if isinstance(quantize, str) else dict(quantize)
        checkpoint.weights.update(language_models.quantized_weights(programs.values(), checkpoint, rules, say))
    placed = language_models.place(checkpoint, "package")
    described = {name: weight.described for name, weight in placed.items()}
    methods = {name: lower(program, described, None, name) for name, program in programs.items()}
    used = language_models.weights_of([program for program, _ in methods.values()], placed)
    bar, data = language_models.weight_data(used, target, "package", progress, say)
    data.update({f"graft.{name}": content for name, content in checkpoint.files.items()})
    data[METADATA] = json.dumps(_metadata(model, codec, processor, context), indent=1).encode()
    say(f"writing {target}")
    with bar:
        container.write(target, methods, data, {}, {"kv_length": context})
    return target


def _read(folder: Any, processor: Any) -> tuple[Any, Any]:
    import transformers

    try:
        model = transformers.AutoModelForTextToWaveform.from_pretrained(folder, dtype=torch.float32)
        return model, processor or transformers.AutoProcessor.from_pretrained(folder)
    except (OSError, ValueError, KeyError, ImportError) as e:
        raise ExportError(f"'{folder}' is no model that speaks: {e}") from e


def _metadata(model: Any, codec: Any, processor: Any, context: int) -> dict[str, Any]:
    config, generation, extractor = model.config, model.generation_config, processor.feature_extractor

    def setting(name: str, otherwise: Any) -> Any:
        found = getattr(generation, name, None)
        return otherwise if found is None else found

    if extractor.sampling_rate != codec.config.sampling_rate:
        raise ExportError(
            f"expected a feature extractor of {codec.config.sampling_rate} samples per second, as the codec, found "
            f"{extractor.sampling_rate}"
        )
    if extractor.frame_size != codec.config.frame_size or extractor.pad_to_multiple_of != codec.config.frame_size:
        raise ExportError(
            f"expected a feature extractor of frames of {codec.config.frame_size} samples, as the codec, found "
            f"{extractor.frame_size}, filled to {extractor.pad_to_multiple_of}"
        )
    ids = {name: getattr(config, name) for name in _PLACEHOLDERS}
    known = {i: processor.tokenizer.convert_ids_to_tokens(i) for i in ids.values()}
    special = set(processor.tokenizer.all_special_ids)
    if missing := [i for i, token in known.items() if token is None or i not in special]:
        raise ExportError(f"expected special tokens {sorted(known)} in the tokenizer, found none of {missing}")
    sampling = setting("do_sample", False)
    return {
        "version": 1,
        "architecture": type(model).__name__,
        "sampling_rate": codec.config.sampling_rate,
        "frame_size": codec.config.frame_size,
        "frame_rate": config.frame_rate,
        "latent_size": config.latent_dim,
        "context_length": context,
        "voice_id": ids["audio_prompt_token_id"],
        "latent_id": ids["audio_latent_token_id"],
        "begin_id": ids["audio_bos_token_id"],
        "placeholder_ids": sorted(ids.values()),
        "short_text_words": processor.short_text_max_words,
        "tail_frames_short": processor.frames_after_eos_short_text,
        "tail_frames": processor.frames_after_eos,
        "fade_in_seconds": processor.fade_in_duration,
        "end_on_pause": bool(extractor.end_on_pause),
        "pause_seconds": extractor.pause_duration,
        "fade_out_seconds": extractor.fade_out_duration,
        "silence_floor_db": extractor.silence_floor_db,
        "analysis_seconds": extractor.analysis_frame_duration,
        "defaults": {
            "temperature": float(setting("temperature", 1.0)) if sampling else 0.0,
            "eos_threshold": float(setting("eos_threshold", -4.0)),
            "min_frames_before_eos": int(setting("min_frames_before_eos", 6)),
        },
    }


__all__ = ["METADATA", "export_speaker", "write_speaker"]
