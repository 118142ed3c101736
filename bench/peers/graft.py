"""graft: graft.export, then graft.load."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from peers.torch_peer import TorchPeer


class Graft(TorchPeer):
    packages = ("graft", "torch")

    def prepare(self, source: Any, folder: Path) -> None:
        import graft

        graft.export(
            source.module,
            source.example,
            dynamic_shapes=source.dynamic_shapes,
            path=folder / "model.pte",
            quantize="bf16" if source.precision == "medium" else None,
        )

    def fingerprint(self) -> str:
        """Of the installed package, whose version stays the same from one build to the next."""
        spec = importlib.util.find_spec("graft")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("graft is not installed: run make build")
        folder = Path(spec.origin).parent
        digest = hashlib.sha256()
        files = [f for f in folder.rglob("*") if f.suffix == ".py" or ".so" in f.suffixes]
        for file in sorted(files):
            if file.name.endswith("_test.py") or not file.is_file():
                continue
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:16]

    def import_runtime(self) -> None:
        import graft
        import torch  # noqa: F401

        graft.load  # imports its module, too

    def load(self, model: str, folder: Path, threads: int) -> None:
        import graft
        import models
        import torch

        torch.set_float32_matmul_precision(models.precision(model))
        self._model = graft.load(folder / "model.pte", threads=threads)

    def run(self, bound: Any) -> Any:
        return self._model(*bound)


PEER = Graft()
