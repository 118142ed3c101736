"""PyTorch, eager: the reference for the numbers, too. Where a workload asks for bf16 the whole network is in it:
torch.set_float32_matmul_precision("medium") changes nothing on CPUs whose oneDNN does not take it up."""

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
        self._torch = torch
        self._module = models.source(model).module
        if models.precision(model) == "medium":
            self._module = _in_bf16(self._module)

    def run(self, bound: Any) -> Any:
        with self._torch.inference_mode():
            return self._module(*bound)


def _in_bf16(module: Any) -> Any:
    import torch

    class InBf16(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module.to(torch.bfloat16)

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(*(x.to(torch.bfloat16) for x in inputs)).float()

    return InBf16().eval().requires_grad_(False)


PEER = Eager()
