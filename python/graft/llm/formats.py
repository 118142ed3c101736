"""What a model is read from: a folder or name of Hugging Face, a model in memory, a GGUF file.

Each gives the model's code and configuration (a transformers model, with weights or without), where each of its weights
lies, and what its tokenizer is made of.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from graft.errors import ExportError
from graft.llm.checkpoint import Checkpoint, auto_class, for_inference, make_empty, match, named_tensors
from graft.llm.gguf import open_gguf
from graft.llm.stored import Stored, of_tensor, read_checkpoint

# Files of a Hugging Face folder that the runner needs besides the weights.
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "preprocessor_config.json")
_TEKKEN = "tekken.json"  # the tokenizer of folders of Mistral's own
_WANTED = ["*.json", "*.safetensors", "*.jinja"]


def open_checkpoint(model: Any) -> Checkpoint:
    if isinstance(model, torch.nn.Module):
        return _of_model(model)
    if not isinstance(model, (str, os.PathLike)):
        raise ExportError(
            "expected a folder, a name on the Hugging Face hub, a GGUF file or a transformers model, "
            f"found {type(model).__name__}"
        )
    path = Path(model)
    if path.is_dir():
        return _of_folder(path, str(model))
    if path.is_file():
        with open(path, "rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ExportError(f"expected a folder or a GGUF file, found the file '{path}'")
        return open_gguf(path)
    if path.suffix == ".gguf" or path.is_absolute() or str(model).count("/") != 1:
        raise ExportError(f"there is no folder or GGUF file '{model}'")
    return _of_folder(_download(str(model)), str(model))


def _download(name: str) -> Path:
    """From the local cache alone when HF_HUB_OFFLINE is set."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except Exception as e:  # the hub's client raises exceptions of many layers
        raise ExportError(f"'{name}' is no folder, and the Hugging Face hub does not give it: {e}") from e


def _without_subclasses(model: torch.nn.Module) -> torch.nn.Module:
    """The model, or where weights are subclasses of tensors (torchao's) a copy that has the tensors in them instead."""
    from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    tensors = [*model.parameters(), *model.buffers()]
    if not any(map(is_traceable_wrapper_subclass, tensors)):
        return model
    return unwrap_tensor_subclass_parameters(copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}))


def _of_model(model: torch.nn.Module) -> Checkpoint:
    if not hasattr(model, "config") or not hasattr(model.config, "get_text_config"):
        raise ExportError(f"expected a transformers model, found {type(model).__name__}")
    model = _without_subclasses(model)
    weights = {name: of_tensor(name, tensor) for name, tensor in named_tensors(model).items()}
    generation = getattr(model, "generation_config", None)
    files = {} if generation is None else {"generation_config.json": generation.to_json_string().encode()}
    return Checkpoint(type(model).__name__, model, weights, files)


def _of_folder(folder: Path, name: str) -> Checkpoint:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as e:
        raise ExportError(f"'{folder}' has no configuration that transformers reads: {e}") from e
    for_inference(config)
    model = make_empty(config)
    weights = match(model, read_checkpoint(folder), name, lambda: _converted(folder))
    return Checkpoint(name, model, weights, text_files(folder), folder)


def text_files(folder: Path) -> dict[str, bytes]:
    files = {file: (folder / file).read_bytes() for file in TEXT_FILES if (folder / file).exists()}
    if "tokenizer.json" not in files and (folder / _TEKKEN).exists():
        files = {**_of_tekken(folder), **files}
    if template := _chat_template(folder):  # stored in the config, as in older folders
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
        config["chat_template"] = template
        files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False).encode()
    return files


def _of_tekken(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer that transformers makes of one of Mistral's."""
    import transformers

    file = folder / _TEKKEN
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (ImportError, KeyError, OSError, TypeError, ValueError) as e:
        raise ExportError(f"'{file}' is no tokenizer that transformers reads: {type(e).__name__}: {e}") from e
    if not hasattr(tokenizer, "backend_tokenizer"):  # that of the package mistral-common
        raise ExportError(f"expected a tokenizer of '{file}' with a tokenizer.json, found a {type(tokenizer).__name__}")
    with tempfile.TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)
        return text_files(Path(saved))


def _chat_template(folder: Path) -> str | None:
    """In a file of its own: chat_template.json is that of processors before transformers 5."""
    if (template := folder / "chat_template.jinja").exists():
        return template.read_text(encoding="utf-8")
    if (template := folder / "chat_template.json").exists():
        return json.loads(template.read_bytes()).get("chat_template")
    return None


def _converted(folder: Path) -> tuple[dict[str, Stored], set[str]]:
    """The weights as transformers loads them, in memory, and the names that it has no use for: for checkpoints whose
    tensors are not those of the model."""
    import transformers

    auto = auto_class(transformers.AutoConfig.from_pretrained(folder))
    model, info = auto.from_pretrained(
        folder, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True
    )
    # Weights without a match were initialized by transformers.
    made_up = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    made = {key: of_tensor(key, tensor) for key, tensor in named_tensors(model).items() if key not in made_up}
    return made, set(info["unexpected_keys"])
