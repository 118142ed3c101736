"""graft and PyTorch as engines of bench/cuda_language.py."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cuda_engine import Case, Engine, chunks, mapped, module_name


def _idle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def module_of(device: str) -> str:
    """The file of ggml's backend that graft has loaded for the device."""
    name = module_name(device)
    if not name:
        return ""
    found = mapped(name)
    if len(found) != 1:
        raise RuntimeError(f"expected one {name} in this process, found {found}")
    return found[0]


class Graft(Engine):
    """Through `Session.run_into` of the binding, which runs on addresses that were bound before: that is what the C++
    Decoder does. `Method.__call__` allocates its results, which is measured with `fresh`."""

    def __init__(self, program: Path, weights: Path, vocabulary: int, device: str, fresh: bool = False) -> None:
        self.name = "graft call" if fresh else "graft"
        self._program, self._weights, self._vocabulary = program, weights, vocabulary
        self._device, self._fresh = device, fresh
        self.module = module_of(device)

    def settings(self, case: Case) -> list[Any]:
        return chunks(case)

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
                kv_length=-(-case.length // 256) * 256,  # what the faster kernels of attention read; llama.cpp rounds as well
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
        _idle()

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
        _idle()

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
