"""ONNX Runtime on PyTorch's own ONNX export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer


def export_onnx(source: Any, path: Path) -> None:
    import torch

    with torch.no_grad():
        torch.onnx.export(
            source.module,
            source.example,
            str(path),
            input_names=source.input_names,
            dynamic_shapes=source.dynamic_shapes,
            dynamo=True,
        )


class OnnxRuntime(Peer):
    packages = ("onnxruntime", "onnx", "onnxscript", "torch")
    environment = "peers"

    def prepare(self, source: Any, folder: Path) -> None:
        export_onnx(source, folder / "model.onnx")

    def import_runtime(self) -> None:
        import onnxruntime  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._names = [value.name for value in self._session.get_inputs()]

    def bind(self, arrays: list[np.ndarray]) -> Any:
        return dict(zip(self._names, arrays, strict=True))

    def run(self, bound: Any) -> Any:
        return self._session.run(None, bound)[0]


PEER = OnnxRuntime()
