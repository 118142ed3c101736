"""The program of a causal language model, exported once and kept on disk (`store`), and loaded with its weights where
they lie: in torch's memory, or in their files."""

from __future__ import annotations

import functools
import inspect
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from graft import _C
from graft.errors import ExportError, Unsupported
from graft.hf import causal, probe, store
from graft.hf.eager import Values, run_eagerly
from graft.hf.engine import Engine
from graft.hf.identity import known
from graft.hf.lengths import LONGEST, Lengths
from graft.hf.state import Layer
from graft.runtime.model import weight_view


@dataclass
class Exported:
    package: Path
    layers: list[Layer]
    vocab_size: int
    lengths: Lengths
    keys: list[str]  # weights outside the package, by their names at load
    found: bool  # on disk
    key: str | None  # of the entry; None: it is not kept
    verdict: dict[str, Any] | None  # of graft.hf.probe, when it was kept
    folder: Any = None  # of a package that is not kept


def _traced(model: torch.nn.Module) -> torch.export.ExportedProgram:
    """For prompts of any length, or of the length that the configuration states where the model's code bounds it."""
    from graft.llm.trace import Bounded, trace

    try:
        return trace(model, context=LONGEST, lengths_checked=True)
    except Bounded:
        stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if not isinstance(stated, int) or not 0 < stated < LONGEST:
            raise
        return trace(model, context=stated, lengths_checked=True)


def export(
    model: torch.nn.Module,
    weights: Mapping[str, Any],
    tied: Mapping[str, str],
    quantize: str | Mapping[str, str] | None,
    digest: Callable[[], str],
    say: Callable[[str], None],
) -> Exported:
    """weights: graft.llm.stored.Stored by name, those of `tied` under their first name alone. digest: of all their
    bytes; asked for when the package is to hold them, which is when they are quantized."""
    rules = None if quantize is None else {"*": quantize} if isinstance(quantize, str) else dict(quantize)
    identity = known(model)
    if identity is None:  # nobody can say whether another model has the same program
        folder = tempfile.TemporaryDirectory(prefix="graft-")
        package = Path(folder.name) / "model.pte"
        about = _write(package, model, weights, tied, rules, say)
        return _read(package, about, None, found=False, folder=folder)
    in_package = rules or any(_in_package(stored) for stored in weights.values())
    key = store.digest_of(
        {
            "model": identity,
            "versions": store.versions(),
            "weights": [
                (name, stored.name, list(stored.sizes), str(stored.dtype), stored.block_type, stored.file is None)
                for name, stored in sorted(weights.items())
            ],
            "tied": sorted(tied.items()),
            "quantize": list(rules.items()) if rules else None,
            "content": digest() if in_package else None,
        }
    )
    if (entry := store.find(key)) is not None:
        return _read(*entry, key, found=True)
    return _read(*store.put(key, lambda path: _write(path, model, weights, tied, rules, say)), key, found=False)


def _read(package: Path, about: Mapping[str, Any], key: str | None, found: bool, folder: Any = None) -> Exported:
    layers = [Layer(*layer) for layer in about["layers"]]
    lengths = Lengths(**about["lengths"])
    return Exported(package, layers, about["vocab_size"], lengths, about["keys"], found, key, about.get("verdict"), folder)


def _in_package(stored: Any) -> bool:
    """Whether a weight has no other place than the package: blocks that were made of those in a file."""
    return bool(stored.block_type) and stored.file is None


def _write(
    path: Path,
    model: torch.nn.Module,
    weights: Mapping[str, Any],
    tied: Mapping[str, str],
    rules: Mapping[str, str] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    from graft.exporter.pte import LazyData
    from graft.exporter.serialize import StoredWeight
    from graft.llm import container
    from graft.llm.export import _used_weights
    from graft.llm.lower import lower

    say("tracing")
    program = _traced(model)
    _check_windows(model, program)
    lengths = Lengths.of(model, program)
    all_weights = dict(weights)
    if rules:
        from graft.llm.quantized import quantized

        names = {name: [name] for name in weights}
        for name, first in tied.items():
            names[first].append(name)
        all_weights.update(quantized(program, weights, names, rules, lambda _: None))
    copied = {name for name in weights if rules is not None or _in_package(weights[name])}
    described = {
        name: StoredWeight(
            key=name if name in copied or stored.file is None else stored.name,
            byte_size=stored.byte_size,
            dtype=stored.dtype,
            block_type=stored.block_type,
        )
        for name, stored in all_weights.items()
    }
    described.update({name: described[first] for name, first in tied.items()})
    say("lowering")
    program, blob = lower(program, described)
    used = {tied.get(name, name) for name in _used_weights(program)} & set(weights)
    data = {}
    say("writing")
    for name in sorted(used & copied):
        stored = all_weights[name]
        data[described[name].key] = LazyData(stored.byte_size, stored.chunks)
    container.write(path, {"step": (program, blob)}, data)
    layers = {}
    for node in program.graph.nodes:
        if node.target is torch.ops.graft.attention.default:
            key, value = (node.args[i].meta["val"] for i in (1, 2))
            layers[node.kwargs["layer"]] = (int(key.shape[1]), int(key.shape[3]), int(value.shape[3]))
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    return {
        "layers": [layers[i] for i in sorted(layers)],
        "vocab_size": int(output.args[0][-1].meta["val"].shape[-1]),
        "lengths": asdict(lengths),
        "keys": sorted(described[name].key for name in used - copied),
    }


def _check_windows(model: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
    """A cache that drops tokens which the model's mask shows makes cached steps another computation than a full pass."""
    kept = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    for node in program.graph.nodes:
        if node.target is not torch.ops.graft.attention.default or (layer := node.kwargs["layer"]) >= len(kept):
            continue
        held = getattr(kept[layer], "sliding_window", None)
        seen = node.kwargs.get("window") or node.kwargs.get("chunk")
        if held and (not seen or seen > held):
            raise ExportError(
                f"{type(model).__name__}: expected layer {layer} to see no more tokens than transformers' cache of its "
                f"configuration keeps, which is {held}, found a mask that shows {seen or 'all'}: its cached steps differ "
                "from its own full pass"
            )


def load(
    exported: Exported,
    tensors: Mapping[str, torch.Tensor],
    files: list[Path],
    device: str,
    say: Callable[[str], None],
    max_adapter_rank: int = 0,
) -> _C.Program:
    """tensors: in memory, by key; they stay alive as long as the program."""
    owner: list[Any] = []
    views = {}
    for name in exported.keys:
        if name in tensors:
            tensor = tensors[name].detach()
            if tensor.device.type != "cpu":
                raise ExportError(f"expected weights on the CPU, found '{name}' on {tensor.device}")
            views[name] = weight_view(name, tensor.contiguous(), owner)
    return _C.Program.load(
        str(exported.package),
        weights=[str(file) for file in files],
        tensors=views,
        owner=owner or None,
        device=device,
        on_phase=lambda phase: say(f"loading: {phase}"),
        matmul_precision=torch.get_float32_matmul_precision(),
        max_adapter_rank=max_adapter_rank,
    )


def prove(
    model: torch.nn.Module,
    kind: type,
    exported: Exported,
    program: Callable[[], _C.Program],
    values: Values,
    device: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The verdict of graft.hf.probe on an exported program, from disk or found now. values: of a weight by its name, which
    may be a meta tensor in the model."""
    if exported.verdict is not None:
        return exported.verdict
    say("comparing with eager PyTorch")
    engine = Engine(program(), exported.layers, vocab_size=exported.vocab_size, lengths=exported.lengths)
    loose = bool(device) or torch.get_float32_matmul_precision() != "highest"
    verdict = compare(model, kind, values, run_compiled(model, kind, engine), loose)
    if exported.key is not None and verdict["telling"] and not device:
        store.annotate(exported.key, {"verdict": verdict})
    return verdict


def run_compiled(model: torch.nn.Module, kind: type, engine: Any) -> Callable[..., Any]:
    """Calls of the model on an engine, with the rule for its positions."""

    def compiled(rule: str, **arguments: Any) -> Any:
        engine.positions = rule
        with causal.trial(model, kind, engine), torch.no_grad():
            return model(**arguments)

    return compiled


def compare(
    model: torch.nn.Module, kind: type, values: Values, compiled: Callable[..., Any], loose: bool
) -> dict[str, Any]:
    """graft.hf.probe.verify with what the model says of itself, and how `kind` computes it."""
    config = model.config.get_text_config()
    verify = functools.partial(
        probe.verify,
        kind.__name__,
        compiled=compiled,
        takes_positions="position_ids" in inspect.signature(kind.forward).parameters,
        vocab_size=config.vocab_size,
        padding_id=getattr(config, "pad_token_id", None),
        loose=loose,
    )
    try:
        return verify(run_eagerly(model, kind, values, together=True))
    except (ExportError, Unsupported):  # the model may keep something of a call in itself
        return verify(run_eagerly(model, kind, values, together=False))


def engine_of(program: _C.Program, exported: Exported, started: float, **options: Any) -> Engine:
    """started: time.perf_counter() before the export. options: max_length, buckets, threads, kv_dtype, positions, reload, view, as Engine's."""
    compiled = {
        "seconds": time.perf_counter() - started,
        "from_disk": exported.found,
        "file": str(exported.package),
    }
    return Engine(
        program,
        exported.layers,
        vocab_size=exported.vocab_size,
        lengths=exported.lengths,
        compiled=compiled,
        **options,
    )


class Progress:
    """Steps of a compilation as a bar on stderr, when that is a terminal (or when it is asked for)."""

    def __init__(self, shown: bool | None) -> None:
        from tqdm import tqdm

        disable = None if shown is None else not shown
        self._bar = tqdm(
            total=9, desc="graft.compile", disable=disable, leave=False, bar_format="{desc} {bar} {elapsed}"
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def __call__(self, step: str) -> None:
        self._bar.set_description_str(f"graft.compile: {step}")
        self._bar.update()


__all__ = ["Exported", "Progress", "compare", "engine_of", "export", "load", "prove", "run_compiled"]
