"""What `graft.compile` makes, keeps on disk and refuses; buckets and `model.graft.stats()`."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import DynamicCache

import graft
import llm_models
from graft.hf import store

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def small():
    return llm_models.BY_NAME["qwen3"].make()


def make(small, **options):
    return graft.compile(copy.deepcopy(small), threads=1, **options)


def prompt(tokens, rows=1):
    return torch.randint(3, llm_models.VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def same(expected, found):
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


def test_the_object_stays(small):
    mine = copy.deepcopy(small)
    compiled = graft.compile(mine)
    assert compiled is mine
    assert isinstance(compiled, transformers.Qwen3ForCausalLM) and type(compiled).__name__ == "Qwen3ForCausalLM"
    assert compiled.dtype == torch.float32 and compiled.device == torch.device("cpu")
    assert set(compiled.state_dict()) == set(small.state_dict())
    assert graft.compile(compiled) is compiled  # again


def test_weights_are_torchs_own(small):
    compiled = make(small)
    weights = compiled.graft.stats()["weights"]
    total = sum(p.numel() * 4 for p in small.parameters())
    assert weights["given_bytes"] == total and weights["copied_bytes"] == 0
    expected = compiled(prompt(5)).logits
    with torch.no_grad():
        compiled.model.layers[0].mlp.down_proj.weight.zero_()
    assert not torch.equal(compiled(prompt(5)).logits, expected)
    half = graft.compile(copy.deepcopy(small).bfloat16())
    assert half.graft.stats()["weights"]["given_bytes"] == total / 2 and half.dtype == torch.bfloat16


def test_released_weights(small):
    expected = small.generate(prompt(6), max_new_tokens=8, do_sample=False)
    compiled = make(small, release_weights=True)
    assert all(parameter.is_meta for parameter in compiled.parameters())
    assert compiled.lm_head.weight is compiled.model.embed_tokens.weight
    assert torch.equal(compiled.generate(prompt(6), max_new_tokens=8, do_sample=False), expected)
    assert compiled.device == torch.device("cpu") and compiled.dtype == torch.float32
    with pytest.raises(graft.InvalidArgument, match="were released"):
        graft.compile(compiled)


def test_quantized():
    config = transformers.LlamaConfig(**{**llm_models._LLAMA, "hidden_size": 96, "intermediate_size": 64})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        expected = model(prompt(9)).logits
    compiled = graft.compile(model, quantize="q8_0", release_weights=True)
    found = compiled(prompt(9)).logits
    assert 0 < (found - expected).abs().max() <= 0.05 * expected.abs().max()
    weights = compiled.graft.stats()["weights"]
    assert weights["given_bytes"] == 0
    torch.manual_seed(1)
    other = transformers.LlamaForCausalLM(config).eval()
    assert not graft.compile(other, quantize="q8_0").graft.stats()["compiled"]["from_disk"]  # other weights
    torch.manual_seed(0)
    again = transformers.LlamaForCausalLM(config).eval()
    assert graft.compile(again, quantize="q8_0").graft.stats()["compiled"]["from_disk"]


def test_loss(small):
    ids = prompt(9, 2)
    expected = small(ids, labels=ids).loss
    found = make(small)(ids, labels=ids)
    same(expected, found.loss)
    assert make(small)(ids, return_dict=False)[0].shape == (2, 9, llm_models.VOCAB)


# --- buckets and stats ---


def test_lengths_are_padded_to_buckets(small):
    compiled = make(small, buckets=(8, 16))
    for tokens in (1, 2, 7, 8, 9, 16, 17, 40):
        with torch.no_grad():
            expected = small(prompt(tokens, 2)).logits
        same(expected, compiled(prompt(tokens, 2)).logits)
        for keep in (1, 3, torch.tensor([tokens - 1, 0])):
            kept = expected[:, keep] if isinstance(keep, torch.Tensor) else expected[:, -keep:]
            same(kept, compiled(prompt(tokens, 2), logits_to_keep=keep).logits)
    stats = compiled.graft.stats()
    assert {plan["tokens"] for plan in stats["plans"]} == {1, 8, 16}
    assert {(plan["tokens"], plan["kept"]) for plan in stats["plans"]} == {(1, 1), (8, 1), (8, 8), (16, 1), (16, 16)}
    assert stats["padded_tokens"] > 0 and stats["buckets"] == (1, 8, 16)
    exact = make(small)
    exact(prompt(17))
    assert [plan["tokens"] for plan in exact.graft.stats()["plans"]] == [17]


@pytest.mark.parametrize("options", [dict(num_beams=3), dict(do_sample=True), dict(prompt_lookup_num_tokens=3)])
def test_generation_with_buckets(small, options):
    compiled = make(small, buckets=(4, 8))
    ids, mask, _, _ = llm_models.left_padded(3, 21, (0, 5, 11))
    if "prompt_lookup_num_tokens" in options:
        ids, mask = ids[:1], mask[:1]
    results = []
    for model in (small, compiled):
        torch.manual_seed(0)
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=12, **{"do_sample": False, **options}))
    assert torch.equal(*results)
    assert {plan["tokens"] for plan in compiled.graft.stats()["plans"]} <= {1, 4, 8}


@pytest.mark.parametrize("buckets", [(), (0, 4), (4, 4), ("4",)])
def test_wrong_buckets(small, buckets):
    with pytest.raises(graft.InvalidArgument, match="buckets"):
        make(small, buckets=buckets)


def test_stats(small):
    compiled = make(small)
    compiled.generate(prompt(7), max_new_tokens=10, do_sample=False, eos_token_id=None)
    stats = compiled.graft.stats()
    assert stats["prompt_calls"] == 1 and stats["step_calls"] == 9
    assert stats["plan_misses"] == 2 and stats["plan_hits"] == 8
    assert stats["io_copies"] == 0 and stats["imported"] == 0 and stats["materialized"] == 0
    assert stats["step_milliseconds"] > 0 and stats["prompt_milliseconds"] > 0
    assert [(p["batch"], p["tokens"], p["kept"], p["calls"]) for p in stats["plans"]] == [(1, 1, 1, 9), (1, 7, 1, 1)]


# --- on disk ---


def test_the_next_compilation_loads(small, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    first = make(small)
    assert not first.graft.stats()["compiled"]["from_disk"]
    second = make(small)
    assert second.graft.stats()["compiled"]["from_disk"]
    assert torch.equal(first(prompt(5)).logits, second(prompt(5)).logits)
    # New values of the same weights need no new program.
    other = copy.deepcopy(small)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    found = graft.compile(other)
    assert found.graft.stats()["compiled"]["from_disk"]
    assert not torch.equal(found(prompt(5)).logits, second(prompt(5)).logits)
    (package,) = tmp_path.glob("*.pte")
    assert package.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    "damage",
    ["package", "said", *(pytest.param(d, marks=pytest.mark.slow) for d in ("cut", "gone", "foreign", "json"))],
)
def test_damaged_entries_are_made_again(small, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    expected = make(small)(prompt(5)).logits
    (package,), (said,) = tmp_path.glob("*.pte"), tmp_path.glob("*.json")
    content = package.read_bytes()
    if damage == "package":
        package.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "cut":
        package.write_bytes(content[:-1])
    elif damage == "gone":
        package.unlink()
    elif damage == "foreign":
        package.write_bytes(bytes(len(content)))
    elif damage == "said":
        said.write_text(json.dumps({**json.loads(said.read_text()), "key": "0" * 64}))
    else:
        said.write_text("{")
    compiled = make(small)
    assert not compiled.graft.stats()["compiled"]["from_disk"]
    assert torch.equal(compiled(prompt(5)).logits, expected)
    assert make(small).graft.stats()["compiled"]["from_disk"]


@pytest.mark.parametrize("what", ["config", "dtype", "buffers", "versions"])
def test_other_programs_have_other_keys(small, tmp_path, monkeypatch, what):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    make(small)
    other = copy.deepcopy(small)
    if what == "config":
        other.config.rms_norm_eps = 1e-3
    elif what == "dtype":
        other.bfloat16()
    elif what == "buffers":
        other.model.rotary_emb.inv_freq.mul_(0.5)
    else:
        real = store.versions()
        monkeypatch.setattr(store, "versions", lambda: {**real, "torch": "0"})
    assert not graft.compile(other).graft.stats()["compiled"]["from_disk"]


def test_an_interrupted_compilation_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))

    def fail(path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("a" * 64, fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_another_process_loads(small, tmp_path):
    """Without what exporting imports."""
    small.save_pretrained(tmp_path / "model")
    code = """
import sys, torch, transformers, graft
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
graft.compile(model)
print(model.graft.stats()["compiled"]["from_disk"], "executorch.exir" in sys.modules)
"""
    environment = {**os.environ, "GRAFT_CACHE": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "model")],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["False", "True"], ["True", "False"]]


# --- errors ---


def test_calls_that_cannot_work(small):
    compiled = make(small)
    with pytest.raises(graft.Unsupported, match="cu_seq_lens_q.*left-padded batch"):
        compiled(prompt(3), cu_seq_lens_q=torch.tensor([0, 3]))
    with pytest.raises(graft.InvalidArgument, match="no argument 'head_mask'"):
        compiled(prompt(3), head_mask=torch.ones(6))
    for dtype in (torch.float32, torch.bool):
        with pytest.raises(graft.InvalidArgument, match="input_ids: expected int64 or int32"):
            compiled(prompt(3).to(dtype))
    with pytest.raises(graft.InvalidArgument, match=r"expected \[batch, tokens\]"):
        compiled(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(graft.ExecutionError, match="199"):
        compiled(torch.tensor([[5, llm_models.VOCAB]]))
    assert compiled(prompt(3)).logits.isfinite().all()  # the engine still works
    compiled.train()
    with pytest.raises(graft.Unsupported, match="training mode.*model.eval()"):
        compiled(prompt(3))


def test_models_that_cannot_work(small):
    with pytest.raises(graft.InvalidArgument, match="evaluation mode"):
        graft.compile(copy.deepcopy(small).train())
    with pytest.raises(graft.InvalidArgument, match="expected a model of transformers, found Linear"):
        graft.compile(torch.nn.Linear(2, 2))
    hooked = copy.deepcopy(small)
    hooked.forward = hooked.forward
    with pytest.raises(graft.Unsupported, match="replaced on the object"):
        graft.compile(hooked)
    with pytest.raises(graft.NotFound, match="no such device"):
        make(small, device="no such device")


def test_a_failed_compilation_changes_nothing(small):
    model = copy.deepcopy(small)
    with pytest.raises(graft.NotFound):
        graft.compile(model, device="no such device")
    assert type(model) is transformers.Qwen3ForCausalLM
    assert model.generate(prompt(3), max_new_tokens=2).shape == (1, 5)


def test_hidden_states_in_the_configuration_too(small):
    model = copy.deepcopy(small)
    model.config.output_hidden_states = True
    with torch.no_grad():
        expected = model(prompt(3), past_key_values=DynamicCache()).hidden_states
    found = graft.compile(model, threads=1)(prompt(3), past_key_values=DynamicCache()).hidden_states
    for one, other in zip(expected, found, strict=True):
        same(one, other)
