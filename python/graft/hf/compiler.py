"""`graft.compile`: the computation of a Hugging Face model moves to the engine; the object and its callers stay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graft.errors import ExportError, InvalidArgument, Unsupported, raised_by, typed
from graft.hf import adapters, causal
from graft.hf.engine import Engine
from graft.hf.program import Progress, engine_of, export, load, prove
from graft.llm.checkpoint import named_tensors, tied_names


@typed
def compile(  # noqa: A001  (as torch.compile)
    model: Any,
    *,
    max_length: int | None = None,
    quantize: str | Mapping[str, str] | None = None,
    device: str | None = None,
    buckets: Sequence[int] | None = None,
    release_weights: bool = False,
    kv_dtype: str = "computed",
    threads: int = 0,
    progress: bool | None = None,
    route: str | None = None,
    max_adapter_rank: int = 0,
) -> Any:
    """Lets graft compute what the model computes, and returns the same object.

    A causal language model keeps all of `generate()`: sampling, beams, assisted decoding, caches of the caller. Models
    without a cache (encoders, vision models) and sentence-transformers' objects keep their calls. Weights stay where
    torch has them and are read there; other values of them count from the next prompt on. Anything else that changes in
    the model is an error of the next call, which says what, until the model is compiled again.

    A new program is compared with eager PyTorch on a few tokens; `graft.Unsupported` names the model and the difference
    when they disagree. Models that this does not fit (attention of their own, recurrent layers, encoder-decoders, pictures or
    sound beside a text) take a general route: slower steps, the cache of transformers itself, and of the arguments below
    route, device, threads and progress alone.
    `model.graft.route` is "fast" or "general".

    max_length: the most tokens of a sequence, reserved at once; by default caches grow as needed.
    quantize: a type of ggml ("q8_0", "q4_k", ...) for all matrices, or types by patterns of names.
    device: a name of `graft.devices()`; by default GRAFT_DEVICE, else the CPU.
    buckets: lengths that prompts are padded to, so that few plans serve all; longer ones are computed in chunks. By
        default each length has a plan of its own.
    release_weights: the module's own weights become meta tensors. With quantize that frees their memory.
    kv_dtype: how caches are stored: "computed" (f32), "f16", "bf16", "q8_0" or "q4_0".
    threads: 0 means GRAFT_THREADS, else the CPUs that this process may use.
    progress: show a bar; by default when stderr is a terminal.
    max_adapter_rank: the largest rank of LoRA adapters (`graft.load_adapter`; `model.graft.adapter = "name"` chooses one).
        A causal language model with unmerged LoRA of peft has at least 64: the base program runs, and what is active in
        the model (set_adapter, disable_adapter, adapter_names) is added by row.
    route: "fast" or "general" alone; by default the fast one where it fits. Of models that generate from texts alone and
        with pictures or sound (Gemma 3) the fast route takes texts, and calls with more go to the general one.

    `model.graft` is the engine: `model.graft.stats()` says what was made and run. Exported programs are kept in a folder
    (GRAFT_CACHE, by default ~/.cache/graft), so that the next process only loads.
    """
    from graft.hf import encoder

    if route not in (None, "fast", "general"):
        raise InvalidArgument(f"graft.compile: expected the route 'fast' or 'general', found {route!r}")
    if not isinstance(max_adapter_rank, int) or max_adapter_rank < 0:
        raise InvalidArgument(f"graft.compile: expected a max_adapter_rank of at least 0, found {max_adapter_rank!r}")
    given, model = model, adapters.base_of(model)
    if encoder.is_wrapped(model) or encoder.is_encoder(model):
        adapters.refuse_unmerged(model)
        if route is not None:
            raise InvalidArgument("graft.compile: route is for models that generate")
        if max_length is not None or kv_dtype != "computed" or max_adapter_rank:
            raise InvalidArgument("graft.compile: max_length, kv_dtype and max_adapter_rank are for models with a cache")
        return encoder.compile_encoder(model, quantize, device, buckets, release_weights, threads, progress)
    lora = adapters.Lora(model) if adapters.unmerged(model) is not None else None
    options = dict(
        max_length=max_length,
        quantize=quantize,
        device=device,
        buckets=buckets,
        release_weights=release_weights,
        kv_dtype=kv_dtype,
        threads=threads,
        progress=progress,
        route=route,
        max_adapter_rank=max_adapter_rank,
    )
    with contextlib.nullcontext() if lora is None else lora.hidden():
        _compile_causal(model, lora, options)
    return given


def _compile_causal(model: Any, lora: adapters.Lora | None, options: dict[str, Any]) -> None:
    """lora: its layers of peft, which are hidden."""
    from graft.hf import encoder

    kind = causal.check(model)
    started = time.perf_counter()
    route, rank = options["route"], options["max_adapter_rank"]
    needs_fast = route == "fast" or lora is not None or rank > 0
    with Progress(options["progress"]) as say:
        if route == "general" or encoder.is_conditional(model):
            more = f"{kind.__name__} goes on from more than a text"
            refused = Unsupported("it was asked for the general one" if route == "general" else more)
            if needs_fast:
                raise Unsupported(
                    f"graft.compile: {refused}, and only the fast route runs adapters"
                    if route != "fast"
                    else f"graft.compile: {more}, which only the general route does"
                )
            _general(model, kind, options, say, refused)
            return
        try:
            engine = _fast(model, kind, options, started, say, max(rank, lora.rank) if lora is not None else rank)
        except (ExportError, Unsupported) as refused:
            if needs_fast:
                raise
            _general(model, kind, options, say, refused)
            return
    model.graft = engine
    model._graft_options = options
    model._graft_lora = lora
    causal.take_over(model, kind, options["release_weights"])


def _general(model: Any, kind: type, options: Mapping[str, Any], say: Any, refused: Exception) -> Any:
    """A model that the fast route refused."""
    from graft.hf import conditional, encoder, general

    own = {name: options[name] for name in ("max_length", "quantize", "buckets", "release_weights")}
    own["kv_dtype"] = None if options["kv_dtype"] == "computed" else options["kv_dtype"]
    with raised_by("graft.compile"):
        general.check_options(refused, **own)
        if encoder.is_conditional(model) or encoder.takes_media(kind):
            return conditional.compile_conditional(model, kind, options["device"], options["threads"], dict(options))
        try:
            return general.compile_general(model, kind, options["device"], options["threads"], dict(options), say)
        except (ExportError, Unsupported) as e:
            e.add_note(f"The fast route does not take it either: {refused}")
            raise


def _fast(model: Any, kind: type, options: Mapping[str, Any], started: float, say: Any, rank: int) -> Engine:
    """rank: the largest of adapters; 0: there are none."""
    from graft.hf import general

    quantize, device = options["quantize"], options["device"]
    tensors = named_tensors(model)
    with raised_by("graft.compile"):
        plain = _exported(model, kind, tensors, None, say)
        loaded: list[Any] = []

        def of_plain() -> Any:
            if not loaded:
                loaded.append(load(plain, tensors, [], device or "", say, rank))
            return loaded[0]

        verdict = prove(model, kind, plain, of_plain, lambda _, tensor: tensor, device or "", say)
        if quantize is None:
            exported, program = plain, of_plain()
        else:
            exported = _exported(model, kind, tensors, quantize, say)
            program = load(exported, tensors, [], device or "", say, rank)
    reload = None
    if quantize is None and not options["release_weights"]:

        def reload(tensors: Mapping[str, torch.Tensor]) -> Any:
            return load(exported, tensors, [], device or "", lambda _: None, rank)

    return engine_of(
        program,
        exported,
        started,
        max_length=options["max_length"],
        buckets=options["buckets"],
        threads=options["threads"],
        kv_dtype=options["kv_dtype"],
        positions=verdict["positions"],
        reload=reload,
        view=None if reload is None or rank else general.view,
    )


def _exported(model: Any, kind: type, tensors: Mapping[str, torch.Tensor], quantize: Any, say: Any) -> Any:
    from graft.hf import store
    from graft.llm.stored import of_tensor

    weights = {name: of_tensor(name, tensor) for name, tensor in tensors.items()}
    with causal.as_class(model, kind):  # the original one, also of a model that is compiled already
        return export(model, weights, tied_names(model), quantize, lambda: store.digest_of_tensors(tensors), say)


__all__ = ["compile"]
