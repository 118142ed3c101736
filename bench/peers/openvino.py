"""OpenVINO on the same ONNX export, computing in f32 (it would take bf16 where the CPU has it) unless the workload asks for
bf16."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import models
from peers import Peer
from peers.onnxruntime import export_onnx


class OpenVino(Peer):
    packages = ("openvino", "onnx", "onnxscript", "torch")
    environment = "peers"

    def prepare(self, source: Any, folder: Path) -> None:
        import openvino

        with tempfile.TemporaryDirectory() as temporary:
            onnx = Path(temporary) / "model.onnx"
            export_onnx(source, onnx)
            # Its own default would round the weights to f16.
            openvino.save_model(openvino.convert_model(str(onnx)), str(folder / "model.xml"), compress_to_fp16=False)

    def import_runtime(self) -> None:
        import openvino  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if models.precision(model) == "medium" else "f32",
        }
        self._compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", options)
        self._request = self._compiled.create_infer_request()

    def bind(self, arrays: list[np.ndarray]) -> Any:
        return arrays

    def run(self, bound: Any) -> Any:
        return self._request.infer(bound, share_inputs=True, share_outputs=True)[0]


PEER = OpenVino()
