"""`graft.AutoModelForCausalLM.from_pretrained`, and real weights under `generate()`."""

import copy
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import transformers

import graft
import llm_models
from test_data import DATA

pytestmark = pytest.mark.usefixtures("one_thread")


def prompt(tokens):
    return torch.randint(3, llm_models.VOCAB, (1, tokens), generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize("name", ["qwen3", pytest.param("gpt2", marks=pytest.mark.slow), "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_folder(name, dtype, tmp_path):
    model = llm_models.BY_NAME[name].make().to(dtype)
    model.generation_config.max_new_tokens = 9
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    found = graft.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(found, type(model)) and all(parameter.is_meta for parameter in found.parameters())
    assert found.dtype == dtype and found.device == torch.device("cpu")
    results = [one.generate(prompt(7), do_sample=False) for one in (model.float(), found)]
    assert torch.equal(*results) and results[0].shape == (1, 16)
    weights = found.graft.stats()["weights"]
    if name == "mixtral":  # its experts are stacked by transformers
        assert weights["given_bytes"] > 0
    else:
        assert weights["given_bytes"] == 0 and weights["copied_bytes"] == 0
    assert graft.AutoModelForCausalLM.from_pretrained(tmp_path).graft.stats()["compiled"]["from_disk"]


def test_quantized(tmp_path):
    config = transformers.LlamaConfig(**{**llm_models._LLAMA, "hidden_size": 96, "intermediate_size": 64})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    expected = graft.compile(copy.deepcopy(model), quantize="q8_0")(prompt(9)).logits
    found = graft.AutoModelForCausalLM.from_pretrained(tmp_path, quantize="q8_0")
    assert torch.equal(found(prompt(9)).logits, expected)
    again = graft.AutoModelForCausalLM.from_pretrained(tmp_path, quantize="q8_0")
    assert again.graft.stats()["compiled"]["from_disk"]
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    model.save_pretrained(tmp_path)
    other = graft.AutoModelForCausalLM.from_pretrained(tmp_path, quantize="q8_0")
    assert not other.graft.stats()["compiled"]["from_disk"]
    assert not torch.equal(other(prompt(9)).logits, expected)


def test_errors(tmp_path):
    with pytest.raises(graft.ExportError, match="AutoModelForCausalLM.from_pretrained: there is no folder"):
        graft.AutoModelForCausalLM.from_pretrained("no/such/folder")
    with pytest.raises(TypeError, match="from_pretrained"):
        graft.AutoModelForCausalLM()
    model = llm_models.BY_NAME["qwen3"].make()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4, "layer_types": None}))
    with pytest.raises(graft.ExportError, match="missing.*model.layers.3"):
        graft.AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.fixture(scope="module")
def stories():
    folder = DATA / "stories260K"
    if not folder.exists():
        pytest.skip(f"no {folder}: set GRAFT_TEST_DATA")
    return folder


@pytest.mark.parametrize("way", ["compile", "folder", "gguf"])
def test_a_story(stories, way):
    """Real weights: 200 tokens from the beginning are known."""
    if way == "compile":
        model = graft.compile(transformers.AutoModelForCausalLM.from_pretrained(stories).eval())
    else:
        model = graft.AutoModelForCausalLM.from_pretrained(
            stories / "stories260K-f32.gguf" if way == "gguf" else stories
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(stories)
    ids = model.generate(torch.tensor([[1]]), max_new_tokens=200, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert tokenizer.decode(ids[0], skip_special_tokens=True).strip() == (stories / "expected.txt").read_text().strip()


@pytest.mark.slow
def test_torch_has_no_copy_of_the_weights(tmp_path):
    """Peak memory of the process is less than that of torch's weights and something."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=8
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    code = """
import resource, sys, torch, graft
graft.compile  # imports
import transformers, graft.hf.auto, graft.llm.export
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = graft.AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    environment = {**os.environ, "GRAFT_CACHE": str(tmp_path / "cache")}
    grown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(tmp_path / "model")
    assert int(grown.stdout) < size / 2, (grown.stdout, size)
