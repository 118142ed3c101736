"""Programs of fixed shapes with a static cache as input and output: for a .pt2 file, or a runtime of one's own.

`export_static` needs torch.export alone. `attach` puts such programs under `generate()`, run by PyTorch or by graft.

A program has the signature
    (input_ids [B, T], position_ids [B, T], cache_position [T], masks {kind: bool [B, 1, T, S]}, cache: StaticKV)
    -> (logits [B, T, V], rows: StaticKV)
It writes nothing: `rows` are the keys and values of the T new columns, and `cache.apply(rows, cache_position)` puts them
in their place. `masks` say, by kind of layer, which columns of the cache a token sees, its own included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree
from transformers import cache_utils

from graft.errors import ExportError, InvalidArgument, Unsupported
from graft.exporter import torch_export
from graft.hf import causal, probe
from graft.hf.chunks import chunks
from graft.hf.lengths import Lengths
from graft.hf.program import compare, run_compiled
from graft.hf.masks import Window, visible_columns, windows
from graft.hf.state import Kind, Layer, State
from graft.llm import rope


class StaticKV:
    """Keys and values of all layers: lists of [B, H, S, D] (of a cache) or [B, H, T, D] (of new columns)."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        self.keys, self.values = list(keys), list(values)

    @classmethod
    def zeros(cls, layers: Sequence[Layer], rows: int, columns: int, dtype: torch.dtype) -> StaticKV:
        def side(name: str) -> list[torch.Tensor]:
            return [torch.zeros(rows, layer.heads, columns, getattr(layer, name), dtype=dtype) for layer in layers]

        return cls(side("key_size"), side("value_size"))

    def apply(self, rows: StaticKV, cache_position: torch.Tensor) -> None:
        """Writes new columns at cache_position [T]."""
        for cached, new in zip((*self.keys, *self.values), (*rows.keys, *rows.values)):
            cached.index_copy_(2, cache_position, new)

    def first(self, columns: int) -> StaticKV:
        return StaticKV([k[:, :, :columns] for k in self.keys], [v[:, :, :columns] for v in self.values])

    def rows(self, chosen: torch.Tensor) -> StaticKV:
        return StaticKV([k[chosen] for k in self.keys], [v[chosen] for v in self.values])


pytree.register_pytree_node(
    StaticKV,
    lambda cache: ([cache.keys, cache.values], None),
    lambda children, _: StaticKV(*children),
    serialized_type_name="graft.hf.StaticKV",
    flatten_with_keys_fn=lambda cache: (
        [(pytree.GetAttrKey("keys"), cache.keys), (pytree.GetAttrKey("values"), cache.values)],
        None,
    ),
)


torch.serialization.add_safe_globals([StaticKV])  # torch.export.load reads example inputs


class _Layer(cache_utils.CacheLayerMixin):
    """One layer of the cache while a program is traced: reads beside the new columns, writes nothing."""

    is_compileable = False
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor) -> None:
        self.past, self.position = (keys, values), position
        self.new: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.new = (key_states, value_states)
        keys, values = self.past
        return keys.index_copy(2, self.position, key_states), values.index_copy(2, self.position, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past[0].shape[2], 0

    def get_seq_length(self) -> int:
        return 0  # positions and masks are given

    def get_max_length(self) -> int:
        return self.past[0].shape[2]


class _Stepper(torch.nn.Module):
    """What is traced."""

    def __init__(self, model: torch.nn.Module, by_kind: bool) -> None:
        super().__init__()
        self.model, self._by_kind = model, by_kind

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        masks: dict[str, torch.Tensor],
        cache: StaticKV,
    ) -> tuple[torch.Tensor, StaticKV]:
        layers = [_Layer(k, v, cache_position) for k, v in zip(cache.keys, cache.values)]
        mask = masks if self._by_kind else next(iter(masks.values()))
        logits = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
            past_key_values=cache_utils.Cache(layers=layers),
            use_cache=True,
        ).logits
        return logits, StaticKV([layer.new[0] for layer in layers], [layer.new[1] for layer in layers])


@dataclass
class StaticPrograms:
    """Programs by the number of tokens that they take: 1 is the decode step. Batches are dynamic."""

    programs: dict[int, ExportedProgram]
    max_cache_len: int
    layers: tuple[Layer, ...]
    kinds: dict[str, Window]  # of the masks
    dtype: torch.dtype
    export_seconds: dict[int, float] = field(default_factory=dict)

    @property
    def decode(self) -> ExportedProgram:
        return self.programs[1]

    @property
    def prefill(self) -> dict[int, ExportedProgram]:
        return {tokens: program for tokens, program in self.programs.items() if tokens > 1}


def export_static(
    model: Any, max_cache_len: int, prefill_buckets: Sequence[int] = (64,), *, strict: bool = False
) -> StaticPrograms:
    """Exports a causal language model for a cache of max_cache_len columns: one program for each of prefill_buckets,
    which are numbers of tokens, and one for a single token. strict: as torch.export.export takes it."""
    causal.check(model)
    buckets = sorted(set(prefill_buckets))
    if not isinstance(max_cache_len, int) or not buckets or buckets[0] < 2 or buckets[-1] > max_cache_len:
        raise InvalidArgument(
            f"export_static: expected prefill_buckets from 2 to max_cache_len, found {list(prefill_buckets)} and "
            f"{max_cache_len}"
        )
    if types := sorted(rope.lengths_of(model)):
        raise Unsupported(
            "export_static: expected rotary frequencies that do not depend on the prompt's length, found rope_type "
            f"'{types[0]}' in {type(model).__name__}"
        )
    kinds = windows(model.config)
    stepper = _Stepper(model, bool(getattr(model.config.get_text_config(), "layer_types", None)))
    programs, seconds = {}, {}
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}
    layers = _layers_of(model)
    try:
        for config in configs.values():
            config._attn_implementation_internal = "sdpa"  # takes masks of bools
        for tokens in (*buckets, 1):
            started = time.perf_counter()
            programs[tokens] = _export(stepper, layers, kinds, max_cache_len, tokens, model.dtype, strict)
            seconds[tokens] = time.perf_counter() - started
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
    return StaticPrograms(programs, max_cache_len, layers, kinds, model.dtype, seconds)


def _export(
    stepper: _Stepper,
    layers: Sequence[Layer],
    kinds: Mapping[str, Window],
    length: int,
    tokens: int,
    dtype: torch.dtype,
    strict: bool,
) -> ExportedProgram:
    rows = 2
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    masks = {kind: torch.ones(rows, 1, tokens, length, dtype=torch.bool) for kind in kinds}
    cache = StaticKV.zeros(layers, rows, length, dtype)
    batch = Dim("batch", min=1, max=1 << 16)
    of_cache = [[{0: batch}] * len(layers)] * 2
    shapes = ({0: batch}, {0: batch}, {}, {kind: {0: batch} for kind in kinds}, of_cache)
    args = (ids, ids.clone(), torch.arange(tokens), masks, cache)
    kind = type(stepper.model).__name__
    try:
        with torch.no_grad():
            return torch_export.export(stepper, args, dynamic_shapes=shapes, strict=strict)
    except Exception as e:  # whatever the model's code or the tracer raises
        raise ExportError(
            f"export_static: {kind} cannot be exported for {tokens} tokens: {type(e).__name__}: {e}"
        ) from e


def _layers_of(model: Any) -> tuple[Layer, ...]:
    """Seen on a run of one token."""
    cache = cache_utils.DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    if any(not isinstance(layer, cache_utils.DynamicLayer) or layer.keys is None for layer in cache.layers):
        raise Unsupported(f"export_static: expected keys and values in each layer of {type(model).__name__}")
    return tuple(Layer(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers)


# --- under generate() ---


def attach(model: Any, programs: StaticPrograms, *, runtime: str = "torch", threads: int = 0) -> Any:
    """Puts programs of `export_static` under the model's `generate()`, and returns the same object.

    runtime: "torch" runs them in eager PyTorch, "graft" on the engine. Sequences have at most max_cache_len columns,
    padding included; the padding that generate() hands over stays as it is."""
    kind = causal.check(model)
    if not isinstance(programs, StaticPrograms):
        raise InvalidArgument(f"attach: expected the programs of export_static, found {type(programs).__name__}")
    if runtime not in ("torch", "graft"):
        raise InvalidArgument(f"attach: expected runtime 'torch' or 'graft', found {runtime!r}")
    runner = _Runner(programs, runtime, threads)
    if programs.max_cache_len > probe.TOKENS:
        compiled = run_compiled(model, kind, runner)
        loose = programs.dtype != torch.float32
        runner.positions = compare(model, kind, lambda _, tensor: tensor, compiled, loose)["positions"]
        runner.clear_counts()
    model.graft = runner
    model._graft_options = {}
    causal.take_over(model, kind, release_weights=False)
    return model


class _Runner:
    """`model.graft` of an attached model."""

    lengths = Lengths()  # positions go to the programs as they are
    view = None  # the programs are what they are: no other route
    max_length = None

    def __init__(self, programs: StaticPrograms, runtime: str, threads: int) -> None:
        self.programs, self.layers, self.runtime = programs, programs.layers, runtime
        self.positions: str | None = "columns"
        self.reload, self.generation, self.stale = None, 0, False
        self.clear_counts()
        if runtime == "torch":
            self._steps = {tokens: program.module() for tokens, program in programs.programs.items()}
        else:
            self._steps = _on_graft(programs, threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Runner:
        return self

    def clear_counts(self) -> None:
        self.counts = dict.fromkeys(("imported", "materialized", "reordered", "forked", "padded_tokens"), 0)
        self.calls: dict[int, int] = dict.fromkeys(self.programs.programs, 0)

    def runs_of(self, tokens: int) -> int:
        return sum(1 for _ in chunks(tokens, sorted(self.calls)))

    def new_state(self, kinds: Sequence[Kind], dtype: torch.dtype) -> StaticState:
        return StaticState(self, kinds, dtype)

    def chosen_adapters(self, rows: int) -> list[Any]:
        return []

    def batch_generator(self, architecture: str, rows: int, length: int) -> Any:
        raise Unsupported(
            "continuous batching (generate_batch): programs of export_static have one cache for all rows of a batch; use "
            "generate() with a left-padded batch"
        )

    def step(self, tokens: int, *args: Any) -> tuple[torch.Tensor, StaticKV]:
        self.calls[tokens] += 1
        with torch.no_grad():
            return self._steps[tokens](*args)

    def stats(self) -> dict[str, Any]:
        return {**self.counts, "calls": dict(self.calls), "runtime": self.runtime}


def _on_graft(programs: StaticPrograms, threads: int) -> dict[int, Any]:
    from graft.exporter.export import export
    from graft.runtime import load

    with tempfile.TemporaryDirectory() as folder:
        path = export(
            path=Path(folder) / "static.pte",
            methods={f"tokens_{tokens}": program for tokens, program in programs.programs.items()},
        )
        loaded = load(path, threads=threads)  # the file stays mapped
    return {tokens: loaded.methods[f"tokens_{tokens}"] for tokens in programs.programs}


class StaticState(State):
    """A cache whose keys and values are tensors: inputs of the programs."""

    def __init__(self, engine: Any, kinds: Sequence[Kind], dtype: torch.dtype) -> None:
        super().__init__(engine, kinds, dtype)
        self.limit = min(self.limit or engine.programs.max_cache_len, engine.programs.max_cache_len)
        self.cache: StaticKV | None = None

    def prepare(self, rows: int, columns: int) -> None:
        if columns > self.limit:
            raise InvalidArgument(f"the static cache has room for {self.limit} tokens, {columns} are needed")
        if self.cache is not None and rows != self.rows:
            if self.columns:
                raise InvalidArgument(f"the cache holds {self.rows} rows, the batch has {rows}")
            self.cache = None
        if self.cache is None:
            programs = self.engine.programs
            self.cache = StaticKV.zeros(self.engine.layers, rows, programs.max_cache_len, programs.dtype)
            self.rows = rows

    def compute(
        self, ids: torch.Tensor, positions: torch.Tensor, real: torch.Tensor | None, keep: torch.Tensor
    ) -> torch.Tensor:
        rows, tokens = ids.shape
        past, length = self.columns, self.engine.programs.max_cache_len
        self.prepare(rows, past + tokens)
        seen = torch.ones(rows, past + tokens, dtype=torch.bool) if real is None else real
        results = []
        for chunk in chunks(tokens, sorted(self.engine.calls), length - past):
            begin, size, count = chunk.begin, chunk.size, chunk.end - chunk.begin
            first = past + begin
            masks = {
                kind: _masks(seen, window, first, count, size, length)
                for kind, window in self.engine.programs.kinds.items()
            }
            more = (0, chunk.padding)  # unused columns, after the new ones
            logits, new = self.engine.step(
                size,
                torch.nn.functional.pad(ids[:, begin : begin + count], more).contiguous(),
                torch.nn.functional.pad(positions[:, begin : begin + count], more).contiguous(),
                torch.arange(first, first + size),
                masks,
                self.cache,
            )
            self.cache.apply(new.first(count), torch.arange(first, first + count))
            self.engine.counts["padded_tokens"] += chunk.padding * rows
            results.append(logits[:, :count])
        self.columns += tokens
        self.real = real
        return torch.cat(results, 1)[:, keep].float()

    def close(self) -> None:
        self.cache = None

    def crop(self, removed: int) -> None:
        self.columns = max(self.columns - removed, 0)
        if self.real is not None:
            self.real = self.real[:, : self.columns]

    def select(self, rows: Sequence[int]) -> None:
        if self.cache is None or list(rows) == list(range(self.rows)):
            return
        self.cache = self.cache.rows(torch.tensor(rows, dtype=torch.long))
        if self.real is not None:
            self.real = self.real[list(rows)]
        self.rows = len(rows)
        self.engine.counts["reordered"] += 1

    def fork(self) -> StaticState:
        copy = StaticState(self.engine, self.kinds, self.dtype)
        copy.rows, copy.columns = self.rows, self.columns
        copy.real = None if self.real is None else self.real.clone()
        if self.cache is not None:
            copy.cache = self.cache.rows(torch.arange(self.rows))
        self.engine.counts["forked"] += 1
        return copy

    def materialize(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.engine.counts["materialized"] += 1
        sides = (self.cache.keys[layer], self.cache.values[layer])
        return tuple(self.kinds[layer].shown(side[:, :, : self.columns]).clone() for side in sides)

    def _write(self, layer: int, row: int, first: int, sides: Sequence[torch.Tensor], columns: torch.Tensor) -> None:
        for cached, side in zip((self.cache.keys[layer], self.cache.values[layer]), sides):
            cached[row, :, columns] = side.to(cached.dtype)

    def _finish_writing(self) -> None:
        pass


def _masks(real: torch.Tensor, window: Window, first: int, count: int, size: int, length: int) -> torch.Tensor:
    """bool [B, 1, size, length] of columns [first, first + count) and what pads them."""
    mask = torch.zeros(real.shape[0], 1, size, length, dtype=torch.bool)
    mask[:, 0, :count, : first + count] = visible_columns(real[:, : first + count], window, first)
    # A token that sees nothing would give NaN, so each column of padding sees itself.
    blind = ~mask.any(3)[:, 0]
    mask[:, 0, torch.arange(size), first + torch.arange(size)] |= blind
    return mask


__all__ = ["StaticKV", "StaticPrograms", "attach", "export_static"]
