"""OpenVINO GenAI with 8-bit weights of NNCF, converted by optimum-intel: LLMPipeline on given ids.

It hands out tokens, not logits, and goes on with those that it finds most likely: times of the steps are taken between
its tokens. What it found most likely after the prompt is compared with the reference.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer
from peers.language import Text


class OpenVinoGenAI(Peer):
    packages = ("openvino-genai", "optimum-intel", "nncf")
    environment = "language"
    reads_folder = True

    def prepare(self, source: Any, folder: Path) -> None:
        tool = Path(sys.executable).with_name("optimum-cli")
        kind = ["--task", "text-generation-with-past", "--weight-format", "int8"]
        subprocess.run([str(tool), "export", "openvino", "-m", str(source / "hf"), *kind, str(folder / "ov")], check=True)

    def import_runtime(self) -> None:
        import openvino  # noqa: F401
        import openvino_genai  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        self._pipeline = openvino_genai.LLMPipeline(str(folder / "ov"), "CPU", INFERENCE_NUM_THREADS=threads)

    def run(self, inputs: Text) -> Any:
        import openvino as ov

        ids = inputs.tokens[None, : inputs.prompt]
        settings = self._genai.GenerationConfig()
        settings.max_new_tokens = len(inputs.steps) + 1
        settings.ignore_eos = True
        times: list[float] = [time.perf_counter()]
        tokens: list[int] = []

        class Clock(self._genai.StreamerBase):
            def write(self, token: Any) -> Any:
                times.append(time.perf_counter())
                tokens.extend(token if isinstance(token, list) else [token])
                return openvino_status

            def end(self) -> None:
                pass

        openvino_status = self._genai.StreamingStatus.RUNNING
        given = self._genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        self._pipeline.generate(given, settings, Clock())
        first = times[1] - times[0]
        self.seconds = times[-1] - times[1] if inputs.steps else first
        return tokens[0]

    def result(self, output: Any) -> np.ndarray:
        return np.array([output], dtype=np.int64)


PEER = OpenVinoGenAI()
