"""torch.compile with dynamic shapes. Compiles in the worker: its memory and load time include the compiler."""

from __future__ import annotations

from pathlib import Path

from peers.eager import Eager


class TorchCompile(Eager):
    def load(self, model: str, folder: Path, threads: int) -> None:
        super().load(model, folder, threads)
        self._module = self._torch.compile(self._module, dynamic=True)


PEER = TorchCompile()
