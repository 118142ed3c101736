"""Models without a cache: encoders, vision models, and sentence-transformers' objects around them.

Which inputs they are called with is not known before the first call, so that is when a program is exported: one for each
set of arguments, for any batch and any length.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from graft.errors import ExportError, InvalidArgument, InvalidProgram, Unsupported
from graft.exporter import torch_export
from graft.hf import causal, store
from graft.hf.general import GeneralEngine
from graft.hf.identity import known
from graft.hf.guard import Guard
from graft.hf.program import Progress
from graft.hf.traced import broadcast_masks
from graft.llm.trace import traceable_hooks
from graft.llm.untraceable import no_graph_printed, reason

_CAUSAL = {
    name
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    for name in ([names] if isinstance(names, str) else names)
}


def is_wrapped(model: Any) -> bool:
    return type(model).__module__.split(".")[0] == "sentence_transformers"


def is_encoder(model: Any) -> bool:
    return isinstance(model, PreTrainedModel) and not is_conditional(model) and not _is_causal(model)


def is_conditional(model: Any) -> bool:
    """Whether generate() goes on from more than a text: a source that is encoded first, pictures, sound."""
    return isinstance(model, PreTrainedModel) and model.can_generate() and not _is_causal(model)


def takes_media(kind: type) -> bool:
    """Whether calls may have pictures or sound."""
    return bool(causal.MEDIA & inspect.signature(kind.forward).parameters.keys())


def _is_causal(model: PreTrainedModel) -> bool:
    return any(kind.__name__ in _CAUSAL for kind in type(model).__mro__)


def compile_encoder(
    model: Any,
    quantize: str | Mapping[str, str] | None,
    device: str | None,
    buckets: Sequence[int] | None,
    release_weights: bool,
    threads: int,
    progress: bool | None,
) -> Any:
    if is_wrapped(model):
        inner = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        if not inner:
            raise InvalidArgument(
                f"graft.compile: expected a {type(model).__name__} around a model of transformers, found none"
            )
        compile_encoder(inner[0], quantize, device, buckets, release_weights, threads, progress)
        return model
    if buckets is not None:
        raise InvalidArgument(
            "graft.compile: buckets are for models with a cache; others have one plan for each length"
        )
    if release_weights:
        raise InvalidArgument("graft.compile: release_weights is for models with a cache; others read their weights")
    kind = causal.check(model)
    model.graft = EncoderEngine(model, kind, quantize, device or "", threads, progress)
    model._graft_options = dict(quantize=quantize, device=device, threads=threads, progress=progress)
    model._graft_dtype = model.dtype
    model.__class__ = _class_of(kind)
    model._graft_guard = Guard(model)
    return model


class EncoderEngine:
    """`model.graft` of a model without a cache."""

    def __init__(self, model: Any, kind: type, quantize: Any, device: str, threads: int, progress: bool | None) -> None:
        self._kind, self._quantize, self._device = kind, quantize, device
        self._threads, self._progress = threads, progress
        self._lock = threading.RLock()
        self._loaded: dict[Any, Any] = {}
        self._general: GeneralEngine | None = None  # for all calls, once a program for any size could not be made
        self._milliseconds = 0.0
        self._calls = 0
        self._compiled: list[dict[str, Any]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> EncoderEngine:
        """Without programs: the copy has weights of its own."""
        made = EncoderEngine.__new__(EncoderEngine)
        made.__dict__.update(vars(self), _lock=threading.RLock(), _loaded={}, _general=None, _compiled=[], _calls=0)
        return made

    def forget(self, weight: str) -> None:
        """Programs are loaded again, since a weight has other values now."""
        if self._quantize:
            raise Unsupported(
                f"weight {weight} was changed after graft.compile, which quantized all weights; compile the model again "
                "(graft.compile)"
            )
        with self._lock:
            self._loaded.clear()
            if self._general is not None:
                self._general.forget()

    def run(self, model: Any, arguments: Mapping[str, Any]) -> Any:
        tensors = {name: value for name, value in sorted(arguments.items()) if isinstance(value, torch.Tensor)}
        others = {name: value for name, value in arguments.items() if name not in tensors}
        key = (
            tuple((name, tensor.dtype, tensor.dim()) for name, tensor in tensors.items()),
            tuple(sorted((name, repr(value)) for name, value in others.items())),
        )
        with self._lock:  # one session for all: calls follow each other
            if self._general is not None:
                return self._general.run(model, dict(arguments))
            loaded = self._loaded.get(key)
            if loaded is None:
                try:
                    loaded = self._loaded[key] = self._load(model, tensors, others)
                except ExportError as refused:
                    if self._quantize:
                        raise
                    try:
                        return self._begin_general(model, arguments)
                    except (ExportError, Unsupported) as e:
                        raise ExportError(f"graft.compile: {e}") from refused
            started = time.perf_counter()
            try:
                result = loaded(tensors)
            except (InvalidArgument, InvalidProgram):  # of the caller's, or values or sizes that the program is not for
                if self._quantize:
                    raise
                with contextlib.suppress(Exception):
                    return self._begin_general(model, arguments)
                raise
            self._milliseconds += (time.perf_counter() - started) * 1e3
            self._calls += 1
        return result

    def _begin_general(self, model: Any, arguments: Mapping[str, Any]) -> Any:
        """Where there is no program for any size or value: programs for the calls that are made."""
        general = GeneralEngine(self._kind, self._device, self._threads, causal=False)
        result = general.run(model, dict(arguments))
        self._general = general
        return result

    def _load(self, model: Any, tensors: Mapping[str, torch.Tensor], others: Mapping[str, Any]) -> Any:
        from graft.runtime import LoadOptions, load

        started = time.perf_counter()
        compiled = type(model)
        model.__class__ = self._kind
        try:
            with Progress(self._progress) as say:
                weights = dict(model.state_dict(keep_vars=True))
                identity = known(model)
                key = store.digest_of(
                    {
                        "model": identity,
                        "versions": store.versions(),
                        "weights": [(n, list(t.shape), str(t.dtype)) for n, t in sorted(weights.items())],
                        "inputs": [(n, str(t.dtype), _sizes(t)) for n, t in tensors.items()],
                        "others": sorted((n, repr(v)) for n, v in others.items()),
                        "quantize": str(self._quantize),
                        "content": store.digest_of_tensors(weights) if self._quantize else None,
                    }
                )
                entry = store.find(key) if identity else None
                found = entry is not None
                folder = None
                if identity is None:  # nobody can say whether another model has the same program
                    folder = tempfile.TemporaryDirectory(prefix="graft-")
                    path = Path(folder.name) / "model.pte"
                    entry = path, _export(path, model, tensors, others, self._quantize, say)
                elif entry is None:
                    entry = store.put(key, lambda path: _export(path, model, tensors, others, self._quantize, say))
                package, about = entry
                given = {name: weights[name.removeprefix(_PREFIX)].detach().contiguous() for name in about["keys"]}
                options = LoadOptions(on_phase=say)
                loaded = load(package, tensors=given, device=self._device, threads=self._threads, options=options)
        finally:
            model.__class__ = compiled
        self._compiled.append({"seconds": time.perf_counter() - started, "from_disk": found, "file": str(package)})
        return loaded

    def stats(self) -> dict[str, Any]:
        """calls, milliseconds, and of each program what the engine counts (graft.Model.counters) and how it was made. Of a
        model whose code decides by sizes or values: what GeneralEngine counts."""
        with self._lock:
            if self._general is not None:
                return self._general.stats()
            programs = [loaded.counters() for loaded in self._loaded.values()]
            return {
                "calls": self._calls,
                "milliseconds": self._milliseconds,
                "programs": programs,
                "weights": [
                    {n: loaded._program.stats()[n] for n in ("weight_bytes", "given_bytes", "copied_bytes")}
                    for loaded in self._loaded.values()
                ],
                "compiled": list(self._compiled),
            }


def _sizes(tensor: torch.Tensor) -> list[Any]:
    """Batches are dynamic, and the second size of tensors that have two: tokens, or audio samples."""
    return [None if i == 0 or (i == 1 and tensor.dim() == 2) else size for i, size in enumerate(tensor.shape)]


def _export(
    path: Any, model: Any, tensors: Mapping[str, torch.Tensor], others: Mapping[str, Any], quantize: Any, say: Any
) -> dict[str, Any]:
    from graft.exporter.export import export_for_load

    examples, shapes = {}, {}
    for name, tensor in tensors.items():
        example = tensor.detach()
        for dim, size in enumerate(_sizes(tensor)):
            if size is None and example.shape[dim] < 2:  # export would specialise a size of 1
                example = example.repeat_interleave(2, dim)
        examples[name] = example
        shapes[name] = {d: torch.export.Dim.AUTO for d, size in enumerate(_sizes(tensor)) if size is None}
    say("tracing")
    takes = inspect.signature(type(model).forward).parameters
    if getattr(model.config.get_text_config(), "use_cache", None) and "use_cache" in takes and "use_cache" not in others:
        others = {**others, "use_cache": False}  # nobody goes on with what one call leaves
    caller = _Caller(model, dict(others))
    try:
        with traceable_hooks(model), broadcast_masks(), torch.no_grad():
            program = torch_export.export(caller, (examples,), dynamic_shapes=(shapes,), strict=False)
    except ExportError as e:
        raise ExportError(f"graft.compile: {e}") from e
    except Exception as e:  # whatever the model's code or the tracer raises
        raise ExportError(f"graft.compile: {type(model).__name__} cannot be traced: {reason(e)}") from e
    say("lowering")
    try:
        if not quantize:
            return {"keys": _write(program, path)}
        export_for_load(program, path, quantize=quantize)
    except ExportError as e:
        raise ExportError(f"graft.compile: {type(model).__name__}: {e}") from e
    return {"keys": []}


def _write(program: torch.export.ExportedProgram, path: Any) -> list[str]:
    """The names of the weights that it reads, which are not in it: those of the model's state_dict."""
    from graft.exporter import quiet
    from graft.exporter.serialize import StoredWeight
    from graft.llm import container
    from graft.llm.export import _used_weights
    from graft.llm.lower import lower

    described = {}
    for spec in program.graph_signature.input_specs:
        if spec.persistent is not False and (tensor := program.state_dict.get(spec.target)) is not None:
            described[spec.target] = StoredWeight(spec.target, tensor.nbytes, tensor.dtype)
    with quiet.lowering():
        program, blob = lower(program, described)
    container.write(path, {"forward": (program, blob)}, {})
    return sorted(_used_weights(program) & described.keys())


_PREFIX = "model."  # prefix of weight names: the attribute of _Caller


class _Caller(torch.nn.Module):
    """The model with the arguments that are no tensors."""

    def __init__(self, model: Any, others: dict[str, Any]) -> None:
        super().__init__()
        self.model, self._others = model, others

    def forward(self, tensors: dict[str, torch.Tensor]) -> Any:
        # Hooks of the model itself run around the compiled forward.
        with no_graph_printed():
            return self.model.forward(**tensors, **self._others)


class CompiledEncoder:
    """Mixed into the class of a model without a cache."""

    _uncompiled: type

    __deepcopy__ = causal.Compiled.__deepcopy__
    __reduce_ex__ = causal.Compiled.__reduce_ex__
    save_pretrained = causal.Compiled.save_pretrained
    _check_kept = causal.Compiled._check_kept

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return self._graft_dtype


_classes: dict[type, type] = {}


def _class_of(kind: type) -> type:
    made = _classes.get(kind)
    if made is None:
        signature = inspect.signature(kind.forward)

        @functools.wraps(kind.forward)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs)
            given = {name: value for name, value in list(bound.arguments.items())[1:]}
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    given.update(given.pop(name, {}))
            return _call(self, {name: value for name, value in given.items() if value is not None})

        names = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "_uncompiled": kind,
            "forward": forward,
        }
        made = _classes[kind] = type(kind.__name__, (CompiledEncoder, kind), names)
    return made


def _call(model: Any, given: dict[str, Any]) -> Any:
    wanted = {name: given.pop(name, None) for name in ("output_attentions", "output_hidden_states")}
    causal.refuse_outputs(model.config, wanted, "use the model before graft.compile")
    return_dict = given.pop("return_dict", True)
    if name := next((name for name in ("past_key_values", "use_cache") if given.get(name, False) is not False), None):
        raise Unsupported(
            f"{name}: a compiled {type(model).__name__} keeps no cache, which generate() needs; call it before graft.compile"
        )
    if model.training:
        raise Unsupported("training mode: a compiled model computes no gradients; call model.eval()")
    labels = given.pop("labels", None)
    if labels is not None:
        raise Unsupported("labels: a compiled model without a cache gives no loss; compute it from the logits")
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise InvalidArgument(f"{name}: expected a tensor on the CPU, found one on {value.device}")
    if (changed := model._graft_guard.check(model, thorough=True)) is not None:
        model.graft.forget(changed)
        model._graft_guard.take_weights(model)
    result = model.graft.run(model, given)
    return result if return_dict or isinstance(result, tuple) else result.to_tuple()


__all__ = ["CompiledEncoder", "EncoderEngine", "compile_encoder", "is_conditional", "is_encoder", "is_wrapped", "takes_media"]
