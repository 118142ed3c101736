"""`graft.export_llm`: from a causal language model to a package."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from graft.errors import ExportError, raised_by, typed
from graft.exporter import stored_plans
from graft.exporter.predicate import Predicate
from graft.exporter.pte import LazyData
from graft.exporter.serialize import Blob, StoredWeight
from graft.llm.checkpoint import Checkpoint, tied_names
from graft.llm import stages as cutting
from graft.llm import audio, container, ctc, picture_files, pictures, rope, seq2seq, speech, text_runner
from graft.llm.lower import blob_of, lower
from graft.llm.formats import open_checkpoint
from graft.llm.stored import Stored, packed
from graft.llm.trace import attends, source_layers, trace

# Named data of the package.
METADATA = "graft.llm.json"
WEIGHT_FILES = "graft.weights.json"  # JSON list: files of weights, relative to the package's folder
_WEIGHTS = ("package", "external")


@typed
def export_llm(
    model: Any,
    path: str | os.PathLike[str],
    *,
    weights: str = "package",
    quantize: str | Mapping[str, str] | None = None,
    pack: bool = False,
    context: int | None = None,
    plans: Sequence[str] = (),
    plan_threads: int = 0,
    stages: int = 1,
    processor: Any = None,
    text_only: bool = False,
    progress: bool = False,
    delegate_options: Mapping[str, int | str] | None = None,
    predicate: Predicate | None = None,
) -> Path:
    """Writes a causal language model as a package (.pte) for `graft.TextGenerator` and `graft generate`.

        graft.export_llm("Qwen/Qwen3-0.6B", "qwen3.pte", quantize="q8_0")
        graft.export_llm("model.gguf", "model.pte", weights="external")

    model: a folder with config.json and safetensors, a name on the Hugging Face hub (with HF_HUB_OFFLINE its local
        cache alone is read), a GGUF file, or a transformers model.
    path: of the package, ending in .pte.
    weights: "package": copied into the package, as they are stored. "external": left where they lie; the package knows
        their files relative to its own folder. What has no file of its own (constants, tensors that transformers makes
        of others) is in the package.
    quantize: a type ("q8_0", "q4_k", "bf16") for all matrices that linear layers, experts and embeddings alone read, or
        types by patterns of names: {"*": "q4_k", "lm_head": "q6_k"}, the last that fits counts, and fits the last parts
        of a name too. Where rows do not divide into blocks the nearest type that they divide into is taken.
    pack: pack matrices in blocks (q8_0, q4_0, q2_k to q6_k, iq4_xs, ...) in the package as graft's kernels for x86 read them
        (weights="package"), so that a program starts sooner: it reads them where they are mapped. Where there are no such
        kernels, the blocks are unpacked when the package is loaded, bit for bit.
    context: the most tokens of a prompt; by default the model's max_position_embeddings, or where it has none 1024, and
        2^20 without attention. With rope type 'longrope' the model's original_max_position_embeddings, and at most that.
    plans: sizes whose plans the package holds, so that a first run of these sizes is not planned: "seq=1,128" for one
        token and 128; "batch=1,4" and "kept=..." (logits) beside it for all combinations, 1 where they are left out. They
        serve the version, device, instruction set and number of threads (plan_threads; 0: as `graft.load` chooses) that
        they were made with; anywhere else plans are made as without.
    stages: into how many packages the layers are divided, which processes or hosts run one after the other (docs/stages.md):
        model.stage0.pte, model.stage1.pte, ... for a path of model.pte. The first has the tokenizer. All are of one export:
        others refuse them.
    processor: of a model in memory that takes pictures (LLaVA, SmolVLM, Qwen-VL, ...) or sound: how they become its
        input, and the tokenizer. Of a folder or name it is read from there.
    text_only: of a model that takes pictures, its text part alone.
    progress: print on stderr what is done.
    delegate_options: how methods run under ExecuTorch where nobody says otherwise, by the names of
        `graft.executorch.set_options`: {"kv_rows": 4, "kv_type": "f16"}. kv_length is `context` unless it is given.
    predicate: answers which nodes run, instead of the engine that is installed.

    The method that graft runs is step(input_ids [B, T], position_ids [B, T], cache_position [B, T], logits_to_keep [K])
    -> logits [B, K, V]. cache_position is the row of the cache for each token, negative for padding; logits_to_keep are
    indices along T. A model with an encoder and a decoder has encode(input_ids [B, S], attention_mask [B, S]) or
    encode(input_features [B, M, F]) or encode(input_values [B, samples]) besides, which runs once for an input and leaves
    the keys and values of its output in the cache. A model that takes pictures has encode_image, which makes rows of
    features of one, and step_with_images, which is step with these in the place of some tokens, or with layers that attend
    to what store_image leaves of them in the cache (MLlama). A model of speech that is
    decoded by CTC (Wav2Vec2ForCTC, HubertForCTC, ParakeetForCTC, ...) has encode alone, for `graft.Transcriber`:
    input_values [1, samples] or input_features [1, frames, mels] -> logits [1, T, V]. For ExecuTorch's runners of language models
    there are forward(tokens [1, T], start_pos [1]) -> logits [1, 1, V] of the last token, on the same cache, and, without
    an encoder, the constants that they ask for (get_max_seq_len, ...).

    Returns the path, with stages that of the first. A file there is replaced; a failed export leaves it as it was.
    Raises `graft.ExportError`, which names
    the file, weight or node, what was expected and what was found.
    """
    with raised_by("export_llm"):
        return write_package(
            model,
            path,
            weights=weights,
            quantize=quantize,
            pack=pack,
            context=context,
            plans=plans,
            plan_threads=plan_threads,
            stages=stages,
            processor=processor,
            text_only=text_only,
            progress=progress,
            delegate_options=delegate_options,
            predicate=predicate,
        )


def write_package(
    model: Any,
    path: str | os.PathLike[str],
    *,
    weights: str = "package",
    quantize: str | Mapping[str, str] | None = None,
    pack: bool = False,
    context: int | None = None,
    plans: Sequence[str] = (),
    plan_threads: int = 0,
    stages: int = 1,
    processor: Any = None,
    text_only: bool = False,
    progress: bool = False,
    delegate_options: Mapping[str, int | str] | None = None,
    predicate: Predicate | None = None,
) -> Path:
    """`export_llm`, whose errors do not name the call yet."""
    target = Path(path)
    if target.suffix != ".pte":
        raise ExportError(f"expected a path that ends in .pte, found '{target}'")
    if weights not in _WEIGHTS:
        known = ", ".join(map(repr, _WEIGHTS))
        raise ExportError(f"expected weights to be one of {known}, found {weights!r}")
    if quantize is not None and weights != "package":
        raise ExportError("expected weights='package' with quantize: quantized weights are new ones")
    if pack and weights != "package":
        raise ExportError("expected weights='package' with pack: packed weights are new ones")
    if not 1 <= stages <= _MOST_STAGES:
        raise ExportError(f"expected from 1 to {_MOST_STAGES} stages, found {stages}")
    if stages > 1 and plans:
        raise ExportError("expected no plans with stages: the packages of stages hold none")
    say = say_on_stderr if progress else silent
    say(f"reading {model if isinstance(model, (str, os.PathLike)) else type(model).__name__}")
    checkpoint = open_checkpoint(model)
    if type(checkpoint.model).__name__.endswith("ForCTC"):
        kind = type(checkpoint.model).__name__
        for name, given in {"context": context, "plans": plans, "text_only": text_only, "stages": stages > 1}.items():
            if given:
                raise ExportError(f"expected no {name}: {kind} is no language model")
        return _write_ctc(
            checkpoint, target, weights, quantize, pack, processor, progress, delegate_options, predicate
        )
    config = checkpoint.model.config.get_text_config()
    with_encoder = bool(getattr(config, "is_encoder_decoder", False))
    if stages > 1 and with_encoder:
        kind = type(checkpoint.model).__name__
        raise ExportError(f"{kind} cannot be cut into stages: each layer of its decoder reads what its encoder gives")
    with_pictures = pictures.takes_pictures(checkpoint.model) and not text_only
    if with_pictures:
        pictures.check(checkpoint.model)
        if stages > 1:
            raise ExportError(f"{type(checkpoint.model).__name__} is cut into stages with text_only=True alone")
        prepared = picture_files.preparation(checkpoint, processor)
    beside = not with_pictures or audio.beside_pictures(checkpoint.model)
    with_audio = audio.takes_audio(checkpoint.model) and beside and not text_only
    if with_audio:
        audio.check(checkpoint.model)
        if stages > 1:
            raise ExportError(f"{type(checkpoint.model).__name__} is cut into stages with text_only=True alone")
    with_samples = seq2seq.takes_samples(checkpoint.model)
    if processor is not None and not with_pictures and not with_audio and not with_samples:
        raise ExportError(f"expected no processor: {type(checkpoint.model).__name__} is exported for text alone")
    attending = with_encoder or attends(config)
    most = _most_tokens(config, _DECODER_SIZES) if attending else None
    if most is None:  # relative positions have no limit, nor has a model without attention, whose states are of one size
        context = context or (_WITHOUT_POSITIONS if attending else _WITHOUT_ATTENTION)
    if short := rope.lengths_of(checkpoint.model).get(rope.LONGROPE):
        # All tokens of a longer prompt turn by the long frequencies: parts of it, and shorter texts beside it, would not.
        if context and context > short:
            raise ExportError(
                f"rope_type 'longrope': expected a context of at most {short} (original_max_position_embeddings), up to which "
                f"frequencies are the same however a prompt is read, found {context}"
            )
        context = context or short
    context = context or most
    if not isinstance(context, int) or context < 1 or (most and context > most):
        raise ExportError(f"expected a context from 1 to {most}, found {context}")
    sizes = stored_plans.sizes_of(plans, {"seq": context, "batch": _MOST_ROWS, "kept": context})
    say(f"tracing {type(checkpoint.model).__name__}, {config.num_hidden_layers} layers")

    if with_encoder:
        encoder_context = _most_tokens(config, _ENCODER_SIZES) or context
        if with_samples:
            of_samples = speech.of_samples(checkpoint, processor, context)
            encoder_context = seq2seq.positions_of(seq2seq.convolutions(checkpoint.model), of_samples["max_samples"])
        programs = seq2seq.trace(checkpoint.model, context=context, encoder_context=encoder_context)
    elif with_pictures:
        with pictures.masks_decide(checkpoint.model):
            programs = {"step": trace(checkpoint.model, context=context, recurrent=True, text_part=True)}
            found = pictures.trace(checkpoint.model, context=context, size=prepared.size)
        programs.update(found.programs)
    else:
        programs = {"step": trace(checkpoint.model, context=context, recurrent=True, text_part=True)}
        if source_layers(config):
            picture_files.without_places(checkpoint, config.vocab_size)
    if with_audio:
        sound = audio.trace(checkpoint.model, context=context)
        programs.update(sound.programs)
        heard = audio.metadata(checkpoint, processor, sound)
    _change_weights(checkpoint, programs.values(), quantize, pack, say)
    placed = place(checkpoint, weights)
    described = {name: weight.described for name, weight in placed.items()}
    methods = {name: lower(program, described, predicate, name) for name, program in programs.items()}
    program, _ = methods["step"]
    metadata = _metadata(checkpoint, program, context, quantize)
    about = {f"graft.{name}": content for name, content in checkpoint.files.items()}
    if stages > 1:
        about[METADATA] = json.dumps(metadata, indent=1).encode()
        parts = cutting.split(program, stages, described)
        blobs = [blob_of(part.program, described, predicate, "step") for part in parts]
        used = [weights_of([part.program], placed) for part in parts]
        about_model = {"model": _identity(blobs, used), "exact_chunks": cutting.chunks_are_exact(program)}
        paths = [target.with_name(f"{target.stem}.stage{i}.pte") for i in range(stages)]
        for i, (part, blob, weights_of_part, path) in enumerate(zip(parts, blobs, used, paths)):
            bar, data = weight_data(weights_of_part, path, weights, progress, say)
            marker = {"stage": i, "stages": stages, "carried_bytes": part.carried, **about_model}
            data.update(about if i == 0 else {})
            data[cutting.STAGE], data[cutting.OTHER_STAGES] = (json.dumps(one).encode() for one in (marker, part.others))
            say(f"writing {path}, {bar.total} bytes of weights")
            with bar:
                container.write(path, {"step": (part.program, blob)}, data, {}, {"kv_length": context})
        return paths[0]
    single = text_runner.of_one_sequence(program)
    methods["forward"] = (single, blob_of(single, described, predicate, "forward"))
    used_weights = weights_of([one for one, _ in methods.values()], placed)
    bar, data = weight_data(used_weights, target, weights, progress, say)
    data.update(about)
    if with_encoder:
        metadata["encoder"] = _encoder_metadata(checkpoint, encoder_context)
        if with_samples:
            metadata["encoder"]["spoken"] = of_samples
    if with_pictures:
        metadata["images"] = picture_files.metadata(checkpoint, prepared, found)
    if with_audio:
        metadata["audio"] = heard
    data[METADATA] = json.dumps(metadata, indent=1).encode()
    options = {"kv_length": context, **({"kv_encoder_length": encoder_context} if with_encoder else {})}
    if with_pictures and metadata["images"]["attended"]:
        options["kv_encoder_length"] = _PICTURES * prepared.settings["max_tiles"] * found.rows
    options.update(delegate_options or {})
    constants = {} if with_encoder else text_runner.constants(metadata, options["kv_length"])
    if plans:
        say("planning")
        first = target.parent / f".{target.stem}.{os.getpid()}.pte"  # beside it: the package names files by folder
        try:
            container.write(first, methods, data)
            data.update(_planned(first, sizes, context, plan_threads))
        finally:
            first.unlink(missing_ok=True)
    say(f"writing {target}")
    with bar:
        container.write(target, methods, data, constants, options)
    return target


def _write_ctc(
    checkpoint: Checkpoint,
    target: Path,
    weights: str,
    quantize: str | Mapping[str, str] | None,
    pack: bool,
    processor: Any,
    progress: bool,
    delegate_options: Mapping[str, int | str] | None,
    predicate: Predicate | None,
) -> Path:
    """Of a model of speech that is no language model: its one method, and what its sound becomes."""
    say = say_on_stderr if progress else silent
    ctc.check(checkpoint.model)
    about = ctc.metadata(checkpoint, processor)
    say(f"tracing {type(checkpoint.model).__name__}")
    program = ctc.trace(checkpoint.model)
    _change_weights(checkpoint, [program], quantize, pack, say)
    placed = place(checkpoint, weights)
    described = {name: weight.described for name, weight in placed.items()}
    methods = {"encode": lower(program, described, predicate, "encode")}
    bar, data = weight_data(weights_of([program], placed), target, weights, progress, say)
    data.update({f"graft.{name}": content for name, content in checkpoint.files.items()})
    data[ctc.METADATA] = json.dumps(about, indent=1).encode()
    say(f"writing {target}, {bar.total} bytes of weights")
    with bar:
        container.write(target, methods, data, {}, dict(delegate_options or {}))
    return target


_MOST_ROWS = 1024  # of a plan made at export
_PICTURES = 4  # that layers of a sequence attend to, under ExecuTorch where nobody says otherwise
_MOST_STAGES = 1024


def _change_weights(
    checkpoint: Checkpoint,
    programs: Collection[ExportedProgram],
    quantize: str | Mapping[str, str] | None,
    pack: bool,
    say: Callable[[str], None],
) -> None:
    """Those that are quantized or packed take the place of the checkpoint's."""
    if quantize is not None:
        rules = {"*": quantize} if isinstance(quantize, str) else dict(quantize)
        checkpoint.weights.update(quantized_weights(programs, checkpoint, rules, say))
    if pack:
        checkpoint.weights.update({name: packed(stored) for name, stored in checkpoint.weights.items()})


def weights_of(programs: Collection[ExportedProgram], placed: Mapping[str, _Placed]) -> list[_Placed]:
    names = set().union(*map(_used_weights, programs))
    return [weight for name, weight in placed.items() if name in names]


def weight_data(
    used: Collection[_Placed], target: Path, weights: str, progress: bool, say: Callable[[str], None]
) -> tuple[_Bar, dict[str, Any]]:
    """What a package at this path holds of these weights, and the names of the files that have the others."""
    copied = {weight.described.key: weight.stored for weight in used if weight.copied}
    if weights == "external" and copied:
        say(f"{len(copied)} weights have no file of their own and go into the package")
    bar = _Bar(sum(stored.byte_size for stored in copied.values()), progress)
    data: dict[str, Any] = {
        key: LazyData(stored.byte_size, stored.chunks, bar.advance) for key, stored in copied.items()
    }
    if files := sorted({str(weight.stored.file) for weight in used if not weight.copied}):
        folder = target.resolve().parent
        data[WEIGHT_FILES] = json.dumps([os.path.relpath(Path(file).resolve(), folder) for file in files]).encode()
    return bar, data


def _identity(blobs: Collection[Blob], used: Collection[Collection[_Placed]]) -> str:
    """Of a model in stages: SHA-256 of its graphs and weights."""
    digest = hashlib.sha256()
    for blob in blobs:
        digest.update(len(blob.data).to_bytes(8, "little") + blob.data)
    for key, stored in sorted({weight.described.key: weight.stored for part in used for weight in part}.items()):
        digest.update(f"{key}\0{stored.byte_size}\0".encode())
        for chunk in stored.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def _planned(path: Path, sizes: list[dict[str, int]], context: int, threads: int) -> dict[str, bytes]:
    def call(size: dict[str, int]) -> tuple[torch.Tensor, ...]:
        ids = torch.zeros(size["batch"], size["seq"], dtype=torch.long)
        # A method in segments is run to be planned.
        positions = torch.arange(size["seq"], dtype=torch.long).expand_as(ids).contiguous()
        return ids, positions, positions, torch.zeros(size["kept"], dtype=torch.long)

    rows = max(size["batch"] for size in sizes)
    calls = {"step": [call(size) for size in sizes]}
    return stored_plans.of_calls(path, calls, threads=threads, kv_rows=rows, kv_length=context)


# Configuration fields with the most tokens of a call.
_DECODER_SIZES = ("max_target_positions", "max_position_embeddings")
_WITHOUT_POSITIONS = 1024  # when the configuration says nothing
_WITHOUT_ATTENTION = 1 << 20
_ENCODER_SIZES = ("max_source_positions", "max_position_embeddings")


def _most_tokens(config: Any, names: tuple[str, ...]) -> int | None:
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)


def quantized_weights(
    programs: Collection[ExportedProgram], checkpoint: Checkpoint, rules: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, Stored]:
    """A weight is quantized when each program that reads it can read it so."""
    from graft.llm.quantized import quantized

    names, refused, found = _all_names(checkpoint), set(), {}
    for program in programs:
        made = quantized(program, checkpoint.weights, names, rules, say)
        first = {alias: name for name, aliases in names.items() for alias in aliases}
        refused |= {first.get(name, name) for name in _used_weights(program)} - made.keys()
        found.update(made)
    return {name: stored for name, stored in found.items() if name not in refused}


@dataclass(frozen=True)
class _Placed:
    described: StoredWeight  # what the program says of the weight
    stored: Stored
    copied: bool  # into the package


def place(checkpoint: Checkpoint, weights: str) -> dict[str, _Placed]:
    """By qualified name; tied names have the same entry."""
    placed = {}
    for name, stored in checkpoint.weights.items():
        copied = weights == "package" or stored.file is None
        described = StoredWeight(
            key=name if copied else stored.name,
            byte_size=stored.byte_size,
            dtype=stored.dtype,
            block_type=stored.block_type,
            packed=stored.packed,
        )
        placed[name] = _Placed(described, stored, copied)
    for name, first in tied_names(checkpoint.model).items():
        placed[name] = placed[first]
    return placed


def _all_names(checkpoint: Checkpoint) -> dict[str, list[str]]:
    names = {name: [name] for name in checkpoint.weights}
    for name, first in tied_names(checkpoint.model).items():
        names[first].append(name)
    return names


def _used_weights(program: ExportedProgram) -> set[str]:
    """Those that results are computed of. Where only a size of a tensor is taken, or checked, the engine drops what gives
    its values."""
    reached: set[torch.fx.Node] = set()
    waiting = [node for node in program.graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in reached and node.target is not torch.ops.aten.sym_size.int:
            reached.add(node)
            waiting.extend(node.all_input_nodes)
    read = {node.name for node in reached if node.op == "placeholder"}
    return {spec.target for spec in program.graph_signature.input_specs if spec.target and spec.arg.name in read}


def _metadata(checkpoint: Checkpoint, program: ExportedProgram, context: int, quantize: Any) -> dict[str, Any]:
    config = checkpoint.model.config.get_text_config()
    generation = json.loads(checkpoint.files.get("generation_config.json", b"{}"))

    def ids(name: str) -> list[int]:
        found = generation.get(name, getattr(config, name, None))
        return [] if found is None else list(found) if isinstance(found, (list, tuple)) else [found]

    layers = []
    for node in program.graph.nodes:
        if node.target is torch.ops.graft.attention.default:
            key, value = (node.args[i].meta["val"] for i in (1, 2))
            layers.append(
                {
                    "layer": node.kwargs["layer"],
                    "kv_heads": int(key.shape[1]),
                    "key_size": int(key.shape[3]),
                    "value_size": int(value.shape[3]),
                    "window": node.kwargs.get("window", 0),
                    "chunk": node.kwargs.get("chunk", 0),
                }
            )
    return {
        "version": 1,
        "source": checkpoint.name,
        "architecture": type(checkpoint.model).__name__,
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "context_length": context,
        "bos_token_ids": ids("bos_token_id"),
        "eos_token_ids": ids("eos_token_id"),
        "pad_token_ids": ids("pad_token_id"),
        "quantize": quantize,
        "generation": _generation(generation),
        "kv": sorted(layers, key=lambda layer: layer["layer"]),
    }


def _generation(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation_config.json sets of what the runner knows, with transformers' default where it has another."""
    known = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
    return {"top_k": 50, **{name: config[name] for name in known if config.get(name) is not None}}


def _encoder_metadata(checkpoint: Checkpoint, context: int) -> dict[str, Any]:
    config = checkpoint.model.config
    generation = json.loads(checkpoint.files.get("generation_config.json", b"{}"))
    start = generation.get("decoder_start_token_id", getattr(config, "decoder_start_token_id", None))
    described = speech.metadata(checkpoint, generation, context)
    with_sound = seq2seq.takes_features(checkpoint.model) or seq2seq.takes_samples(checkpoint.model)
    return {
        "input": "features" if with_sound else "text",
        "context_length": context,
        "decoder_start_token_ids": [] if start is None else [start],
        **({"speech": described} if described else {}),
    }


def say_on_stderr(text: str) -> None:
    print(f"graft: {text}", file=sys.stderr, flush=True)


def silent(_: str) -> None:
    pass


class _Bar:
    """Bytes written, on stderr when that is a terminal."""

    def __init__(self, total: int, shown: bool) -> None:
        self.total, self._shown, self._bar = total, shown, None

    def __enter__(self) -> _Bar:
        if self._shown and self.total:
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, unit="B", unit_scale=True, disable=None, file=sys.stderr)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)


__all__ = ["METADATA", "WEIGHT_FILES", "export_llm", "write_package"]
