"""CTranslate2 with 8-bit weights. Tokens, not logits: see openvino_genai.py."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer
from peers.language import Text


class CTranslate2(Peer):
    packages = ("ctranslate2",)
    environment = "language"
    reads_folder = True

    def prepare(self, source: Any, folder: Path) -> None:
        tool = Path(sys.executable).with_name("ct2-transformers-converter")
        command = [str(tool), "--model", str(source / "hf"), "--output_dir", str(folder / "ct2"), "--quantization", "int8"]
        subprocess.run([*command, "--low_cpu_mem_usage", "--force"], check=True)

    def import_runtime(self) -> None:
        import ctranslate2  # noqa: F401

    def load(self, model: str, folder: Path, threads: int) -> None:
        import ctranslate2

        self._generator = ctranslate2.Generator(
            str(folder / "ct2"), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        from transformers import AutoTokenizer

        self._names = AutoTokenizer.from_pretrained(str(folder.parent / "model" / "hf")).convert_ids_to_tokens

    def run(self, inputs: Text) -> Any:
        names = self._names(inputs.tokens[: inputs.prompt].tolist())
        times = [time.perf_counter()]
        tokens: list[int] = []

        def clock(step: Any) -> bool:
            times.append(time.perf_counter())
            tokens.append(step.token_id)
            return False

        self._generator.generate_batch(
            [names], max_length=len(inputs.steps) + 1, min_length=len(inputs.steps) + 1, include_prompt_in_result=False,
            end_token=[], callback=clock,
        )  # fmt: skip
        self.seconds = times[-1] - times[1] if inputs.steps else times[1] - times[0]
        return tokens[0]

    def result(self, output: Any) -> np.ndarray:
        return np.array([output], dtype=np.int64)


PEER = CTranslate2()
