"""OpenVINO GenAI's ContinuousBatchingPipeline on several requests, with 8-bit weights of NNCF.

It hands out tokens, not logits, and goes on with those that it finds most likely: the steps after the one that gives all
requests their first token are timed. What it found most likely after the prompts is compared with the reference.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import Text
from peers.openvino_genai import OpenVinoGenAI


class OpenVinoBatch(OpenVinoGenAI):
    _request = 0

    def load(self, model: str, folder: Path, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2 + self.sequences * self.context // 10_000  # GB
        scheduler.max_num_seqs = self.sequences
        scheduler.max_num_batched_tokens = 2048
        scheduler.dynamic_split_fuse = False
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder / "ov"), scheduler, "CPU", properties)

    def run(self, inputs: Text) -> Any:
        import openvino as ov

        settings = self._genai.GenerationConfig()
        settings.max_new_tokens = inputs.tokens.shape[1] - inputs.prompt + 1
        settings.ignore_eos = True
        handles = []
        for row in inputs.tokens:
            handles.append(self._pipeline.add_request(self._request, ov.Tensor(row[None, : inputs.prompt].copy()), settings))
            self._request += 1
        self._pipeline.step()
        first = [next(iter(handle.read().values())).generated_ids[0] for handle in handles]
        start = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self.seconds = time.perf_counter() - start
        return first

    def result(self, output: Any) -> np.ndarray:
        return np.array(output, dtype=np.int64)


PEER = OpenVinoBatch()
