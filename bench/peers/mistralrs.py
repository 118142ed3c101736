"""mistral.rs, which quantizes the folder of Hugging Face as it loads it. It takes text and hands out text: words of the
bench's tokenizer, each of them one token.

It goes on with the tokens that it finds most likely; times are those of its own usage report. What it found most likely
after the prompt is compared with the reference.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer
from peers.language import Text


class MistralRs(Peer):
    packages = ("mistralrs",)
    environment = "language"
    reads_folder = True

    def prepare(self, source: Any, folder: Path) -> None:
        hf = folder / "hf"
        shutil.rmtree(hf, ignore_errors=True)
        hf.mkdir()
        for file in (source / "hf").resolve().iterdir():
            (hf / file.name).symlink_to(file)
        config = json.loads((hf / "config.json").read_text())  # it reads the names of before transformers 5
        _replace(hf / "config.json", {**config, "rope_theta": config["rope_parameters"]["rope_theta"]})
        tokenizer = json.loads((hf / "tokenizer.json").read_text())  # it takes no tokenizer without a decoder
        decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        # Special tokens are found inside words: t1 in t12.
        _replace(hf / "tokenizer.json", {**tokenizer, "decoder": decoder, "added_tokens": []})
        weights = json.loads((source / "made.json").read_text())["weights"]
        (folder / "weights").write_text(weights.replace("_K", "K").upper())

    def import_runtime(self) -> None:
        import mistralrs

        self._lib = mistralrs

    def load(self, model: str, folder: Path, threads: int) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        weights = (folder / "weights").read_text()
        which = self._lib.Which.Plain(model_id=str(folder / "hf"))
        self._runner = self._lib.Runner(which, max_seqs=1, prefix_cache_n=0, token_source="none", in_situ_quant=weights)

    def run(self, inputs: Text) -> Any:
        request = self._lib.CompletionRequest(
            model="default",
            prompt=" ".join(f"t{token}" for token in inputs.tokens[: inputs.prompt]),
            max_tokens=len(inputs.steps) + 1,
            temperature=0.0,
            top_k=1,
        )
        response = self._runner.send_completion_request(request)
        usage = response.usage
        if usage.prompt_tokens != inputs.prompt or usage.completion_tokens != len(inputs.steps) + 1:
            raise RuntimeError(f"{usage.prompt_tokens} and {usage.completion_tokens} tokens; expected {len(inputs.tokens)}")
        self.seconds = usage.total_completion_time_sec if inputs.steps else usage.total_prompt_time_sec
        return int(re.findall(r"t(\d+)", response.choices[0].text)[0])

    def result(self, output: Any) -> np.ndarray:
        return np.array([output], dtype=np.int64)


def _replace(link: Path, content: dict[str, Any]) -> None:
    link.unlink()
    link.write_text(json.dumps(content))


PEER = MistralRs()
