"""graft: `graft export --pack` of the GGUF file, then graft.load; keys and values of 16 bits, as llama.cpp has them, here
bf16: with these graft multiplies in bf16 where many queries attend. Matrices in bf16 are multiplied in it, as llama.cpp
does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.graft import Graft
from peers.language import LanguagePeer, gguf

CHUNK = 512


class GraftLanguage(LanguagePeer):
    packages = Graft.packages
    fingerprint = Graft.fingerprint

    def prepare(self, source: Any, folder: Path) -> None:
        command = [str(Path(sys.executable).with_name("graft")), "export", str(gguf(source)), "-o", str(folder / "model.pte")]
        subprocess.run([*command, "--context", str(self.context), "--pack"], check=True)

    def import_runtime(self) -> None:
        import graft
        import torch

        graft.load
        self._torch = torch

    def load(self, model: str, folder: Path, threads: int) -> None:
        import graft
        import torch

        torch.set_float32_matmul_precision("medium")
        self._model = graft.load(folder / "model.pte", threads=threads, kv_length=self.context, kv_rows=self.sequences, kv_dtype="bf16")
        self._forward = self._model.methods["step"]

    def clear(self) -> None:
        self._model.kv_truncate(0)

    def feed(self, tokens: list[int], past: int) -> Any:
        torch = self._torch
        # Chunks as in `graft generate` (DecoderOptions::prefill_chunk_size).
        for begin in range(0, len(tokens), CHUNK):
            piece = tokens[begin : begin + CHUNK]
            positions = torch.arange(past + begin, past + begin + len(piece))[None]
            out = self._forward(torch.tensor([piece]), positions, positions, torch.tensor([len(piece) - 1]))
        return out


PEER = GraftLanguage()
