"""ik_llama.cpp: a native build of ik-llama-cpp-python, through its C functions, with repacked weights.

Loaded with each of flash attention on and off and micro-batches of 128 and 512; the fastest prefill of 512 tokens stays.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import LanguagePeer, gguf
from peers.llama_cpp import CONTEXT, LEAST, SETTINGS


class IkLlamaCpp(LanguagePeer):
    packages = ("ik-llama-cpp-python",)
    environment = "language"
    sequences = 1

    def prepare(self, source: Any, folder: Path) -> None:
        link = folder / "model.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(gguf(source).resolve())

    def import_runtime(self) -> None:
        from ik_llama_cpp import _ctypes_api

        self._lib = _ctypes_api

    def load(self, model: str, folder: Path, threads: int) -> None:
        lib = self._lib
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.repack_tensors = True
        params.use_mmap = False  # repacking writes
        self._model = lib.llama_model_load_from_file(str(folder / "model.gguf").encode(), params)
        if not self._model:
            raise RuntimeError("ik_llama.cpp does not load the file")
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(CONTEXT, 0, 1)
        prompt = np.arange(512)[None]
        seconds = {}
        for setting in SETTINGS:
            self._context = self._open(*setting, threads)
            self.feed_all(prompt[:, :8], 0)
            start = time.perf_counter()
            for _ in range(2):
                self.clear()
                self.feed_all(prompt, 0)
            seconds[setting] = time.perf_counter() - start
            lib.llama_free(self._context)
        best = min(seconds, key=seconds.__getitem__)
        print("ik_llama.cpp: seconds by (flash attention, ubatch):", seconds, "chosen:", best, file=sys.stderr)
        self._context = self._open(*best, threads)

    def _open(self, flash: int, ubatch: int, threads: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = max(CONTEXT, LEAST * self.sequences)
        params.n_batch = CONTEXT
        params.n_seq_max = self.sequences
        params.n_ubatch = ubatch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn = bool(flash)
        return self._lib.llama_init_from_model(self._model, params)

    def clear(self) -> None:
        self._lib.llama_kv_cache_clear(self._context)

    def feed(self, tokens: list[int], past: int) -> Any:
        return self.feed_all(np.array([tokens]), past)

    def feed_all(self, tokens: np.ndarray, past: int) -> Any:
        batch, (sequences, count) = self._batch, tokens.shape
        for sequence in range(sequences):
            for i in range(count):
                n = sequence * count + i
                batch.token[n] = int(tokens[sequence, i])
                batch.pos[n] = past + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = i == count - 1
        batch.n_tokens = sequences * count
        if self._lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError(f"llama_decode of {sequences} times {count} tokens failed")
        last = [sequence * count + count - 1 for sequence in range(sequences)]
        rows = [self._lib.llama_get_logits_ith(self._context, n) for n in last]
        return [np.ctypeslib.as_array(row, (self._width,)) for row in rows]


PEER = IkLlamaCpp()
