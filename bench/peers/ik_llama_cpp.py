"""ik_llama.cpp: ik-llama-cpp-python with libraries for this machine, through its C functions, with repacked weights.

Its settings are chosen as llama.cpp's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from peers.llama_cpp import LlamaCpp


class IkLlamaCpp(LlamaCpp):
    packages = ("ik-llama-cpp-python",)
    flash = "flash_attn"

    def import_runtime(self) -> None:
        from ik_llama_cpp import _ctypes_api

        self._lib = _ctypes_api

    def load(self, model: str, folder: Path, threads: int) -> None:
        self._lib.llama_backend_init()
        params = self._lib.llama_model_default_params()
        params.repack_tensors = True
        params.use_mmap = False  # repacking writes
        self._load(folder, params, threads)

    def clear(self) -> None:
        self._lib.llama_kv_cache_clear(self._context)

    def feed(self, tokens: list[int], past: int) -> Any:
        return self.feed_all(np.array([tokens]), past)


PEER = IkLlamaCpp()
