"""Where a model comes from: a folder or name of Hugging Face, a model in memory, a GGUF file.

A source has the model's code and configuration (a transformers model, its weights or not), where each of its weights
lies, and what its tokenizer is made of.
"""

from __future__ import annotations

import copy
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graft.errors import ExportError
from graft.llm.stored import Stored, of_tensor, read_checkpoint
from graft.llm.trace import without_weights

# Of a folder of Hugging Face, what the runner needs besides the weights.
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
# Buffers that old checkpoints hold and models compute.
_COMPUTED = (".inv_freq", ".masked_bias", ".attn.bias", ".attention.bias")
_WANTED = ["*.json", "*.safetensors", "*.jinja"]


@dataclass
class Source:
    name: str  # for people
    model: torch.nn.Module
    weights: dict[str, Stored]  # by qualified name in the model; of tied ones, the first
    files: dict[str, bytes] = field(default_factory=dict)  # of TEXT_FILES, those there are


def open_source(model: Any) -> Source:
    if isinstance(model, torch.nn.Module):
        return _of_model(model)
    if not isinstance(model, (str, os.PathLike)):
        raise ExportError(
            "export_llm: expected a folder, a name on the Hugging Face hub, a GGUF file or a transformers model, "
            f"found {type(model).__name__}"
        )
    path = Path(model)
    if path.is_dir():
        return _of_folder(path, str(model))
    if path.is_file():
        with open(path, "rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ExportError(f"export_llm: expected a folder or a GGUF file, found the file '{path}'")
        from graft.llm import gguf

        return gguf.open_gguf(path)
    if path.suffix == ".gguf" or path.is_absolute() or str(model).count("/") != 1:
        raise ExportError(f"export_llm: there is no folder or GGUF file '{model}'")
    return _of_folder(_download(str(model)), str(model))


def _download(name: str) -> Path:
    """From the local cache alone when HF_HUB_OFFLINE is set."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except Exception as e:  # the hub's client raises what its many layers do
        raise ExportError(f"export_llm: '{name}' is no folder, and the Hugging Face hub does not give it: {e}") from e


def _without_subclasses(model: torch.nn.Module) -> torch.nn.Module:
    """The model, or where weights are subclasses of tensors (torchao's) a copy that has the tensors in them instead."""
    from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    tensors = [*model.parameters(), *model.buffers()]
    if not any(map(is_traceable_wrapper_subclass, tensors)):
        return model
    return unwrap_tensor_subclass_parameters(copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}))


def _of_model(model: torch.nn.Module) -> Source:
    if not hasattr(model, "config") or not hasattr(model.config, "get_text_config"):
        raise ExportError(f"export_llm: expected a transformers model, found {type(model).__name__}")
    model = _without_subclasses(model)
    weights = {name: of_tensor(name, tensor) for name, tensor in _named(model).items()}
    generation = getattr(model, "generation_config", None)
    files = {} if generation is None else {"generation_config.json": generation.to_json_string().encode()}
    return Source(type(model).__name__, model, weights, files)


def _auto(config: Any) -> Any:
    """The class of transformers that makes models of this kind with a head that gives logits."""
    import transformers

    if not getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForCausalLM
    speech = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    return transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM


def make_empty(config: Any) -> torch.nn.Module:
    """The model of a configuration, without memory for its parameters."""
    with without_weights():
        try:
            model = _auto(config).from_config(config, dtype=torch.float32)
        except (ValueError, KeyError) as e:
            kind = config.model_type
            raise ExportError(f"export_llm: {kind} is no causal language model of transformers: {e}") from e
    return model.eval()


def _of_folder(folder: Path, name: str) -> Source:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as e:
        raise ExportError(f"export_llm: '{folder}' has no configuration that transformers reads: {e}") from e
    model = make_empty(config)
    weights = match(model, read_checkpoint(folder), name, lambda: _converted(folder))
    return Source(name, model, weights, _text_files(folder))


def _text_files(folder: Path) -> dict[str, bytes]:
    files = {file: (folder / file).read_bytes() for file in TEXT_FILES if (folder / file).exists()}
    template = folder / "chat_template.jinja"
    if template.exists():  # the package has it where older folders do
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
        config["chat_template"] = template.read_text(encoding="utf-8")
        files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False).encode()
    return files


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Each further name of a tied weight, and its first."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers; of tied ones the first name."""
    tied = tied_names(model)
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in tied}


def match(
    model: torch.nn.Module, found: dict[str, Stored], source: str, convert: Any = None
) -> dict[str, Stored]:
    """Each of the model's weights among those found, by name. Raises ExportError that lists what is missing, what is
    left over and what has other sizes. convert: gives weights that transformers makes of others (stacked experts), and
    the names that it leaves over."""
    wanted = _named(model)
    prefix = getattr(model, "base_model_prefix", "") + "."
    result, missing = {}, []
    used = set()
    for name in wanted:
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in found:
                result[name] = found[candidate]
                used.add(candidate)
                break
        else:
            missing.append(name)
    if missing and convert is not None:
        made, left = convert()
        result = {name: result.get(name, made.get(name)) for name in wanted}
        missing = [name for name, stored in result.items() if stored is None]
        used = set(found) - left  # transformers says itself what it leaves over
    extra = _left_over(model, found, used, result)
    problems = [f"  missing: {name} {list(wanted[name].shape)}" for name in missing]
    problems += [f"  not in the model: {name}" for name in sorted(extra)]
    problems += [
        f"  {name}: the model has {list(wanted[name].shape)}, the file {list(stored.sizes)}"
        for name, stored in result.items()
        if stored is not None and tuple(wanted[name].shape) != stored.sizes
    ]
    if problems:
        raise ExportError(
            f"export_llm: expected the weights of {type(model).__name__}, found others in '{source}'\n"
            + "\n".join(problems)
        )
    return result


def _left_over(
    model: torch.nn.Module, found: dict[str, Stored], used: set[str], taken: dict[str, Stored]
) -> set[str]:
    """Names in a checkpoint that the model has no use for, and that nobody expects."""
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    tied = tied_names(model)
    left = set()
    for name in found.keys() - used:
        if name in tied:
            # A checkpoint may write a tied weight twice.
            if tied[name] in taken and not _same(found[name], taken[tied[name]]):
                raise ExportError(f"export_llm: expected '{name}' equal to '{tied[name]}', its tied twin, found others")
        elif not name.endswith(_COMPUTED) and not any(pattern.search(name) for pattern in ignored):
            left.add(name)
    return left


def _same(a: Stored, b: Stored) -> bool:
    return (a.sizes, a.dtype) == (b.sizes, b.dtype) and all(x == y for x, y in zip(a.chunks(), b.chunks(), strict=True))


def _converted(folder: Path) -> tuple[dict[str, Stored], set[str]]:
    """The weights as transformers loads them, in memory, and the names that it has no use for: for checkpoints whose
    tensors are not those of the model."""
    import transformers

    auto = _auto(transformers.AutoConfig.from_pretrained(folder))
    model, info = auto.from_pretrained(
        folder, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True
    )
    # Where it found nothing that fits, it made something up.
    made_up = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    made = {key: of_tensor(key, tensor) for key, tensor in _named(model).items() if key not in made_up}
    return made, set(info["unexpected_keys"])
