"""Every example runs in some test: those that no other file runs are run here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import transformers

import llm_models

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.name != "__pycache__")
# Where else: `make demo`, the install check, and tests of their own.
RUNNERS = ["Makefile", "test/install_check.sh", "test/python/programs/*_test.py", "test/python/programs/module_example.py"]


def test_every_example_runs_somewhere():
    texts = "".join(path.read_text() for pattern in RUNNERS for path in ROOT.glob(pattern))
    loops = "for example in cpp language_model flow"
    assert loops in texts
    missing = [e.name for e in EXAMPLES if f"examples/{e.name}" not in texts and e.name not in loops.split()]
    assert EXAMPLES and missing == []


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    llm_models.BY_NAME["qwen3"].make().save_pretrained(folder)
    words = {f"w{i}": i for i in range(llm_models.VOCAB)}
    words["Once"], words["upon"] = words.pop("w7"), words.pop("w8")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("route", ["compile", "static-graft"])
def test_generate_of_a_hugging_face_model(qwen3, route):
    """examples/qwen3_generate.py says whether the tokens are those of eager PyTorch."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "qwen3_generate.py", "--model", qwen3, "--export", "--route", route,
         "--max-new-tokens", "8", "--max-cache-len", "64", "--prompt", "Once upon w9 w10"],
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    print(done.stdout)
