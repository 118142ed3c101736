"""PyTorch, eager: the reference for the numbers, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
from peers.torch_peer import TorchPeer


class Eager(TorchPeer):
    packages = ("torch", "transformers")

    def import_runtime(self) -> None:
        import torch  # noqa: F401
        import transformers.models.bert.modeling_bert  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(models.precision(model))
        self._torch = torch
        self._module = models.source(model).module

    def run(self, bound: Any) -> Any:
        with self._torch.inference_mode():
            return self._module(*bound)


PEER = Eager()
