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
from transformers import DynamicCache

import graft
import llm_models
from gguf_writer import llama_cpp_logits, rounded, tensors_of, values_of, write_gguf
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


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q2_K", "q3_K", "q4_K", "q6_K", "iq4_nl"])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_product_with_blocks_rounds_activations(kind, rows, tmp_path):
    """To 8 bits in blocks of 32, and does nothing else: a difference of 5e-3, beside 1e-6 once eager PyTorch rounds too."""
    torch.manual_seed(0)
    x, linear = torch.randn(rows, 256), torch.nn.Linear(256, 96, bias=False).eval()
    graft.export(linear, (x,), path=tmp_path / "linear.pte", quantize=kind.lower())
    found = graft.load(tmp_path / "linear.pte")(x)
    weight = rounded(linear.weight.detach(), kind)
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    assert distance(found, ((blocks / scale).round() * scale).flatten(-2) @ weight.T) < 1e-6
    assert 3e-3 < distance(found, x @ weight.T) < 8e-3


def distance(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_K"])
@pytest.mark.parametrize(("name", "architecture"), [("Llama", "llama"), ("Qwen3", "qwen3")])
def test_a_gguf_file_in_blocks(name, architecture, kind, tmp_path):
    """Beside eager PyTorch on the weights that the blocks say: as far from it as llama.cpp is. Products round activations
    (above), and a rounding that falls the other way changes all that follow."""
    sizes = dict(hidden_size=256, intermediate_size=512, head_dim=64, num_attention_heads=4, pad_token_id=None)
    config = getattr(transformers, f"{name}Config")(**{**llm_models._LLAMA, **sizes}, initializer_range=0.06)
    torch.manual_seed(2)
    eager = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    path = write_gguf(tmp_path / "model.gguf", values_of(config, architecture), tensors_of(eager, architecture), kind)
    found = graft.AutoModelForCausalLM.from_pretrained(path)
    assert type(found).__name__ == f"{name}ForCausalLM"
    for parameter in eager.parameters():
        if parameter.dim() > 1:
            parameter.copy_(rounded(parameter, kind))
    ids = prompt(40)
    exact, logits = eager(ids).logits, found(ids).logits
    theirs = distance(llama_cpp_logits(path, ids[0].tolist())[None], exact)
    print(f"{name} {kind}: {distance(logits, exact):.1e} of the logits' norm, llama.cpp {theirs:.1e}")
    assert 1e-3 < distance(logits, exact) < min(1.1 * theirs, 0.04)
    cache = DynamicCache()
    steps = [found(part, past_key_values=cache).logits for part in ids.split([30, 9, 1], 1)]
    assert distance(torch.cat(steps, 1), exact) < 1.1 * distance(logits, exact)
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    (made,), batch = found.generate(ids, **options), found.generate(ids.repeat(2, 1), **options)
    assert torch.equal(made, batch[0]) and torch.equal(made, batch[1])


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
