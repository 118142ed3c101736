"""The engines of bench/cuda.py. Each opens a model for a case and a setting, and appends tokens [sequences, n] to its
sequences; the logits of the last tokens are then in the CPU's memory, as a sampler needs them."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Case:
    name: str
    sequences: int
    prompt: int
    steps: int  # 0: the prompt is timed, else the steps after it

    @property
    def length(self) -> int:
        return self.prompt + self.steps


class Engine:
    name = ""

    def settings(self, case: Case) -> list[Any]:
        """What is tried for a case; the fastest counts."""
        return [None]

    def open(self, case: Case, setting: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets the sequences."""
        raise NotImplementedError

    def feed(self, tokens: np.ndarray, past: int) -> Any:
        """The logits [sequences, vocabulary], an array or a tensor on the CPU, valid until the next call."""
        raise NotImplementedError


def _chunks(case: Case) -> list[int]:
    """Tokens of a long prompt that are computed at a time."""
    if case.steps or case.prompt <= 512:
        return [512 if case.steps else case.prompt]
    return [n for n in (512, 1024, 2048, 4096) if n <= case.prompt]


class Graft(Engine):
    """Through `Session.run_into` of the binding, which runs on addresses that were bound before: that is what the C++
    Decoder does. `Method.__call__` allocates its results, which is measured with `fresh`."""

    def __init__(self, program: Path, weights: Path, vocabulary: int, device: str, fresh: bool = False) -> None:
        self.name = "graft call" if fresh else "graft"
        self._program, self._weights, self._vocabulary = program, weights, vocabulary
        self._device, self._fresh = device, fresh

    def settings(self, case: Case) -> list[Any]:
        return _chunks(case)

    def open(self, case: Case, setting: Any) -> None:
        import graft

        self._chunk = setting if case.sequences == 1 else case.prompt
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            self._model = graft.load(
                self._program,
                weights=[self._weights],
                device=self._device,
                kv_rows=case.sequences,
                kv_length=case.length,
                kv_dtype="f16",
            )
        finally:
            torch.set_float32_matmul_precision(before)
        self._step = self._model.methods["step"]
        # Copies from a GPU into other memory are several times as slow; llama.cpp has its results in pinned memory too.
        pinned = torch.cuda.is_available()
        self._logits = torch.empty(case.sequences, 1, self._vocabulary, pin_memory=pinned)

    def close(self) -> None:
        self._model.close()
        del self._model, self._step, self._logits
        gc.collect()

    def clear(self) -> None:
        self._model.kv_truncate(0)

    def counters(self) -> dict[str, int]:
        return self._model.counters()

    def feed(self, tokens: np.ndarray, past: int) -> Any:
        for begin in range(0, tokens.shape[1], self._chunk):
            self._append(np.ascontiguousarray(tokens[:, begin : begin + self._chunk]), past + begin)
        return self._logits[:, 0]

    def _append(self, tokens: np.ndarray, past: int) -> None:
        count = tokens.shape[1]
        positions = np.empty(tokens.shape, np.int64)
        positions[:] = np.arange(past, past + count)
        last = np.array([count - 1])
        if self._fresh:
            inputs = [torch.from_numpy(array) for array in (tokens, positions, positions, last)]
            self._logits = self._step(*inputs)
            return
        described = [(array.ctypes.data, _I64, array.shape) for array in (tokens, positions, positions, last)]
        result = (self._logits.data_ptr(), _F32, tuple(self._logits.shape))
        self._model._session.run_into("step", described, [result])


def _numbers() -> tuple[int, int]:
    from graft._fb.DType import DType

    return DType.i64, DType.f32


_I64, _F32 = _numbers()


_log: list[Any] = []
_said: list[str] = []


class LlamaCpp(Engine):
    """With the ggml that graft has loaded, and so with the same module for the GPU. All layers on the device, flash
    attention, caches in f16."""

    name = "llama.cpp"

    def __init__(self, weights: Path, on_gpu: bool) -> None:
        import llama_cpp.llama_cpp as lib

        self._threads = 4 if on_gpu else 1  # on a GPU they look up embeddings alone

        self._lib = lib
        if not _log:  # kept: ggml calls it as long as the process lives
            _log.append(lib.llama_log_callback(lambda level, text, _: _said.append(text.decode(errors="replace"))))
        lib.llama_log_set(_log[0], ctypes.c_void_p(0))
        lib.llama_backend_init()
        _said.clear()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 999 if on_gpu else 0
        self._model = lib.llama_model_load_from_file(str(weights).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {weights}: {''.join(_said[-20:])}")
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def said(self, *words: str) -> list[str]:
        """Lines of its log with one of these words."""
        return [line for line in "".join(_said).splitlines() if any(word in line for word in words)]

    def free(self) -> None:
        self._lib.llama_model_free(self._model)

    def settings(self, case: Case) -> list[Any]:
        return _chunks(case)

    def open(self, case: Case, setting: Any) -> None:
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx = case.sequences * case.length
        params.n_batch = max(512, case.sequences * case.prompt)
        params.n_ubatch = setting
        params.n_seq_max = case.sequences
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = 1  # f16
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context: {''.join(_said[-20:])}")
        most = params.n_batch
        self._batch = batch = lib.llama_batch_init(most, 0, 1)
        self._token = np.ctypeslib.as_array(batch.token, (most,))
        self._position = np.ctypeslib.as_array(batch.pos, (most,))
        self._wanted = np.ctypeslib.as_array(batch.logits, (most,))
        np.ctypeslib.as_array(batch.n_seq_id, (most,))[:] = 1
        self._of: int | None = None  # tokens of each sequence in the batch

    def close(self) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)

    def feed(self, tokens: np.ndarray, past: int) -> Any:
        sequences, count = tokens.shape
        n = sequences * count
        if self._of != count:
            for i in range(n):
                self._batch.seq_id[i][0] = i // count
            self._wanted[:n].reshape(sequences, count)[:] = np.arange(count) == count - 1
            self._of = count
        self._token[:n] = tokens.reshape(-1)
        self._position[:n].reshape(sequences, count)[:] = np.arange(past, past + count)
        self._batch.n_tokens = n
        code = self._lib.llama_decode(self._context, self._batch)
        if code != 0:
            raise RuntimeError(f"llama_decode of {sequences} times {count} tokens gives {code}: {''.join(_said[-20:])}")
        return np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), (sequences, self._width))


class Torch(Engine):
    """transformers' model in bf16 with a static cache; `compiled` with CUDA graphs."""

    def __init__(self, model: Any, compiled: bool) -> None:
        self.name = "torch.compile" if compiled else "torch"
        self._model, self._compiled = model, compiled

    def open(self, case: Case, setting: Any) -> None:
        from transformers import StaticCache

        self._device = self._model.device
        self._cache = StaticCache(config=self._model.config, max_cache_len=case.length)
        # Prompts before timed steps run eagerly: another length is another program.
        self._timed = 1 if case.steps else case.prompt
        self._run = torch.compile(self._model, mode="reduce-overhead", dynamic=False) if self._compiled else self._model
        dtype, pinned = self._model.dtype, self._device.type == "cuda"
        self._logits = torch.empty(case.sequences, self._model.config.vocab_size, dtype=dtype, pin_memory=pinned)
        # The cache's memory comes with the first run.
        self._append(self._model, np.zeros((case.sequences, 1), np.int64), 0)

    def close(self) -> None:
        del self._cache, self._run, self._logits
        torch.compiler.reset()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def clear(self) -> None:
        self._cache.reset()

    def feed(self, tokens: np.ndarray, past: int) -> Any:
        self._append(self._run if tokens.shape[1] == self._timed else self._model, tokens, past)
        return self._logits

    def _append(self, model: Any, tokens: np.ndarray, past: int) -> None:
        ids = torch.from_numpy(np.ascontiguousarray(tokens)).to(self._device)
        positions = torch.arange(past, past + tokens.shape[1], device=self._device)[None]
        with torch.no_grad():
            out = model(
                input_ids=ids, position_ids=positions, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self._logits.copy_(out.logits[:, -1])
