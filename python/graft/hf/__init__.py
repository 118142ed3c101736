"""Hugging Face models on graft: `graft.compile(model)`, and exported programs with static caches.

compiler: a model's forward becomes a call of the engine. causal: what its class does then. program: exported once, loaded
with weights where they lie. engine: program and sessions of one model. state: the session behind one cache. cache: cache
objects of transformers as handles on states. chunks: how prompts are divided into calls. lengths: how long they may be.
masks: what attention masks say. identity: what a trace depends on. guard: what changed since. probe: proof that a program
computes what the model does. general: models that this route does not take, traced with their own caches. structure: calls
as tensors and a structure. traced: the program of one kind of call. known_values: tensors whose values code reads in a
trace. conditional: texts that go on from a source, pictures or sound. store: exported programs on disk. auto: models
without torch weights. encoder: models without a cache. static: the export route that needs only torch.export. exporter:
graft among transformers' exporters.
"""

from __future__ import annotations

from typing import Any

from graft._extras import import_for, require

require("graft.hf", "torch")

_WHERE = {
    "AutoModelForCausalLM": "graft.hf.auto",
    "export_static": "graft.hf.static",
    "attach": "graft.hf.static",
    "StaticKV": "graft.hf.static",
    "register_exporter": "graft.hf.exporter",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'graft.hf' has no attribute '{name}'")
    return getattr(import_for(f"graft.hf.{name}", _WHERE[name]), name)
