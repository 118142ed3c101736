"""MNN: weights of llmexport in 8 or 4 bits with a scale per 32, products with 8-bit activations (`memory` low)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import LanguagePeer


class Mnn(LanguagePeer):
    packages = ("mnn", "llmexport")
    environment = "language"

    def prepare(self, source: Any, folder: Path) -> None:
        spec = importlib.util.find_spec("llmexport")
        if spec is None or spec.origin is None:
            raise RuntimeError("llmexport is not installed")
        tool = Path(spec.origin).parent  # it imports its own folders as if they were packages
        hf = folder / "hf"
        hf.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            (hf / name).unlink(missing_ok=True)
            (hf / name).symlink_to((source / "hf" / name).resolve())
        _byte_tokenizer().save_pretrained(hf)
        bits = "4" if "q4" in json.loads((source / "made.json").read_text())["weights"] else "8"
        command = [sys.executable, str(tool / "llmexport.py"), "--path", str(hf), "--export", "mnn"]
        command += ["--quant_bit", bits, "--quant_block", "32", "--dst_path", str(folder / "mnn")]
        environment = {**os.environ, "PYTHONPATH": str(tool)}
        subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)

    def import_runtime(self) -> None:
        import MNN.llm

        self._lib = MNN.llm

    def load(self, model: str, folder: Path, threads: int) -> None:
        path = folder / "mnn" / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "thread_num": threads, "precision": "low", "memory": "low"}))
        self._llm = self._lib.create(str(path))
        self._llm.load()

    def clear(self) -> None:
        self._llm.reset()

    def feed(self, tokens: list[int], past: int) -> Any:
        return np.array(self._llm.forward(tokens).read(), copy=True).reshape(-1)


def _byte_tokenizer() -> Any:
    """MNN does not load without a tokenizer that it knows; ids are given, so that any of them will do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="!")


PEER = Mnn()
