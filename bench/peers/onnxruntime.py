"""ONNX Runtime on PyTorch's own ONNX export; what PT2E quantized is quantized by its own quantizer instead."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer


def export_onnx(source: Any, path: Path) -> None:
    if source.floating is not None:
        _quantize_onnx(source, path)
    else:
        _export_onnx(source, source.module, path)


def _quantize_onnx(source: Any, path: Path) -> None:
    """In 8 bits from the network in f32 and the same images, as ONNX Runtime advises for x86 with VNNI: its CPU kernels
    take no numbers of PT2E's."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Pictures(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [{source.input_names[0]: image} for image in source.calibration]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self._left.pop(0) if self._left else None

    with tempfile.TemporaryDirectory() as temporary:
        floating, prepared = Path(temporary) / "model.onnx", Path(temporary) / "prepared.onnx"
        _export_onnx(source, source.floating, floating)
        quant_pre_process(str(floating), str(prepared))
        quantize_static(
            str(prepared), str(path), Pictures(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip


def _export_onnx(source: Any, module: Any, path: Path) -> None:
    import torch

    with torch.no_grad():
        torch.onnx.export(
            module,
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
