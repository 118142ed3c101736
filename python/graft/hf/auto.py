"""Models straight from their files: code and configuration of transformers, weights mapped by the engine."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graft.errors import raised_by
from graft.hf import causal, store
from graft.hf.program import Progress, engine_of, export, load, prove


class AutoModelForCausalLM:
    """The twin of `graft.compile` that never has the weights in torch's memory."""

    def __init__(self) -> None:
        raise TypeError("AutoModelForCausalLM: use AutoModelForCausalLM.from_pretrained(name_or_dir)")

    @classmethod
    def from_pretrained(
        cls,
        name_or_dir: str | os.PathLike[str],
        *,
        max_length: int | None = None,
        quantize: str | Mapping[str, str] | None = None,
        device: str | None = None,
        buckets: Sequence[int] | None = None,
        kv_dtype: str = "computed",
        threads: int = 0,
        progress: bool | None = None,
        max_adapter_rank: int = 0,
    ) -> Any:
        """A model of transformers, compiled, whose parameters are meta tensors. name_or_dir: a folder with config.json
        and safetensors, a name on the Hugging Face hub, or a GGUF file. The rest as `graft.compile`.

        Weights are read where they lie in the files; quantized ones are written once into the folder of exported
        programs. Checkpoints whose tensors transformers puts together anew (stacked experts) are an exception: these
        are in memory."""
        from graft.llm.checkpoint import tied_names
        from graft.llm.formats import open_checkpoint

        started = time.perf_counter()
        with Progress(progress) as say:
            say("reading")
            with raised_by("AutoModelForCausalLM.from_pretrained"):
                checkpoint = open_checkpoint(os.fspath(name_or_dir))
                model, weights = checkpoint.model, checkpoint.weights
                tied = tied_names(model)
                files = sorted({stored.file for stored in weights.values() if stored.file is not None})
                in_blocks = any(stored.block_type for stored in weights.values())
                made = {n: s.tensor() for n, s in weights.items() if s.file is None and not s.block_type}

                def digest() -> str:
                    return store.digest_of_files(files) + store.digest_of_tensors(made)

                kind = type(model)
                exported = export(model, weights, tied, quantize, digest, say)
                verdict = {"positions": "columns"}
                if not in_blocks:  # those are of architectures that graft knows
                    plain = export(model, weights, tied, None, digest, say) if quantize else exported

                    def of_plain() -> Any:
                        return load(plain, made, files, device or "", say, max_adapter_rank)

                    def values(name: str, tensor: torch.Tensor) -> torch.Tensor:
                        stored = weights.get(tied.get(name, name))
                        return tensor if stored is None else stored.tensor()

                    verdict = prove(model, kind, plain, of_plain, values, device or "", say)
                program = load(exported, made, [] if quantize else files, device or "", say, max_adapter_rank)
        model.graft = engine_of(
            program,
            exported,
            started,
            max_length=max_length,
            buckets=buckets,
            threads=threads,
            kv_dtype=kv_dtype,
            positions=verdict["positions"],
        )
        model._graft_options = {}
        causal.take_over(model, kind, release_weights=True, dtype=_dtype(weights))
        model.config._name_or_path = os.fspath(name_or_dir)
        if settings := checkpoint.files.get("generation_config.json"):
            from transformers import GenerationConfig

            model.generation_config = GenerationConfig.from_dict(json.loads(settings))
        return model


def _dtype(weights: Mapping[str, Any]) -> torch.dtype:
    """That of most elements."""
    elements: Counter[torch.dtype] = Counter()
    for stored in weights.values():
        if not stored.block_type and stored.dtype.is_floating_point:
            elements[stored.dtype] += torch.Size(stored.sizes).numel()
    return elements.most_common(1)[0][0] if elements else torch.float32


__all__ = ["AutoModelForCausalLM"]
