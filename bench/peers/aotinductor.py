"""AOTInductor: torch.export, then Inductor ahead of time into a .pt2 package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.torch_peer import TorchPeer


class AotInductor(TorchPeer):
    def prepare(self, source: Any, folder: Path) -> None:
        import torch

        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(source.export(), package_path=str(folder / "model.pt2"))

    def import_runtime(self) -> None:
        import torch._inductor  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def run(self, bound: Any) -> Any:
        with self._torch.inference_mode():
            return self._model(*bound)


PEER = AotInductor()
