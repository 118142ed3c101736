"""MNN: weights of llmexport in 8 or 4 bits with a scale per 32, products with 8-bit activations (`memory` low)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from peers.language import LanguagePeer


class Mnn(LanguagePeer):
    packages = ("mnn", "llmexport")
    environment = "language"
    reads_folder = True

    def prepare(self, source: Any, folder: Path) -> None:
        spec = importlib.util.find_spec("llmexport")
        if spec is None or spec.origin is None:
            raise RuntimeError("llmexport is not installed")
        tool = Path(spec.origin).parent  # it imports its own folders as if they were packages
        hf = folder / "hf"
        shutil.rmtree(hf, ignore_errors=True)
        hf.mkdir()
        given = source / "hf"
        if json.loads((given / "config.json").read_text())["model_type"] == "qwen3_5_text":
            _write_with_pictures(given, hf)
        else:
            for file in (given / "config.json", *given.glob("model*.safetensors*")):
                (hf / file.name).symlink_to(file.resolve())
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


def _write_with_pictures(given: Path, hf: Path) -> None:
    """llmexport takes Qwen3.5 with its part for pictures alone: a small one, which prompts without pictures do not use."""
    import torch
    import transformers
    from safetensors.torch import load_file

    text = json.loads((given / "config.json").read_text())
    text["full_attention_interval"] = text["layer_types"].index("full_attention") + 1  # llmexport takes it for a window
    pictures = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    pictures["out_hidden_size"] = text["hidden_size"]
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config=pictures, tie_word_embeddings=text["tie_word_embeddings"]
    )
    held = load_file(given / "model.safetensors")
    weights = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in held.items()}
    model = transformers.Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [name for name in missing if "visual" not in name and name != "lm_head.weight"]
    if unexpected or wrong:
        raise RuntimeError(f"expected the weights of {given}, found no {wrong}, and {unexpected} besides")
    model.save_pretrained(hf)


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
