"""ONNX Runtime GenAI: weights of its model builder in 8 or 4 bits with a scale per 32, products with 8-bit activations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import LanguagePeer


class OnnxRuntimeGenAI(LanguagePeer):
    packages = ("onnxruntime-genai", "onnxruntime")
    environment = "language"
    reads_folder = True

    def prepare(self, source: Any, folder: Path) -> None:
        bits = "int4" if "q4" in json.loads((source / "made.json").read_text())["weights"] else "int8"
        options = ["accuracy_level=4", "block_size=32", "is_symmetric=true"]
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str((source / "hf").resolve())]
        command += ["-o", str(folder / "onnx"), "-p", bits, "-e", "cpu", "-c", str(folder / "cache")]
        subprocess.run([*command, "--extra_options", *options], check=True)

    def import_runtime(self) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai

    def load(self, model: str, folder: Path, threads: int) -> None:
        config = self._genai.Config(str(folder / "onnx"))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = self._genai.Model(config)
        self._params = self._genai.GeneratorParams(self._model)
        self._params.set_search_options(max_length=self.context, do_sample=False)
        self._generator = self._genai.Generator(self._model, self._params)

    def clear(self) -> None:
        self._generator = self._genai.Generator(self._model, self._params)

    def feed(self, tokens: list[int], past: int) -> Any:
        self._generator.append_tokens(np.array([tokens], dtype=np.int32))
        return np.asarray(self._generator.get_logits())[0, -1]


PEER = OnnxRuntimeGenAI()
