"""Unmerged LoRA of peft in compiled models, against the same model of peft in eager PyTorch."""

import concurrent.futures
import copy

import peft
import pytest
import torch
import transformers

import graft
import llm_models
import lora
from lora import differs, same

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.tensor([[5, 17, 99, 3, 42, 7, 120, 64]])


def two(kind="qwen3", **config):
    """A model of peft with the adapters "default" and "other", of which the first is active, and a compiled copy."""
    model = lora.adapted(llm_models.BY_NAME[kind].make(), kind, 1)
    more = {"r": 6, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"], **config}
    model.add_adapter("other", peft.LoraConfig(**more))
    lora.fill(model, "other", 2)
    model.eval().requires_grad_(False)
    compiled = copy.deepcopy(model)
    assert graft.compile(compiled, threads=1) is compiled
    return model, compiled


def both(pair, *args, **kwargs):
    eager, compiled = pair
    with torch.no_grad():
        expected = eager(*args, **kwargs).logits
    found = compiled(*args, **kwargs).logits
    same(expected, found)
    return found


@pytest.fixture(scope="module")
def pair():
    return two()


def test_what_is_active_counts(pair):
    eager, compiled = pair
    first = both(pair, IDS)
    for model in pair:
        model.set_adapter("other")
    second = both(pair, IDS)
    differs(first, second)
    with eager.disable_adapter(), compiled.disable_adapter():
        none = both(pair, IDS)
    differs(second, none)
    for model in pair:
        model.base_model.set_adapter(["default", "other"])
    differs(second, both(pair, IDS))
    for model in pair:
        model.set_adapter("default")
    assert torch.equal(both(pair, IDS), first)
    stats = compiled.base_model.model.graft.stats()
    assert stats["plan_misses"] == 1 and len(stats["plans"]) == 1  # one plan for all of them


def test_adapters_by_row(pair):
    ids = IDS.expand(4, -1)
    rows = ["other", "__base__", "default", "other"]
    found = both(pair, ids, adapter_names=rows)
    differs(found[0], found[1]), differs(found[1], found[2])
    assert torch.equal(found[0], found[3])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None, adapter_names=rows)
    expected, tokens = (model.generate(input_ids=ids, **options) for model in pair)
    assert torch.equal(expected, tokens)
    assert len({tuple(row) for row in tokens[:3, 8:].tolist()}) == 3


def test_wrong_numbers_of_names():
    _, compiled = two()
    with pytest.raises(graft.InvalidArgument, match="expected one of each of the 4 rows, found 2"):
        compiled(IDS.expand(4, -1), adapter_names=["other", "default"])  # peft then leaves its hooks where they are
    assert compiled(IDS.expand(2, -1), adapter_names=["other", "default"]).logits.shape[0] == 2
    compiled.merge_adapter(["default"])
    with pytest.raises(graft.InvalidArgument, match="without merged adapters"):
        compiled(IDS.expand(2, -1), adapter_names=["other", "default"])


@pytest.mark.parametrize("beams", [1, 3])
def test_generate(pair, beams):
    options = dict(max_new_tokens=7, do_sample=False, num_beams=beams, eos_token_id=None)
    texts = []
    for name in ("default", "other"):
        for model in pair:
            model.set_adapter(name)
        expected, found = (model.generate(input_ids=IDS, **options) for model in pair)
        assert torch.equal(expected, found)
        texts.append(found.tolist())
    for model in pair:
        model.set_adapter("default")
    assert texts[0] != texts[1]


def test_switched_in_the_middle(pair):
    """The cache keeps what the adapters before have computed, as in eager PyTorch."""
    caches = [None, None]
    ids = IDS
    for name in ("default", "other", "other", "default"):
        outputs = []
        for i, model in enumerate(pair):
            model.set_adapter(name)
            with torch.no_grad():
                outputs.append(model(ids, past_key_values=caches[i], use_cache=True))
            caches[i] = outputs[i].past_key_values
        same(outputs[0].logits, outputs[1].logits)
        ids = outputs[0].logits[:, -1:].argmax(-1)
    for model in pair:
        model.set_adapter("default")


def test_numbers_that_change():
    """Those of an adapter, of the base model, and an adapter that comes later."""
    pair = two("llama")
    first = both(pair, IDS)
    for model in pair:
        with torch.no_grad():
            model.base_model.model.model.layers[1].mlp.up_proj.lora_B["default"].weight.mul_(3)
    second = both(pair, IDS)
    differs(first, second)
    for model in pair:
        model.base_model.model.model.layers[0].self_attn.q_proj.set_scale("default", 4.0)
    third = both(pair, IDS)
    differs(second, third)
    for model in pair:
        with torch.no_grad():
            model.base_model.model.model.layers[2].self_attn.v_proj.base_layer.weight.mul_(1.5)
    fourth = both(pair, IDS)
    differs(third, fourth)
    assert pair[1].base_model.model.graft.counts["reloaded"] == 1
    for model in pair:
        model.add_adapter("third", peft.LoraConfig(r=3, target_modules=["v_proj", "o_proj"]))
        lora.fill(model, "third", 9)
        model.set_adapter("third")
        model.eval()
    differs(fourth, both(pair, IDS))
    for model in pair:
        model.delete_adapter("third")
        model.set_adapter("default")
    assert torch.equal(both(pair, IDS), fourth)
    for model in pair:
        model.merge_adapter(["default"])
    same(fourth, both(pair, IDS))
    for model in pair:
        model.unmerge_adapter()
    same(fourth, both(pair, IDS))


@pytest.mark.parametrize("kind", ["phi3", "gpt2", "gemma2"])
def test_other_models(kind):
    made = lora.adapted(llm_models.BY_NAME[kind].make(), kind, 3, fan_in_fan_out=kind == "gpt2", use_rslora=True)
    compiled = graft.compile(copy.deepcopy(made), threads=1)
    with torch.no_grad():
        same(made(IDS).logits, compiled(IDS).logits)
    with compiled.disable_adapter(), made.disable_adapter(), torch.no_grad():
        same(made(IDS).logits, compiled(IDS).logits)


def test_quantized_base_and_files(tmp_path):
    """from_pretrained on a base that graft stores as q8_0; a copy and a file of the compiled model."""
    base = llm_models.BY_NAME["llama"].make()
    lora.adapted(base, "llama", 4).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    with torch.no_grad():
        expected = model(IDS).logits
    differs(base(IDS).logits, expected)
    compiled = graft.compile(model, threads=1, quantize="q8_0")
    found = compiled(IDS).logits
    same(expected, found, 0.05)
    with compiled.disable_adapter():
        differs(found, compiled(IDS).logits)
    plain = graft.compile(peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval(), threads=1)
    same(expected, plain(IDS).logits)
    same(expected, copy.deepcopy(plain)(IDS).logits)
    plain.save_pretrained(tmp_path / "again")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "again").eval()
    with torch.no_grad():
        same(expected, again(IDS).logits)


def test_by_name_without_peft(tmp_path):
    """A model of transformers alone, with adapters by name."""
    base = llm_models.BY_NAME["llama"].make()
    made = [lora.adapted(base, "llama", seed) for seed in (5, 6)]
    model = graft.compile(copy.deepcopy(base), threads=1, max_adapter_rank=4)
    for name, one in zip("ab", made):
        graft.load_adapter(model, name, lora.saved(one, tmp_path / name))
    ids = IDS.expand(3, -1)
    with torch.no_grad():
        expected = [one(IDS).logits[0] for one in (*made, base)]
    model.graft.adapter = ["a", "b", None]
    same(torch.stack(expected), model(ids).logits)
    model.graft.adapter = "b"
    same(torch.stack([expected[1]] * 3), model(ids).logits)
    with pytest.raises(graft.NotFound, match="no adapter 'c'; there are 'a', 'b'"):
        model.graft.adapter = "c"
        model(ids)
    model.graft.adapter = ["a", "b"]
    with pytest.raises(graft.InvalidArgument, match="one of each of the 3 rows, found 2"):
        model(ids)
    model.graft.adapter = None
    same(torch.stack([expected[2]] * 3), model(ids).logits)
    with torch.no_grad():  # other weights: the adapters stay
        model.model.norm.weight.mul_(2)
        base.model.norm.weight.mul_(2)
    made[0].base_model.model.model.norm.weight.data.mul_(2)
    model.graft.adapter = "a"
    with torch.no_grad():
        same(made[0](IDS).logits, model(IDS).logits)


def test_weights_in_their_files(tmp_path):
    """graft.AutoModelForCausalLM, whose weights torch never has."""
    base = llm_models.BY_NAME["llama"].make()
    base.save_pretrained(tmp_path / "base")
    made = lora.adapted(base, "llama", 8)
    model = graft.AutoModelForCausalLM.from_pretrained(tmp_path / "base", threads=1, max_adapter_rank=4)
    graft.load_adapter(model, "a", lora.saved(made, tmp_path / "a"))
    with torch.no_grad():
        same(base(IDS).logits, model(IDS).logits)
        model.graft.adapter = "a"
        same(made(IDS).logits, model(IDS).logits)


def test_threads(pair):
    """Calls of several threads, each of which looks whether the base model is what it was."""
    _, compiled = pair
    expected = compiled(IDS).logits
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: compiled(IDS).logits, range(40)):
            assert torch.equal(found, expected)


def _bert():
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return peft.get_peft_model(transformers.BertModel(config), peft.LoraConfig(target_modules=["query"])).eval()


def _llama(**config):
    base = llm_models.BY_NAME["llama"].make()
    return peft.get_peft_model(base, peft.LoraConfig(**{"target_modules": ["q_proj"], **config})).eval()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _llama(use_dora=True), "found .*Dora.* at 'model.layers.0.self_attn.q_proj'.*merge_and_unload"),
        (lambda: _llama(modules_to_save=["lm_head"]), "found unmerged ones of peft .ModulesToSaveWrapper."),
        (lambda: _llama(target_modules=["embed_tokens"]), "found a Embedding at 'model.embed_tokens'"),
        (lambda: _llama(lora_bias=True), "found a bias of LoRA at"),
        (_bert, "found unmerged ones of peft"),
        (
            lambda: peft.get_peft_model(
                llm_models.BY_NAME["llama"].make(), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])
            ).eval(),
            "expected adapters of LoRA, found 'default' of IA3",
        ),
        (
            lambda: peft.get_peft_model(
                llm_models.BY_NAME["llama"].make(),
                peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
            ).eval(),
            "found 'default' of PROMPT_TUNING",
        ),
    ],
)
def test_what_is_not_run_unmerged(make, message):
    model = make()
    with pytest.raises(graft.Unsupported, match=message):
        graft.compile(model)
    with torch.no_grad():
        model(input_ids=IDS % 99)  # it is what it was


def test_only_the_fast_route_runs_them():
    with pytest.raises(graft.Unsupported, match="only the fast route runs adapters"):
        graft.compile(_llama(), route="general")
    with pytest.raises(graft.InvalidArgument, match="max_adapter_rank of at least 0"):
        graft.compile(llm_models.BY_NAME["llama"].make(), max_adapter_rank=-1)
    model = graft.compile(llm_models.BY_NAME["llama"].make(), threads=1)
    with pytest.raises(graft.Unsupported, match="loaded without adapters"):
        graft.load_adapter(model, "a", "nowhere")


def test_continuous_batching_has_what_is_active(pair):
    eager, compiled = pair
    settings = dict(max_new_tokens=5, eos_token_id=-1, do_sample=False)
    prompts = [IDS[0].tolist(), [4, 8, 15]]
    texts = []
    for name in ("default", "other"):
        for model in pair:
            model.set_adapter(name)
        found = compiled.get_base_model().generate_batch(prompts, transformers.GenerationConfig(**settings))
        texts.append([result.generated_tokens for result in found.values()])
        for prompt, tokens in zip(prompts, texts[-1]):
            options = dict(max_new_tokens=5, eos_token_id=None, do_sample=False, pad_token_id=0)
            assert tokens == eager.generate(input_ids=torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
    assert texts[0] != texts[1]
    for model in pair:
        model.set_adapter("default")


def test_calls_of_the_general_route_are_refused(pair):
    """It knows nothing of adapters."""
    _, compiled = pair
    with pytest.raises(graft.Unsupported, match="output_hidden_states"):
        compiled(IDS, output_hidden_states=True)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]])
    with pytest.raises(graft.Unsupported, match="padded on the left"):
        compiled.generate(input_ids=IDS, attention_mask=mask, max_new_tokens=2)
    assert compiled(IDS, attention_mask=mask).logits[0, 6:].isnan().all()
