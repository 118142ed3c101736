"""llama.cpp: a default native build of llama-cpp-python (with OpenMP), through llama.cpp's C functions.

Loaded with each of flash attention on and off and micro-batches of 128 and 512; the fastest prefill of 512 tokens stays.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import LanguagePeer, gguf

SETTINGS = [(flash, ubatch) for flash in (1, 0) for ubatch in (512, 128)]


class LlamaCpp(LanguagePeer):
    packages = ("llama-cpp-python",)
    environment = "language"
    settings = SETTINGS
    flash = "flash_attn_type"  # the parameter of contexts

    def prepare(self, source: Any, folder: Path) -> None:
        link = folder / "model.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(gguf(source).resolve())

    def import_runtime(self) -> None:
        import llama_cpp

        self._lib = llama_cpp

    def load(self, model: str, folder: Path, threads: int) -> None:
        lib = self._lib
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        print("llama.cpp:", lib.llama_print_system_info().decode(), file=sys.stderr)
        self._load(folder, lib.llama_model_default_params(), threads)

    def _load(self, folder: Path, params: Any, threads: int) -> None:
        """With the fastest of the settings."""
        lib, name = self._lib, self.packages[0]
        self._model = lib.llama_model_load_from_file(str(folder / "model.gguf").encode(), params)
        if not self._model:
            raise RuntimeError(f"{name} does not load the file")
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(self.context * self.sequences, 0, 1)
        seconds = {}
        for setting in self.settings:
            self._context = self._open(*setting, threads)
            self.feed(list(range(8)), 0)
            start = time.perf_counter()
            for _ in range(2):
                self.clear()
                self.feed(list(range(512)), 0)
            seconds[setting] = time.perf_counter() - start
            lib.llama_free(self._context)
        best = min(seconds, key=seconds.__getitem__)
        print(f"{name}: seconds by (flash attention, ubatch):", seconds, "chosen:", best, file=sys.stderr)
        self._context = self._open(*best, threads)

    def _open(self, flash: int, ubatch: int, threads: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = params.n_batch = self.context * self.sequences
        params.n_seq_max = self.sequences
        params.n_ubatch = ubatch
        params.n_threads = params.n_threads_batch = threads
        setattr(params, self.flash, flash)
        return self._lib.llama_init_from_model(self._model, params)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def feed(self, tokens: list[int], past: int) -> Any:
        lib = self._lib
        array = (lib.llama_token * len(tokens))(*tokens)
        if lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens failed")
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, -1), (self._width,))

    def feed_all(self, tokens: np.ndarray, past: int) -> Any:
        """Of [sequences, n] tokens, the logits of the last of each."""
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


PEER = LlamaCpp()
