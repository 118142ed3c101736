"""A model without its weights, and where each of these lies, by its name in the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graft.errors import ExportError
from graft.llm.stored import Stored
from graft.llm.trace import without_weights

# Buffers in old checkpoints that models compute themselves.
_COMPUTED = (".inv_freq", ".masked_bias", ".attn.bias", ".attention.bias")
_TRAINING = (".masked_spec_embed",)  # parameters that only training reads


@dataclass
class Checkpoint:
    name: str  # for people
    model: torch.nn.Module
    weights: dict[str, Stored]  # by qualified name in the model; of tied ones, the first
    files: dict[str, bytes] = field(default_factory=dict)  # for the tokenizer and the runner
    folder: Path | None = None  # with config.json, where it was read from one


def decodes_by_ctc(config: Any) -> bool:
    """Whether it is the configuration of a model with a head for CTC. Those of an encoder alone are not told apart by their
    model_type."""
    names = getattr(config, "architectures", None) or ()
    return any(name.endswith("ForCTC") for name in names)


def for_inference(config: Any) -> None:
    """Of a model that is read from files: without the parameters that mask features in training, which files may lack."""
    if hasattr(config, "mask_time_prob"):
        config.mask_time_prob = config.mask_feature_prob = 0.0


def auto_class(config: Any) -> Any:
    """The class of transformers that makes models of this kind with a head that gives logits."""
    import transformers
    from transformers.models.auto import modeling_auto

    if decodes_by_ctc(config):
        return transformers.AutoModelForCTC
    if type(config) in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and hasattr(config, "vision_config"):
        return transformers.AutoModelForImageTextToText
    if type(config) in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING and hasattr(config, "audio_config"):
        return transformers.AutoModelForMultimodalLM
    if not getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForCausalLM
    speech = type(config) in modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    return transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM


def make_empty(config: Any) -> torch.nn.Module:
    """The model of a configuration, without memory for its parameters."""
    with without_weights():
        try:
            model = auto_class(config).from_config(config, dtype=torch.float32)
        except (ValueError, KeyError) as e:
            kind = config.model_type
            raise ExportError(f"{kind} is no causal language model of transformers: {e}") from e
    return model.eval()


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Each further name of a tied weight, and its first."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers; of tied ones the first name."""
    tied = tied_names(model)
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in tied}


def match(model: torch.nn.Module, found: dict[str, Stored], where: str, convert: Any = None) -> dict[str, Stored]:
    """Each of the model's weights among those found, by name. Raises ExportError that lists what is missing, what is left
    over and what has other sizes.

    where: they were found, for messages. convert: gives weights that transformers makes of others (stacked experts), and
    the names that it leaves over."""
    wanted = named_tensors(model)
    prefix = getattr(model, "base_model_prefix", "") + "."
    result, missing = {}, []
    used = set()
    others: dict[str, str] = {}
    for name in wanted:
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in found:
                result[name] = found[candidate]
                used.add(candidate)
                break
        else:
            missing.append(name)
    if missing and convert is not None:
        others = _renamed(model, found)
        known = {name: others[name] for name in missing if name in others}
        result.update({name: found[other] for name, other in known.items()})
        used.update(known.values())
        missing = [name for name in missing if name not in known]
    if missing and convert is not None:
        made, left = convert()
        result = {name: result.get(name, made.get(name)) for name in wanted}
        missing = [name for name, stored in result.items() if stored is None]
        used = set(found) - left  # transformers reports itself what is left over
    extra = _left_over(model, found, used, result, {other: name for name, other in others.items()})
    problems = [f"  missing: {name} {list(wanted[name].shape)}" for name in missing]
    problems += [f"  not in the model: {name}" for name in sorted(extra)]
    problems += [
        f"  {name}: the model has {list(wanted[name].shape)}, the file {list(stored.sizes)}"
        for name, stored in result.items()
        if stored is not None and tuple(wanted[name].shape) != stored.sizes
    ]
    if problems:
        raise ExportError(
            f"expected the weights of {type(model).__name__}, found others in '{where}'\n"
            + "\n".join(problems)
        )
    return result


def _renamed(model: torch.nn.Module, found: dict[str, Stored]) -> dict[str, str]:
    """By the name that transformers gives a weight of a checkpoint, its name there, of those that it only renames."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    steps = get_model_conversion_mapping(model)
    plain = [step for step in steps if isinstance(step, WeightRenaming)]
    others = [step for step in steps if not isinstance(step, WeightRenaming)]
    names = {}
    for name in found:
        renamed, converted = rename_source_key(name, plain, others, model.base_model_prefix, model.state_dict())
        if converted is None:
            names[renamed] = name
    return names


def _left_over(
    model: torch.nn.Module, found: dict[str, Stored], used: set[str], taken: dict[str, Stored], names: dict[str, str]
) -> set[str]:
    """Names in a checkpoint that the model has no use for, and that nobody expects. names: what transformers makes of
    those that it renames."""
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    tied = tied_names(model)
    left = set()
    for name in found.keys() - used:
        own = names.get(name, name)
        if own in tied:
            # A checkpoint may write a tied weight twice.
            if tied[own] in taken and not _same(found[name], taken[tied[own]]):
                raise ExportError(f"expected '{name}' equal to '{tied[own]}', its tied twin, found others")
        elif not name.endswith(_COMPUTED + _TRAINING) and not any(pattern.search(n) for n in (name, own) for pattern in ignored):
            left.add(name)
    return left


def _same(a: Stored, b: Stored) -> bool:
    return (a.sizes, a.dtype) == (b.sizes, b.dtype) and all(x == y for x, y in zip(a.chunks(), b.chunks(), strict=True))
