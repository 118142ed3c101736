"""A package of `graft export` in ExecuTorch's own runner of language models.

    python examples/executorch/text_runner.py FOLDER PROMPT [COUNT]

FOLDER: a model of transformers with its tokenizer.json. Prints what follows the prompt, greedily.
"""

import sys
import tempfile
from pathlib import Path

from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

import graft
import graft.executorch


def main(folder: Path, prompt: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = graft.export_llm(folder, Path(made) / "model.pte", delegate_options={"kv_length": 256})
        graft.executorch.set_options(threads=2)
        runner = TextLLMRunner(str(path), str(folder / "tokenizer.json"))
        settings = GenerationConfig(max_new_tokens=count, temperature=0.0)
        runner.generate(prompt, settings)  # it prints what it makes


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40)
