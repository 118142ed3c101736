"""Continuous batching of transformers (`generate_batch`, `init_continuous_batching`) on graft's `BatchGenerator`."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from graft import _C
from graft.errors import Error, InvalidArgument, Unsupported
from graft.hf.probe import positions_by

_ROWS = 16  # sequences that run at once, at most
_LENGTH = 4096  # tokens of a sequence, where nothing says how many there will be: memory for all of them is reserved
_NEW_TOKENS = 20  # as generate()
# Settings of generate() that choose another token, and the values with which they do nothing.
_CHOOSE_OTHERWISE = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "prompt_lookup_num_tokens": (None,),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "bad_words_ids": (None,),
    "sequence_bias": (None,),
    "force_words_ids": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "top_h": (None,),
    "guidance_scale": (None, 1),
    "exponential_decay_length_penalty": (None,),
    "watermarking_config": (None,),
    "stop_strings": (None,),
    "max_time": (None,),
}
_PER_REQUEST = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def _settings(config: GenerationConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request. own: those given with it."""
    for name, nothing in _CHOOSE_OTHERWISE.items():
        if (value := getattr(config, name, None)) not in nothing:
            raise Unsupported(f"continuous batching: expected no {name}, found {value!r}; generate() takes it")
    if unknown := sorted(own.keys() - set(_PER_REQUEST)):
        raise InvalidArgument(f"continuous batching: expected settings among {list(_PER_REQUEST)}, found {unknown}")
    given = {name: own.get(name, getattr(config, name, None)) for name in _PER_REQUEST}
    if not config.do_sample:
        given = {"repetition_penalty": given["repetition_penalty"], "temperature": 0.0}
    elif given["temperature"] is None:
        given["temperature"] = 1.0
    return {name: value for name, value in given.items() if value is not None}


def _ends(eos: int | Sequence[int] | None) -> list[int]:
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    return [token for token in ends if token >= 0]  # transformers says -1 for none


@dataclass
class _Request:
    output: GenerationOutput
    settings: dict[str, Any]
    streaming: bool
    timestamps: bool
    number: int | None = None  # of the generator, once it has the request


class Manager:
    """What `init_continuous_batching` gives: requests from any thread, results in the order in which they end. Each text
    is that of `generate()` for its prompt alone, with the adapters that are active when the manager is made; sampled
    ones are drawn by graft, from `seed` (by default a number that torch draws)."""

    warmed_up = False

    def __init__(self, model: Any, config: GenerationConfig, hints: Any) -> None:
        """hints: None, or transformers' WorkloadHints, which bound rows and memory."""
        engine = model.graft
        pad = model.config.get_text_config().pad_token_id
        sample = torch.full((1, 3), 1 if pad == 0 else 0)
        by_index = engine.positions is not None and torch.equal(
            positions_by(engine.positions, sample, None, 0, pad), torch.arange(3)[None]
        )
        if not by_index:
            raise Unsupported(
                f"continuous batching: expected positions that count tokens from 0, {type(model).__name__} has others; use "
                "generate() with a left-padded batch"
            )
        _settings(config, {})
        self.generation_config = config
        self._returned = getattr(config, "num_return_sequences", None) or 1
        rows, length = _ROWS, engine.max_length or _LENGTH
        if hints is not None:
            rows = max(1, min(rows, hints.num_requests or rows))
            if engine.max_length is None and hints.max_prompt_length:
                length = hints.max_prompt_length + (hints.max_generated_length or config.max_new_tokens or _NEW_TOKENS)
        self._length = min(length, getattr(model.config.get_text_config(), "max_position_embeddings", None) or length)
        self._adapters = model._chosen_adapters(1, begins=True)
        self._generator = engine.batch_generator(type(model).__name__, rows, self._length)
        self._counter = itertools.count()
        self._lock = threading.Condition()
        self._new: list[_Request] = []
        self._cancelled: list[str] = []
        self._running: dict[str, _Request] = {}
        self._results: queue.Queue[GenerationOutput] = queue.Queue()
        self._ending: str | None = None  # "flush": once all requests have ended; "now"
        self._thread: threading.Thread | None = None

    # --- its thread ---

    def warmup(self) -> None:
        """Makes the plans of all steps."""
        self._generator.prepare(0)
        self.warmed_up = True

    def start(self) -> None:
        if not self.is_running():
            self._ending = None
            self._thread = threading.Thread(target=self._run, name="graft continuous batching", daemon=True)
            self._thread.start()

    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """Ends the thread when all requests have ended; with hard_stop, now: those that run fail."""
        with self._lock:
            self._ending = "now" if hard_stop else "flush"
            self._lock.notify()
        if block:
            self.join(timeout=timeout)

    def join(self, stop_trigger_time: float = 0, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def destroy(self) -> None:
        self.stop(hard_stop=True)

    def _run(self) -> None:
        error = "the manager was stopped"
        try:
            while self._turn():
                pass
        except Error as e:
            error = str(e)
        with self._lock:
            left = [*self._running.values(), *self._new]
            self._new.clear()
            self._ending = "now"
        for request in left:
            self._end(request, error)

    def _turn(self) -> bool:
        with self._lock:
            while not self._new and not self._running and not self._cancelled and self._ending is None:
                self._lock.wait()
            if self._ending == "now" or (self._ending and not self._new and not self._running):
                return False
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
        for request in new:
            self._begin(request)
        for request_id in cancelled:
            if (request := self._running.get(request_id)) is not None:
                self._generator.cancel(request.number)
        self._generator.step(None)
        for request in list(self._running.values()):
            self._look_at(request)
        return True

    def _begin(self, request: _Request) -> None:
        output = request.output
        self._running[output.request_id] = request
        try:
            if (tokens := len(output.prompt_ids) + request.settings["max_new_tokens"]) > self._length:
                raise InvalidArgument(
                    f"expected at most {self._length} tokens of prompt and text, found {tokens}; graft.compile's max_length "
                    "and workload_hints say how many there is room for"
                )
            request.number = self._generator.submit(_C.ImagePrompt(output.prompt_ids), request.settings, None)
        except Error as e:
            self._end(request, str(e))
        output.status = RequestStatus.PREFILLING

    def _look_at(self, request: _Request) -> None:
        output, now = request.output, time.perf_counter()
        tokens = self._generator.tokens(request.number)
        grown = len(tokens) - len(output.generated_tokens)
        if grown and output.lifespan[0] < 0:
            output.lifespan = (now, -1)
        output.generated_tokens = tokens
        if request.timestamps:
            output.timestamps = [*(output.timestamps or ()), *[now] * grown]
        if self._generator.take(request.number) is not None:
            return self._end(request, None)
        if grown:
            output.status = RequestStatus.DECODING
            if request.streaming:
                self._results.put(_copied(output))
        return None

    def _end(self, request: _Request, error: str | None) -> None:
        output = request.output
        self._running.pop(output.request_id, None)
        output.error = error
        output.status = RequestStatus.FINISHED if error is None else RequestStatus.FAILED
        output.lifespan = (output.lifespan[0], time.perf_counter())
        self._results.put(_copied(output))

    # --- requests ---

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        **settings: Any,
    ) -> str | None:
        """settings: temperature, top_k, top_p, min_p, repetition_penalty, seed. None once the manager was stopped."""
        config = self.generation_config
        made = _settings(config, settings)
        made["max_new_tokens"] = max_new_tokens or config.max_new_tokens or _NEW_TOKENS
        made["adapters"] = self._adapters
        made["eos_token_ids"] = _ends(config.eos_token_id if eos_token_id is None else eos_token_id)
        request_id = f"req_{next(self._counter)}" if request_id is None else request_id
        names = [f"{request_id}__child#{i}" for i in range(self._returned - 1)] + [request_id]
        requests = []
        for name in names:
            drawn = made if made["temperature"] == 0 or "seed" in made else {**made, "seed": _drawn_seed()}
            output = GenerationOutput(name, prompt_ids=list(input_ids))
            requests.append(_Request(output, drawn, streaming, record_timestamps))
        with self._lock:
            if self._ending is not None:
                return None
            if taken := ({r.output.request_id for r in self._new} | self._running.keys()) & set(names):
                raise InvalidArgument(f"request_id: expected one that no request has, found {min(taken)!r}")
            self._new += requests
            self._lock.notify()
        return request_id

    def add_requests(self, inputs: list[list[int]], **arguments: Any) -> list[str]:
        return [self.add_request(ids, **arguments) for ids in inputs]

    def cancel_request(self, request_id: str) -> None:
        """It ends with the tokens that it has."""
        with self._lock:
            for request in [one for one in self._new if one.output.request_id == request_id]:
                self._new.remove(request)
                self._end(request, None)
            self._cancelled.append(request_id)
            self._lock.notify()

    # --- results ---

    def get_result(self, request_id: str | None = None, timeout: float | None = None) -> GenerationOutput | None:
        """The next result, of this request alone where one is named; None when none comes in `timeout` seconds, and where
        none can come."""
        if self._results.empty() and not self.is_running():
            return None
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        if request_id is not None and result.request_id != request_id:
            self._results.put(result)
            return None
        return result

    def __iter__(self) -> Iterator[GenerationOutput]:
        while self.is_running() or not self._results.empty():
            if (result := self.get_result(timeout=0.1)) is not None:
                yield result

    def request_id_iter(self, request_id: str) -> Iterator[GenerationOutput]:
        """The results of one request, the last one of which it has ended with."""
        while self.is_running() or not self._results.empty():
            if (result := self.get_result(request_id, timeout=0.1)) is not None:
                yield result
                if result.is_finished():
                    return


def _copied(output: GenerationOutput) -> GenerationOutput:
    made = GenerationOutput(**vars(output))
    made.generated_tokens = list(output.generated_tokens)
    return made


def _drawn_seed() -> int:
    return int(torch.randint(1 << 62, ()))


__all__ = ["Manager"]
