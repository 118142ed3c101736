"""llama.cpp for bench/cuda_language.py, in a process of its own: there it has a module of ggml that graft does not use.

That process sleeps in a read of its pipe while others have their turns. It times its own turns.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cuda_engine import Case, Engine, chunks, mapped


class LlamaCpp(Engine):
    """Asks the process. Without a module it computes on the CPU."""

    name = "llama.cpp"

    def __init__(self, weights: Path, module: str) -> None:
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, __file__, str(number), str(weights), module]
        self._process = subprocess.Popen(command, pass_fds=[number], env=_environment(), stdin=subprocess.DEVNULL)
        theirs.close()  # so that reading ends when the process does
        self.module, self.loaded = self._answer()

    def settings(self, case: Case) -> list[Any]:
        return chunks(case)

    def open(self, case: Case, setting: Any) -> None:
        self._ask("open", case, setting)

    def close(self) -> None:
        self._ask("close")

    def turn(self, case: Case, tokens: np.ndarray, compare: bool = False) -> tuple[float, list[np.ndarray]]:
        return self._ask("turn", case, tokens, compare)

    def free(self) -> None:
        self._pipe.close()
        self._process.wait()

    def _ask(self, *call: Any) -> Any:
        try:
            self._pipe.send(call)
        except BrokenPipeError:
            pass  # the answer says more
        return self._answer()

    def _answer(self) -> Any:
        try:
            failure, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError(f"llama.cpp's process has ended with {self._process.wait()}") from None
        if failure:
            raise RuntimeError(failure)
        return answer


def _environment() -> dict[str, str]:
    """With the CUDA libraries that this process has, PyTorch's own for instance, so that both use the same."""
    files = [path for start in ("libcudart.so", "libcublas.so", "libcublasLt.so") for path in mapped(start)]
    folders = list(dict.fromkeys(os.path.dirname(path) for path in files))
    before = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders + ([before] if before else []))}


class _LlamaCpp(Engine):
    """All layers on the device, flash attention, caches in f16."""

    def __init__(self, weights: str, module: str) -> None:
        import llama_cpp.llama_cpp as lib

        self._lib = lib
        self._said: list[str] = []
        self._log = lib.llama_log_callback(self._hear)  # kept as long as ggml may call it
        lib.llama_log_set(self._log, ctypes.c_void_p(0))
        if module:
            self._load(module)
        self._threads = 4 if module else 1  # beside a GPU they look up embeddings alone
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 999 if module else 0
        self._model = lib.llama_model_load_from_file(weights.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {weights}: {self._end()}")
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        words = ("offloaded", "model buffer size")
        self.loaded = [line for line in "".join(self._said).splitlines() if any(word in line for word in words)]

    def _load(self, module: str) -> None:
        ggml = self._lib._lib  # libllama.so, which brings libggml.so
        ggml.ggml_backend_load.argtypes, ggml.ggml_backend_load.restype = [ctypes.c_char_p], ctypes.c_void_p
        ggml.ggml_backend_reg_dev_count.argtypes = [ctypes.c_void_p]
        ggml.ggml_backend_reg_dev_count.restype = ctypes.c_size_t
        registry = ggml.ggml_backend_load(module.encode())
        if not registry:
            raise RuntimeError(f"ggml cannot load {module}: {self._end()}")
        if ggml.ggml_backend_reg_dev_count(registry) == 0:
            raise RuntimeError(f"{module} finds no device: {self._end()}")
        name = os.path.basename(module)
        found = mapped(name)
        if found != [os.path.realpath(module)]:
            raise RuntimeError(f"expected {os.path.realpath(module)} as llama.cpp's only {name}, found {found}")
        self.module = found[0]

    def _hear(self, level: int, text: bytes, _: Any) -> None:
        if level != 1:  # GGML_LOG_LEVEL_DEBUG
            self._said.append(text.decode(errors="replace"))

    def _end(self) -> str:
        return "".join(self._said[-20:])

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
            raise RuntimeError(f"llama.cpp makes no context: {self._end()}")
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
        self._lib.llama_synchronize(self._context)

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
            raise RuntimeError(f"llama_decode of {sequences} times {count} tokens gives {code}: {self._end()}")
        return np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), (sequences, self._width))


def _serve(pipe: Connection, weights: str, module: str) -> None:
    try:
        engine = _LlamaCpp(weights, module)
    except Exception as e:
        pipe.send((f"{type(e).__name__}: {e}", None))
        return
    pipe.send(("", (engine.module, engine.loaded)))
    while True:
        try:
            method, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("", getattr(engine, method)(*arguments))
        except Exception as e:
            answer = (f"{type(e).__name__}: {e}", None)
        pipe.send(answer)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])
