"""The full configuration of Qwen3-0.6B with random weights, from a folder to text: `graft export`, `graft generate`."""

import os
import re
import shutil
import subprocess

import pytest
import torch
import transformers

import graft
from llm_models import QWEN3_0_6B
from runner_test import binary
from test_data import DATA

VOCABULARY, PROMPT = QWEN3_0_6B["vocab_size"], "The answer to the ultimate question is"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = DATA / "qwen_tokenizer" / "tokenizer.json"
    if not tokenizer.is_file():
        pytest.skip(f"no file {tokenizer}: set GRAFT_TEST_DATA")
    config = transformers.Qwen3Config(**QWEN3_0_6B)
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("qwen3")
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    shutil.copy(tokenizer, out)
    yield out
    shutil.rmtree(out)


@pytest.fixture(scope="module")
def package(folder):
    path = folder / "qwen3.pte"
    subprocess.run([binary(), "export", folder, "-o", path, "--weights", "external"], check=True, capture_output=True)
    return path


def test_generate(package):
    command = [binary(), "generate", package, "--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", "32"]
    command += ["--all-logits", "--stats", "--context", "128"]
    done = subprocess.run(command, env={**os.environ, "GRAFT_DEVICE": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"prefill logits: [1, 7, {VOCABULARY}]\ndecode logits: [1, 1, {VOCABULARY}]\n" in done.stderr
    assert re.search(r"prefill, 7 tokens", done.stderr) and len(done.stdout) > 32


def test_logits(folder, package):
    ids = torch.tensor([graft.Tokenizer.load(package).encode(PROMPT)])
    assert ids.shape == (1, 7)
    model = graft.load(package, kv_length=64)
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # Computed in f32 from the weights as stored.
    rows = torch.arange(7)[None]
    found = [model.step(ids, rows, rows, torch.arange(7))]
    assert found[0].shape == (1, 7, VOCABULARY)
    for step in range(7, 15):
        ids = torch.cat([ids, found[-1][:, -1:].argmax(-1)], 1)
        row = torch.tensor([[step]])
        found.append(model.step(ids[:, -1:].contiguous(), row, row, torch.tensor([0])))
        assert found[-1].shape == (1, 1, VOCABULARY)
    with torch.no_grad():
        expected = eager(ids).logits
    worst = (torch.cat(found, 1) - expected).abs().max() / expected.abs().max()
    print(f"largest error {float(worst):.1e} of the largest logit")
    assert worst <= 1e-4
