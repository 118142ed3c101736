"""LoRA adapters beside a package of a language model, against eager peft."""

import collections
import copy
import json
import random
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import graft
import llm_models
import lora
from gguf_writer import write_gguf
from lora import differs, same

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = [5, 17, 99, 3, 42, 7, 120, 64, 8, 33]


def eager(model, ids=IDS):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model = llm_models.BY_NAME["llama"].make()
    package = graft.export_llm(model, folder / "model.pte")
    adapters = {}
    for name, seed, config in (
        ("plain", 1, {}),
        ("other", 2, {"r": 7, "lora_alpha": 3}),
        ("rslora", 3, {"use_rslora": True}),
        (
            "patterns",
            4,
            {
                "rank_pattern": {"q_proj": 3, "layers.1.mlp.*_proj": 5},
                "alpha_pattern": {"model.layers.0.self_attn.v_proj": 20},
            },
        ),
        ("few", 5, {"target_modules": ["v_proj"], "layers_to_transform": [1]}),
    ):
        made = lora.adapted(model, "llama", seed, **config)
        adapters[name] = (lora.saved(made, folder / name), eager(made))
    return model, package, adapters


def generator_of(package, **options):
    return graft.TextGenerator(package, threads=1, **options)


def test_logits_are_those_of_peft(llama):
    model, package, adapters = llama
    generator = generator_of(package, max_adapter_rank=8)
    for name, (folder, _) in adapters.items():
        graft.load_adapter(generator, name, folder)
    assert list(generator.adapters) == sorted(adapters) and generator.adapters.rank("other") == 7
    plans = generator.plans
    for name in (*adapters, None, *reversed(adapters)):
        found = generator.logits(IDS, adapter=name)
        if name is None:
            same(eager(model), found)
        else:
            same(adapters[name][1], found)
            differs(eager(model), found)
        plans = plans or generator.plans
        assert generator.plans == plans == 1  # one, whatever adapter


def test_without_adapters_nothing_changes(llama):
    """A program that may have adapters gives what one gives that may not, as long as none is chosen; and only its plans
    have launches for them."""
    _, package, _ = llama
    without, with_rank = generator_of(package), generator_of(package, max_adapter_rank=8)
    same(without.logits(IDS), with_rank.logits(IDS), 1e-6)
    assert "graft add_adapter" not in without.model.program.describe(True)
    assert "graft add_adapter" in with_rank.model.program.describe(True)


@pytest.mark.parametrize("kind", ["phi3", "gpt2", "qwen3", "gemma2"])
def test_other_layers(kind, tmp_path):
    """Merged projections, weights that are stored transposed, tied embeddings, windows."""
    model = llm_models.BY_NAME[kind].make()
    made = lora.adapted(model, kind, fan_in_fan_out=kind == "gpt2")
    package = graft.export_llm(model, tmp_path / "model.pte")
    generator = generator_of(package, adapters={"a": lora.saved(made, tmp_path / "a")})
    same(eager(made), generator.logits(IDS, adapter="a"))
    same(eager(model), generator.logits(IDS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(llama, tmp_path, dtype):
    model, package, _ = llama
    made = lora.adapted(model, "llama", 6, dtype)  # numbers that the type holds
    generator = generator_of(package, adapters={"a": lora.saved(made, tmp_path / "a", dtype)})
    stored = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    same(eager(made), generator.logits(IDS, adapter="a"))


@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_quantized_bases(kind, tmp_path):
    """The difference that the adapter makes is that of eager PyTorch, on the dequantized weights."""
    config = llm_models.BY_NAME["llama"].config()
    config.update({"hidden_size": 256, "num_attention_heads": 8, "head_dim": 32, "intermediate_size": 256})
    torch.manual_seed(3)
    model = type(llm_models.BY_NAME["llama"].make())(config).eval().requires_grad_(False)
    package = graft.export_llm(model, tmp_path / "model.pte", quantize={"*_proj": kind})
    from graft import _C

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.copy_(dequantized(_C, parameter, kind))
    made = lora.adapted(model, "llama", 7)
    generator = generator_of(package, adapters={"a": lora.saved(made, tmp_path / "a")})
    base, with_adapter = generator.logits(IDS), generator.logits(IDS, adapter="a")
    # Products with blocks round the activations to 8 bits.
    same(eager(model), base, 0.03)
    same(eager(made), with_adapter, 0.03)
    differs(base, with_adapter)


def dequantized(_C, weight, kind):
    """As ggml gives it: by a package whose embedding holds the matrix."""

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(weight.detach().clone())

        def forward(self, ids):
            return self.table(ids)

    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        ids = torch.arange(weight.shape[0])
        path = graft.export(Rows().eval(), (ids,), path=Path(folder) / "rows.pte", quantize=kind)
        return graft.load(path)(ids).clone()


def texts(generator, adapter, count=12, ids=IDS):
    return generator.generate(ids, max_new_tokens=count, ignore_eos=True, adapter=adapter).tokens


def test_rows_of_a_batch(llama):
    """Two adapters and a row without: each row is what it is alone, token by token."""
    _, package, adapters = llama
    folders = {name: folder for name, (folder, _) in adapters.items()}
    generator = generator_of(package, rows=4, adapters=folders)
    alone = generator_of(package, adapters=folders)
    rows = ["plain", None, "other", "plain"]
    prompts = [IDS, IDS, IDS[:4], IDS[2:]]
    results = generator.generate_batch(prompts, max_new_tokens=10, ignore_eos=True, adapter=rows)
    expected = [texts(alone, name, 10, prompt) for name, prompt in zip(rows, prompts)]
    assert [result.tokens for result in results] == expected
    assert len({tuple(tokens) for tokens in expected}) == 4
    every = generator.generate_batch(prompts, max_new_tokens=10, ignore_eos=True, adapter="other")
    assert [result.tokens for result in every] == [texts(alone, "other", 10, prompt) for prompt in prompts]
    with pytest.raises(graft.InvalidArgument, match="a batch of 4 prompts got 2 adapters"):
        generator.generate_batch(prompts, max_new_tokens=1, adapter=["plain", None])


def test_greedy_texts_are_those_of_peft(llama, tmp_path):
    model, package, _ = llama
    made = lora.adapted(model, "llama", 11)
    generator = generator_of(package, adapters={"a": lora.saved(made, tmp_path / "a")})
    with torch.no_grad():
        expected = made.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert texts(generator, "a") == expected[0, len(IDS) :].tolist()


def test_swaps_between_calls(llama):
    """The prefix in the cache is one adapter's: another one does not go on from it, nor one that took its name."""
    _, package, adapters = llama
    folders = {name: folder for name, (folder, _) in adapters.items()}
    expected = {name: texts(generator_of(package, adapters=folders), name) for name in (*folders, None)}
    assert len({tuple(tokens) for tokens in expected.values()}) > 3
    generator = generator_of(package, adapters=folders)
    for name in ("plain", "plain", "other", None, "plain", "rslora", None):
        assert texts(generator, name) == expected[name]
        reused = generator.stats["reused_tokens"]
        assert texts(generator, name) == expected[name]
        assert generator.stats["reused_tokens"] == len(IDS) - 1 >= reused
    assert texts(generator, "plain") == expected["plain"]
    graft.load_adapter(generator, "plain", folders["other"])
    assert texts(generator, "plain") == expected["other"] and generator.stats["reused_tokens"] == 0
    graft.unload_adapter(generator, "plain")
    with pytest.raises(graft.NotFound, match="no adapter 'plain'; there are 'few', 'other'"):
        texts(generator, "plain")
    assert texts(generator, None) == expected[None]


def test_requests_of_a_batch_generator(llama):
    """Requests with different adapters run side by side, in plans that were made before any was loaded, and share no
    prefix but with their own kind."""
    _, package, adapters = llama
    folders = {name: folder for name, (folder, _) in adapters.items()}
    prompt = [(7 * i + 3) % 190 for i in range(140)]  # two blocks of the prefix cache
    expected = {
        name: texts(generator_of(package, adapters=folders), name, 8, prompt) for name in ("plain", "other", None)
    }
    batch = graft.BatchGenerator(package, rows=3, threads=1, max_adapter_rank=8, prefix_cache_bytes=1 << 22)
    batch.prepare()
    plans = batch.plans
    for name in ("plain", "other"):
        graft.load_adapter(batch, name, folders[name])
    for _ in range(3):
        rows = ["plain", None, "other", "other", "plain", None]
        ids = [batch.submit(prompt, max_new_tokens=8, ignore_eos=True, adapter=name) for name in rows]
        while batch.step():
            pass
        for name, request in zip(rows, ids):
            assert batch.take(request).tokens == expected[name], name
    assert batch.plans == plans
    assert batch.stats["reused_tokens"] > 10 * 128  # of their own
    with pytest.raises(graft.NotFound, match="no adapter 'third'"):
        batch.submit(prompt, adapter="third")


def test_the_prefix_cache_tells_adapters_apart(llama, tmp_path):
    """Also after an end of the process, by the adapter's numbers."""
    _, package, adapters = llama
    prompt = [(5 * i + 1) % 190 for i in range(100)]
    options = dict(rows=1, threads=1, max_adapter_rank=8, prefix_cache_bytes=1 << 22)
    options["prefix_cache_file"] = tmp_path / "cache"

    def run(path):
        batch = graft.BatchGenerator(package, **options)
        if path is not None:
            graft.load_adapter(batch, "a", path)
        request = batch.submit(prompt, max_new_tokens=6, ignore_eos=True, adapter=None if path is None else "a")
        while batch.step():
            pass
        return batch.take(request).tokens, batch.stats["reused_tokens"]

    plain, other = adapters["plain"][0], adapters["other"][0]
    first = {path: run(path) for path in (plain, other, None)}
    assert {reused for _, reused in first.values()} == {0}
    assert len({tuple(tokens) for tokens, _ in first.values()}) == 3
    for path, (tokens, _) in first.items():
        assert run(path) == (tokens, 64)


# --- what does not fit ---


def changed(folder, target, change=None, tensors=None):
    shutil.copytree(folder, target)
    if change is not None:
        config = json.loads((target / "adapter_config.json").read_text())
        change(config)
        (target / "adapter_config.json").write_text(json.dumps(config))
    if tensors is not None:
        path = target / "adapter_model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors(load_file(path)).items()}, path)
    return target


Q = "base_model.model.model.layers.0.self_attn.q_proj"
REFUSALS = {
    "DoRA": (lambda c: c.update(use_dora=True), None, graft.Unsupported, "use_dora = true"),
    "biases": (lambda c: c.update(bias="lora_only"), None, graft.Unsupported, 'bias = "lora_only"'),
    "modules": (lambda c: c.update(modules_to_save=["lm_head"]), None, graft.Unsupported, "modules_to_save"),
    "another kind": (lambda c: c.update(peft_type="IA3"), None, graft.Unsupported, 'peft_type "IA3", expected LORA'),
    "changed bases": (lambda c: c.update(init_lora_weights="pissa_niter_4"), None, graft.Unsupported, "pissa_niter_4"),
    "a pattern": (lambda c: c.update(rank_pattern={"(a|b)": 3}), None, graft.Unsupported, r"pattern '\(a\|b\)'"),
    "a rank": (lambda c: c.update(r=5), None, graft.InvalidArgument, "has rank 4, the configuration states 5"),
    "no rank": (lambda c: c.pop("r"), None, graft.InvalidProgram, "'r' must be a number, found none"),
    "a layer": (
        None,
        lambda t: {name.replace("layers.2.", "layers.3."): tensor for name, tensor in t.items()},
        graft.InvalidArgument,
        r"changes 'model.layers.3.mlp.down_proj'.*similar are 'model\.layers",
    ),
    "an embedding": (
        None,
        lambda t: {**t, "base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 9)},
        graft.Unsupported,
        "lora_embedding_A",
    ),
    "a magnitude": (
        None,
        lambda t: {**t, f"{Q}.lora_magnitude_vector": torch.zeros(9)},
        graft.Unsupported,
        "DoRA is not run",
    ),
    "a half": (
        None,
        lambda t: {name: tensor for name, tensor in t.items() if name != f"{Q}.lora_B.weight"},
        graft.InvalidProgram,
        "'model.layers.0.self_attn.q_proj' has only one of its matrices",
    ),
    "inputs": (
        None,
        lambda t: {**t, f"{Q}.lora_A.weight": torch.zeros(4, 47)},
        graft.InvalidArgument,
        r"takes 48 numbers, the adapter's A has shape \[4, 47\]",
    ),
    "outputs": (
        None,
        lambda t: {**t, f"{Q}.lora_B.weight": torch.zeros(95, 4)},
        graft.InvalidArgument,
        r"gives 96 numbers, the adapter's B has shape \[95, 4\]",
    ),
    "ranks": (
        None,
        lambda t: {**t, f"{Q}.lora_B.weight": torch.zeros(96, 3)},
        graft.InvalidArgument,
        "whose ranks differ",
    ),
    "types": (
        None,
        lambda t: {**t, f"{Q}.lora_B.weight": torch.zeros(96, 4, dtype=torch.int8)},
        graft.Unsupported,
        "is I8, expected f32, f16 or bf16",
    ),
    "nothing": (None, lambda t: {}, graft.InvalidArgument, "changes no layer"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit(case, llama, tmp_path):
    change, tensors, error, message = REFUSALS[case]
    _, package, adapters = llama
    generator = generator_of(package, adapters={"good": adapters["plain"][0]})
    folder = changed(adapters["plain"][0], tmp_path / "bad", change, tensors)
    with pytest.raises(error, match=message) as caught:
        graft.load_adapter(generator, "good", folder)
    assert str(tmp_path / "bad") in str(caught.value)
    same(adapters["plain"][1], generator.logits(IDS, adapter="good"))  # the one before is still there


def test_files_that_are_not_there_or_damaged(llama, tmp_path):
    _, package, adapters = llama
    generator = generator_of(package, adapters={"good": adapters["plain"][0]})
    with pytest.raises(graft.NotFound, match="no adapter '.*nowhere'"):
        graft.load_adapter(generator, "a", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(graft.NotFound, match="adapter_config.json"):
        graft.load_adapter(generator, "a", tmp_path / "empty")
    folder = changed(adapters["plain"][0], tmp_path / "cut")
    whole = (folder / "adapter_model.safetensors").read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        (folder / "adapter_model.safetensors").write_bytes(whole[:size])
        with pytest.raises(graft.InvalidProgram):
            graft.load_adapter(generator, "a", folder)
    (folder / "adapter_model.safetensors").write_bytes(whole)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(graft.InvalidProgram, match="not JSON"):
        graft.load_adapter(generator, "a", folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(graft.NotFound, match="beside"):
        graft.load_adapter(generator, "a", folder / "adapter_model.safetensors")
    assert list(generator.adapters) == ["good"]
    same(adapters["plain"][1], generator.logits(IDS, adapter="good"))


def test_ranks_and_programs(llama, tmp_path):
    _, package, adapters = llama
    generator = generator_of(package, max_adapter_rank=6)
    with pytest.raises(graft.InvalidArgument, match=r"has rank 7.*at most 6 \(max_adapter_rank\)"):
        graft.load_adapter(generator, "other", adapters["other"][0])
    graft.load_adapter(generator, "plain", adapters["plain"][0])
    same(adapters["plain"][1], generator.logits(IDS, adapter="plain"))
    without = generator_of(package)
    with pytest.raises(graft.Unsupported, match="loaded without adapters"):
        graft.load_adapter(without, "plain", adapters["plain"][0])
    without.logits(IDS)
    with pytest.raises(graft.InvalidArgument, match="an adapter needs a name"):
        graft.load_adapter(generator, "", adapters["plain"][0])
    with pytest.raises(graft.InvalidArgument, match="expected a model of graft.load"):
        graft.load_adapter(object(), "plain", adapters["plain"][0])
    with pytest.raises(graft.InvalidArgument, match="max_adapter_rank must not be negative"):
        generator_of(package, max_adapter_rank=-1)
    other = graft.export_llm(llm_models.BY_NAME["qwen3"].make(), tmp_path / "qwen3.pte")
    foreign = generator_of(other, max_adapter_rank=8)
    foreign.adapters._put("plain", generator.adapters.chosen("plain")[0])
    with pytest.raises(graft.InvalidArgument, match="an adapter is of another program"):
        texts(foreign, "plain")
    texts(foreign, None)


# --- programs that are no language models ---


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(20, 30), torch.nn.Linear(30, 12)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_any_program(tmp_path):
    """Rows of a batch with two and three dimensions, several threads, and the same bits in every batch."""
    net = Net().eval().requires_grad_(False)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["first", "second"])
    made = [peft.get_peft_model(copy.deepcopy(net), config).eval() for _ in range(2)]
    for seed, one in enumerate(made):
        lora.fill(one, "default", seed + 20)
        one.save_pretrained(tmp_path / str(seed))
    batch, tokens = torch.export.Dim("batch", max=64), torch.export.Dim("tokens", max=512)
    for sizes, dims in (((5, 20), {0: batch}), ((4, 7, 20), {0: batch, 1: tokens})):
        x = torch.randn(*sizes)
        path = graft.export(net, (x,), path=tmp_path / "net.pte", dynamic_shapes=[dims])
        bits = []
        for threads in (1, 3):
            model = graft.load(path, threads=threads, adapters={"0": tmp_path / "0", "1": tmp_path / "1"})
            rows = ["0", None, "1", "0", "1"][: len(x)]
            found = model(x, adapter=rows)
            for row, name in enumerate(rows):
                with torch.no_grad():
                    expected = (net if name is None else made[int(name)])(x[row : row + 1])
                same(expected, found[row : row + 1], 1e-5)
            bits.append(found)
            again = model(x.flip(0), adapter=rows[::-1]).flip(0)
            assert torch.equal(again, found)
            assert torch.equal(model.forward.submit(x, adapter=rows).result(), found)
            with pytest.raises(graft.InvalidArgument, match=f"a batch of {len(x)} got 3 adapters"):
                model(x, adapter=["0", "1", None])
            misses = model.counters()["plan_misses"]
            model(x), model(x, adapter="1")
            assert model.counters()["plan_misses"] == misses
        assert torch.equal(*bits)
    wide = torch.randn(40, 100, 20)  # enough work for several threads
    results = [
        graft.load(path, threads=threads, adapters={"0": tmp_path / "0"})(wide, adapter=["0", None] * 20)
        for threads in (1, 2, 3)
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_rows_that_are_not_the_batch(tmp_path):
    """Where a layer's rows are not those of the batch all rows must have one adapter."""

    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    net = Turned().eval().requires_grad_(False)
    made = peft.get_peft_model(copy.deepcopy(net), peft.LoraConfig(r=2, target_modules=["layer"])).eval()
    lora.fill(made, "default", 9)
    made.save_pretrained(tmp_path / "a")
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", max=64)}
    x = torch.randn(3, 5, 8)
    path = graft.export(net, (x,), path=tmp_path / "net.pte", dynamic_shapes=[dims])
    model = graft.load(path, adapters={"a": tmp_path / "a"})
    with torch.no_grad():
        same(made(x), model(x, adapter="a"), 1e-5)
    same(model(x, adapter="a"), model(x, adapter=["a"] * 3), 0)
    with pytest.raises(graft.ExecutionError, match="not known to be those of the batch"):
        model(x, adapter=["a", None, None])
    same(net(x), model(x), 1e-5)


# --- GGUF ---

GGUF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_of(folder, path, architecture, heads=(), values=(), kind="f32"):
    """As convert_lora_to_gguf writes it. heads: by the end of a name, of layers whose rows llama.cpp has in pairs."""
    tensors = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        parts = name.removeprefix("base_model.model.").split(".")
        number = next(i for i, part in enumerate(parts) if part.isdigit())
        half = parts[-2][-1].lower()
        layer = GGUF[".".join(parts[number + 1 : -2])]
        if half == "b" and (count := dict(heads).get(layer)):
            tensor = tensor.reshape(count, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        tensors[f"blk.{parts[number]}.{layer}.weight.lora_{half}"] = tensor.contiguous()
    config = json.loads((folder / "adapter_config.json").read_text())
    head = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(config["lora_alpha"]),
        **dict(values),
    }
    return write_gguf(path, head, tensors, kind)


@pytest.mark.parametrize(
    ("kind", "architecture", "heads"),
    [("llama", "llama", {"attn_q": 6, "attn_k": 2}), ("qwen3", "qwen3", {}), ("phi3", "phi3", {}), ("gpt2", "gpt2", {})],
)
def test_gguf_gives_the_same_numbers(kind, architecture, heads, tmp_path):
    model = llm_models.BY_NAME[kind].make()
    made = lora.adapted(model, kind, 12, fan_in_fan_out=kind == "gpt2")
    folder = lora.saved(made, tmp_path / "a")
    generator = generator_of(
        graft.export_llm(model, tmp_path / "model.pte"),
        adapters={"safetensors": folder, "gguf": gguf_of(folder, tmp_path / "a.gguf", architecture, heads)},
    )
    found = generator.logits(IDS, adapter="gguf")
    assert torch.equal(found, generator.logits(IDS, adapter="safetensors"))
    same(eager(made), found)
    ids = [adapter.id for adapter in generator.adapters.chosen(["gguf", "safetensors"])]
    assert ids[0] == ids[1]


def test_what_is_no_gguf_adapter(llama, tmp_path):
    _, package, adapters = llama
    folder = adapters["plain"][0]
    generator = generator_of(package, max_adapter_rank=8)
    heads = {"attn_q": 6, "attn_k": 2}
    for values, error, message in (
        ({"general.type": "model"}, graft.Unsupported, "general.type 'model'.*expected 'adapter'"),
        ({"adapter.type": "control"}, graft.Unsupported, "adapter.type 'control'"),
        ({"adapter.alora.invocation_tokens": 3}, graft.Unsupported, "adapter.alora.invocation_tokens"),
    ):
        path = gguf_of(folder, tmp_path / "bad.gguf", "llama", heads, values)
        with pytest.raises(error, match=message):
            graft.load_adapter(generator, "a", path)
    whole = gguf_of(folder, tmp_path / "good.gguf", "llama", heads).read_bytes()
    for size in (3, 4, 40, len(whole) // 2, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises((graft.InvalidProgram, graft.NotFound)):
            graft.load_adapter(generator, "a", tmp_path / "cut.gguf")
    other = write_gguf(
        tmp_path / "other.gguf",
        {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 1.0},
        {"blk.0.attn_z.weight.lora_a": torch.zeros(2, 48), "blk.0.attn_z.weight.lora_b": torch.zeros(48, 2)},
    )
    with pytest.raises(graft.InvalidArgument, match="changes 'blk.0.attn_z'"):
        graft.load_adapter(generator, "a", other)
    with pytest.raises(graft.Unsupported, match="is q8_0, expected f32, f16 or bf16"):
        tensors = {"blk.0.attn_v.weight.lora_a": torch.zeros(32, 32), "blk.0.attn_v.weight.lora_b": torch.zeros(32, 32)}
        head = {"general.type": "adapter", "adapter.type": "lora"}
        graft.load_adapter(generator, "a", write_gguf(tmp_path / "q.gguf", head, tensors, "q8_0"))
    graft.load_adapter(generator, "a", tmp_path / "good.gguf")
    same(adapters["plain"][1], generator.logits(IDS, adapter="a"))


# --- other ways to run ---


def net_and_adapter(net, tmp_path, targets):
    net = net.eval().requires_grad_(False)
    made = peft.get_peft_model(copy.deepcopy(net), peft.LoraConfig(r=3, target_modules=targets)).eval()
    lora.fill(made, "default", 31)
    made.save_pretrained(tmp_path / "a")
    return net, made


def test_the_plain_lowering(tmp_path):
    net, made = net_and_adapter(Net(), tmp_path, ["first", "second"])
    x = torch.randn(4, 20)
    path = graft.export(net, (x,), path=tmp_path / "net.pte", dynamic_shapes=[{0: torch.export.Dim("batch", max=64)}])
    plain = graft.LoadOptions(fast_kernels=False, max_adapter_rank=3)
    model = graft.load(path, adapters={"a": tmp_path / "a"}, options=plain, threads=1)
    found = model(x, adapter=["a", None, None, "a"])
    with torch.no_grad():
        same(torch.cat([made(x[:1]), net(x[1:3]), made(x[3:])]), found, 1e-5)


def test_methods_in_segments(tmp_path):
    """Layers before and behind a cut: those whose rows are as many as the data say have one adapter for all."""

    class Cut(Net):
        def forward(self, x):
            y = torch.relu(self.first(x))
            return self.second(y[torch.nonzero(x[:, 0] > 0)[:, 0]])

    net, made = net_and_adapter(Cut(), tmp_path, ["first", "second"])
    x = torch.randn(6, 20)
    x[:, 0] = torch.tensor([1.0, -1.0, 2.0, 1.0, -1.0, 3.0])
    path = graft.export(net, (x,), path=tmp_path / "net.pte", dynamic_shapes=[{0: torch.export.Dim("batch", max=64)}])
    model = graft.load(path, adapters={"a": tmp_path / "a"}, threads=1)
    with torch.no_grad():
        same(made(x), model(x, adapter="a"), 1e-5)
        same(net(x), model(x), 1e-5)
    with pytest.raises(graft.ExecutionError, match="not known to be those of the batch"):
        model(x, adapter=["a", *[None] * 5])
    with pytest.raises(graft.InvalidArgument, match="a batch of 6 got 2 adapters"):
        model(x, adapter=["a", None])
    same(net(x), model(x), 1e-5)


def test_padded_batches(tmp_path):
    """Rows of padding have no adapter."""
    net, made = net_and_adapter(Net(), tmp_path, ["first", "second"])
    x = torch.randn(3, 20)
    path = graft.export(net, (x,), path=tmp_path / "net.pte", dynamic_shapes=[{0: torch.export.Dim("batch", max=64)}])
    model = graft.load(path, adapters={"a": tmp_path / "a"}, threads=1, buckets={"x.0": [8, 16]})
    with torch.no_grad():
        for rows in (3, 5, 8, 9):
            x = torch.randn(rows, 20)
            names = ["a" if row % 2 else None for row in range(rows)]
            expected = torch.stack([(made if row % 2 else net)(x[row]) for row in range(rows)])
            same(expected, model(x, adapter=names), 1e-5)
    assert model.counters()["plan_misses"] == 2


def test_damaged_bytes(llama, tmp_path):
    """Files with some wrong bytes load or are errors of graft's; nothing else happens."""
    _, package, adapters = llama
    folder = adapters["few"][0]
    generator = generator_of(package, adapters={"good": folder})
    target = changed(folder, tmp_path / "bad")
    gguf = gguf_of(folder, tmp_path / "good.gguf", "llama").read_bytes()
    pick = random.Random(1)
    outcomes = collections.Counter()
    for name, whole, head in (
        ("bad/adapter_model.safetensors", (target / "adapter_model.safetensors").read_bytes(), 400),
        ("bad/adapter_config.json", (target / "adapter_config.json").read_bytes(), None),
        ("bad.gguf", gguf, 500),
    ):
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(pick.randint(1, 3)):
                at = pick.randrange(min(head or len(data), len(data)))
                data[at] = pick.choice([0, 255, 34, 44, 48, 125, data[at] ^ (1 << pick.randrange(8))])
            (tmp_path / name).write_bytes(data)
            try:
                graft.load_adapter(generator, "mutant", tmp_path / "bad" if name.startswith("bad/") else tmp_path / name)
                outcomes["loaded"] += 1
            except graft.Error as e:
                assert not isinstance(e, graft.InternalError), e
                outcomes[type(e).__name__] += 1
        (tmp_path / name).write_bytes(whole)
    assert len(outcomes) > 3, outcomes
    same(adapters["few"][1], generator.logits(IDS, adapter="good"))
