"""The engine of one compiled language model: its program, and sessions that hold caches of keys and values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graft import _C
from graft._dtypes import NUMBER_OF
from graft.adapters import Adapters, Choice
from graft.errors import InvalidArgument
from graft.hf.chunks import chunks
from graft.hf.lengths import Lengths
from graft.hf.state import Kind, Layer, State

_I64, _F32 = NUMBER_OF[torch.int64], NUMBER_OF[torch.float32]
_IDLE_SESSIONS = 2  # kept for later caches
_SMALLEST = 256  # tokens of a cache that grows
_COUNTED = (
    "sessions",
    "imported",
    "materialized",
    "reordered",
    "resized",
    "forked",
    "padded_tokens",
    "rearranged",
    "reloaded",
    "general_calls",
)
_SUMMED = ("runs", "plan_hits", "plan_misses", "graphs_built", "rewrites", "io_copies", "io_bytes_copied")


def check_buckets(buckets: Sequence[int] | None) -> tuple[int, ...]:
    if buckets is None:
        return ()
    sizes = tuple(buckets)
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes) or len(set(sizes)) != len(sizes):
        raise InvalidArgument(f"buckets: expected different lengths of at least 1, found {buckets!r}")
    return tuple(sorted({1, *sizes}))


class Engine:
    """What `model.graft` is."""

    route = "fast"

    def __init__(
        self,
        program: _C.Program,
        layers: Sequence[Layer],
        *,
        vocab_size: int,
        lengths: Lengths = Lengths(),
        max_length: int | None = None,
        buckets: Sequence[int] | None = None,
        threads: int = 0,
        kv_dtype: str = "computed",
        compiled: Mapping[str, Any] | None = None,
        positions: str | None = "columns",
        reload: Callable[[Mapping[str, torch.Tensor]], _C.Program] | None = None,
        view: Callable[[Any], Any] | None = None,
    ) -> None:
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise InvalidArgument(f"max_length: expected at least 1 token, found {max_length!r}")
        self.program = program
        #: LoRA adapters by name; see `graft.load_adapter`.
        self.adapters = Adapters(program)
        #: The name of one that calls have from now on, or a name or None for each row of a batch.
        self.adapter: Choice = None
        self.layers = tuple(layers)
        self.vocab_size = vocab_size
        self.lengths = lengths
        self.max_length = max_length
        self.buckets = check_buckets(buckets)
        self._threads, self._kv_dtype = threads, kv_dtype
        self._compiled = dict(compiled or {})
        self.positions = positions  # of a call without position_ids: a rule of graft.hf.probe, None: unknown
        self.reload = reload  # gives the program with other weights; None: they are its own
        self.view = view  # gives the model under the general route; None: that cannot read its weights
        self.general: Any = None  # the engine of it, once there was a call
        self.generation = 0
        self.stale = False  # the weights are those of another model
        self._lock = threading.Lock()
        self._idle: list[_C.Session] = []
        self._live: dict[int, _C.Session] = {}
        self._closed = dict.fromkeys(_SUMMED, 0)
        self._plans: dict[tuple[int, int, int], list[float]] = {}
        self.counts = dict.fromkeys(_COUNTED, 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        made = Engine(
            self.program,
            self.layers,
            vocab_size=self.vocab_size,
            lengths=self.lengths,
            max_length=self.max_length,
            buckets=self.buckets or None,
            threads=self._threads,
            kv_dtype=self._kv_dtype,
            compiled=self._compiled,
            positions=self.positions,
            reload=self.reload,
            view=self.view,
        )
        made.stale = self.reload is not None
        return made

    def load_again(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """With these weights. Sessions of the old ones end."""
        program = self.reload(tensors)
        with self._lock:
            self.program, self.generation, self.stale = program, self.generation + 1, False
            self.adapters.move_to(program)
            if self.general is not None:
                self.counts["general_calls"] += self.general.counts["calls"]
                self.general = None
            idle, self._idle = self._idle, []
            self.counts["reloaded"] += 1
        for session in idle:
            self._count(session)
            session.close()

    def chosen_adapters(self, rows: int) -> list[Any]:
        """Those that `adapter` names, for a batch of so many rows."""
        chosen = self.adapters.chosen(self.adapter)
        if len(chosen) > 1 and len(chosen) != rows:
            raise InvalidArgument(f"graft.adapter: expected one name or one of each of the {rows} rows, found {len(chosen)}")
        return chosen

    def new_state(self, kinds: Sequence[Kind], dtype: torch.dtype) -> State:
        return State(self, kinds, dtype)

    # --- sessions ---

    def room(self, tokens: int) -> int:
        """The length of a cache for so many tokens."""
        if self.max_length is not None:
            if tokens > self.max_length:
                raise InvalidArgument(
                    f"the cache has room for {self.max_length} tokens, {tokens} are needed; "
                    "compile with a larger max_length, or without one"
                )
            return self.max_length
        return max(_SMALLEST, 1 << (tokens - 1).bit_length())

    def open(self, rows: int, length: int) -> _C.Session:
        """An empty session; `give_back` ends its use."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is None:
            session = _C.Session(
                self.program, threads=self._threads, kv_rows=rows, kv_length=length, kv_type=self._kv_dtype
            )
            self.counts["sessions"] += 1
        else:
            session.reset()
            session.kv_resize(rows, length)
        with self._lock:
            self._live[id(session)] = session
        return session

    def batch_generator(self, architecture: str, rows: int, length: int) -> Any:
        """A generator of its own on the program: `rows` sequences side by side, each of at most `length` tokens."""
        model = _C.LanguageModel.of_program(self.program, architecture, self.vocab_size, length)
        return _C.BatchGenerator(
            model, threads=self._threads, rows=rows, length=length, kv_type=self._kv_dtype,
            prefill_chunk_size=512, buckets=list(self.buckets), stages=[], secret="", pictures=1,
            prefix_cache_bytes=0, prefix_cache_file="",
        )  # fmt: skip

    def adopt(self, session: _C.Session) -> None:
        with self._lock:
            self._live[id(session)] = session

    def give_back(self, session: _C.Session, generation: int) -> None:
        """generation: of the weights that it was opened with."""
        with self._lock:
            self._live.pop(id(session), None)
            if generation == self.generation and len(self._idle) < _IDLE_SESSIONS:
                self._idle.append(session)
                return
            self._count(session)
        session.close()

    def _count(self, session: _C.Session) -> None:
        counters = session.counters()
        for name in _SUMMED:
            self._closed[name] += counters[name]

    # --- runs ---

    def runs_of(self, tokens: int) -> int:
        """Runs of the program that so many new tokens take."""
        return sum(1 for _ in chunks(tokens, self.buckets)) if self.buckets else 1

    def run(
        self,
        session: _C.Session,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cached: torch.Tensor,
        keep: torch.Tensor,
        adapters: Sequence[Any] = (),
    ) -> torch.Tensor:
        """ids, positions, cached [B, T] (cached: token of the cache, -1 for padding), keep [K] along T, all int64 and
        contiguous -> logits [B, K, V] f32. adapters: none, one, or one or None per row."""
        rows, tokens = ids.shape
        kept = keep.shape[0]
        logits = torch.empty(rows, kept, self.vocab_size, dtype=torch.float32)
        sizes = (rows, tokens)
        started = time.perf_counter()
        session.run_into(
            "step",
            [
                (ids.data_ptr(), _I64, sizes),
                (positions.data_ptr(), _I64, sizes),
                (cached.data_ptr(), _I64, sizes),
                (keep.data_ptr(), _I64, (kept,)),
            ],
            [(logits.data_ptr(), _F32, (rows, kept, self.vocab_size))],
            adapters=list(adapters),
        )
        milliseconds = (time.perf_counter() - started) * 1e3
        plan = self._plans.setdefault((rows, tokens, kept), [0, 0.0])
        plan[0] += 1
        plan[1] += milliseconds
        return logits

    def run_chunks(
        self,
        session: _C.Session,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cached: torch.Tensor,
        keep: torch.Tensor,
        adapters: Sequence[Any] = (),
    ) -> torch.Tensor:
        """The same in calls whose lengths are those of the buckets, padded on the left."""
        rows, total = ids.shape
        if not self.buckets:
            return self.run(session, ids, positions, cached, keep, adapters)
        results, places = [], []
        wanted = keep.tolist()
        for chunk in chunks(total, self.buckets):
            begin, end, size, padding = chunk.begin, chunk.end, chunk.size, chunk.padding
            here = [(place, padding + index - begin) for place, index in enumerate(wanted) if begin <= index < end]
            # One kept token or all, since each other number would need a plan of its own.
            kept = [here[0][1] if here else size - 1] if len(here) < 2 else range(size)
            logits = self.run(
                session,
                *(_padded(t[:, begin:end], padding, fill) for t, fill in ((ids, 0), (positions, 0), (cached, -1))),
                torch.tensor(kept),
                adapters,
            )
            self.counts["padded_tokens"] += padding * rows
            if here:
                results.append(logits if len(here) == 1 else logits[:, [index for _, index in here]])
                places += [place for place, _ in here]
        logits = results[0] if len(results) == 1 else torch.cat(results, 1)
        if places != sorted(places):
            logits = logits[:, torch.tensor(places).argsort()]
        return logits

    def stats(self) -> dict[str, Any]:
        """What was compiled and run: plans (batch, tokens, kept logits; calls and milliseconds of each), plan_hits and
        plan_misses, io_copies, sessions, milliseconds of prompts and of single tokens, caches imported, materialized,
        reordered and resized, general_calls (which the general route computed), weights (bytes in all, in torch's
        memory, copied, converted)."""
        with self._lock:
            totals = dict(self._closed)
            for session in (*self._live.values(), *self._idle):
                counters = session.counters()
                for name in _SUMMED:
                    totals[name] += counters[name]
        program = self.program.stats()
        plans = [
            {"batch": rows, "tokens": tokens, "kept": kept, "calls": int(calls), "milliseconds": milliseconds}
            for (rows, tokens, kept), (calls, milliseconds) in sorted(self._plans.items())
        ]
        prompts = [plan for plan in plans if plan["tokens"] > 1]
        steps = [plan for plan in plans if plan["tokens"] == 1]
        return {
            **totals,
            **self.counts,
            "general_calls": self.counts["general_calls"] + (self.general.counts["calls"] if self.general else 0),
            "plans": plans,
            "prompt_calls": sum(plan["calls"] for plan in prompts),
            "prompt_milliseconds": sum(plan["milliseconds"] for plan in prompts),
            "step_calls": sum(plan["calls"] for plan in steps),
            "step_milliseconds": sum(plan["milliseconds"] for plan in steps),
            "buckets": self.buckets,
            "weights": {
                name: program[name]
                for name in ("weight_bytes", "given_bytes", "copied_bytes", "converted_bytes", "packed_bytes")
            },
            "phases": program["phases"],
            "compiled": dict(self._compiled),
        }


def _padded(tensor: torch.Tensor, padding: int, fill: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (padding, 0), value=fill).contiguous()


__all__ = ["Engine", "check_buckets"]
