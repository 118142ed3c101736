"""torch.compile, with dynamic shapes where the model has them. Compiles in the worker: its memory and load time include the compiler."""

from __future__ import annotations

from pathlib import Path

import models
from peers.eager import Eager


class TorchCompile(Eager):
    def load(self, model: str, folder: Path, threads: int) -> None:
        super().load(model, folder, threads)
        dynamic = models.source(model).dynamic_shapes is not None
        self._module = self._torch.compile(self._module, dynamic=dynamic)


PEER = TorchCompile()
