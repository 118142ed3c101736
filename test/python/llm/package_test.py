"""Packages of language models on graft against the models in eager PyTorch, in f32: prompts of several lengths, padding
on the left, prompts in parts, decoding. The same comparison fails for programs from which something was left out."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import graft
import llm_models
import module_example
from graft.llm import export
from graft.runtime import Model
from llm_models import CASES, left_padded
from quick import quick
from test_data import DATA

LIMIT = 1e-4  # relative to the largest logit


@dataclasses.dataclass
class Pair:
    """A model and its package."""

    eager: torch.nn.Module
    package: Model
    recurrent: bool = False

    def expected(self, ids, mask=None, positions=None):
        return llm_models.logits(self.eager, ids, mask, positions)

    def run(self, ids, positions=None, rows=None):
        """Logits of all tokens. rows: of the cache; by default those after what is there."""
        batch, count = ids.shape
        start = self.package.kv_lengths()[0] if rows is None else 0
        rows = torch.arange(start, start + count).expand(batch, -1) if rows is None else rows
        positions = rows.clamp(min=0) if positions is None else positions
        return self.package.step(ids, positions.contiguous(), rows.contiguous(), torch.arange(count))


def make_pair(folder, model, change=None):
    """change: is given the traced program, to spoil it."""
    path = Path(folder) / "model.pte"
    with pytest.MonkeyPatch.context() as patch:
        if change is not None:
            whole = export.trace

            def spoiled(*args, **kwargs):
                program = whole(*args, **kwargs)
                change(program)
                program.graph_module.recompile()
                return program

            patch.setattr(export, "trace", spoiled)
        graft.export_llm(model, path)
    package = graft.load(path, kv_rows=3, kv_length=llm_models.CONTEXT, kv_dtype="f32")
    assert all(method.info["segments"] == 1 for method in package.methods.values())
    return Pair(model, package)


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    pair = make_pair(tmp_path_factory.mktemp(request.param.name), request.param.make())
    return dataclasses.replace(pair, recurrent=request.param in llm_models.RECURRENT)


def tokens(count, batch=1):
    return torch.randint(3, llm_models.VOCAB, (batch, count), generator=torch.Generator().manual_seed(count))


def error(found, expected):
    assert found.shape == expected.shape and found.isfinite().all()
    return float((found - expected).abs().max() / expected.abs().max())


def check(found, expected):
    worst = error(found, expected)
    assert worst <= LIMIT
    first, second = expected.topk(2, -1).values.unbind(-1)
    clear = first - second > 2 * (found - expected).abs().max()
    assert (found.argmax(-1) == expected.argmax(-1))[clear].all()
    print(f"largest error {worst:.1e} of the largest logit; {float(clear.float().mean()):.0%} of the tokens are clear")


@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_prompts(pair, count):
    pair.package.reset()
    check(pair.run(tokens(count)), pair.expected(tokens(count)))


def test_padding_on_the_left(pair):
    pair.package.reset()
    ids, mask, positions, rows = left_padded(3, 40, (0, 3, 22))
    found, expected = pair.run(ids, positions, rows), pair.expected(ids, mask, positions)
    real = mask == 1
    check(found[real][None], expected[real][None])
    assert pair.package.kv_lengths() == [40, 37, 18]
    # One token more for each.
    more = tokens(3).T
    lengths = torch.tensor(pair.package.kv_lengths())[:, None]
    mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], 1)
    whole = pair.expected(torch.cat([ids, more], 1), mask, torch.cat([positions, lengths], 1))
    check(pair.run(more, lengths, lengths), whole[:, -1:])


def test_a_prompt_in_parts(pair):
    pair.package.reset()
    ids = tokens(64)
    parts = [pair.run(part) for part in ids.split([20, 1, 30, 13], 1)]
    check(torch.cat(parts, 1), pair.expected(ids))


def test_decoding(pair):
    pair.package.reset()
    ids = tokens(64)
    steps = [pair.run(ids[:, :5]), *(pair.run(ids[:, i : i + 1]) for i in range(5, 64))]
    check(torch.cat(steps, 1), pair.expected(ids))
    if pair.recurrent:
        with pytest.raises(graft.InvalidArgument, match="recurrent states are those of all of them"):
            pair.package.kv_truncate(30)
        with pytest.raises(graft.ExecutionError, match="position 30 goes back from 64 tokens"):
            pair.run(ids[:, 30:40], rows=torch.arange(30, 40)[None])
        more = tokens(7)
        check(pair.run(more), pair.expected(torch.cat([ids, more], 1))[:, 64:])
        return
    pair.package.kv_truncate(30)
    check(pair.run(ids[:, 30:40]), pair.expected(ids[:, :40])[:, 30:])


def test_only_kept_positions_are_multiplied(pair):
    pair.package.reset()
    ids = tokens(64)
    rows = torch.arange(64)[None]
    keep = torch.tensor([63, 7])
    found = pair.package.step(ids, rows, rows, keep)
    check(found, pair.expected(ids)[:, keep])


@pytest.mark.parametrize("name", quick(["gemma3", "phi3"], ["qwen2", "mixtral", "gemma2", "gemma3", "phi3"]))
def test_windows_as_rings(tmp_path, name):
    """Windows of 7 to 11 tokens with a slack of 6: prompts shorter and longer than that, padded and not, taken back."""
    pair = make_pair(tmp_path, llm_models.BY_NAME[name].make())
    slack = graft.LoadOptions(kv_window_slack=6)
    pair.package = graft.load(tmp_path / "model.pte", kv_rows=3, kv_length=llm_models.CONTEXT, options=slack)
    ids = tokens(100)
    parts = [pair.run(part) for part in ids.split([4, 30, 1, 1, 6, 58], 1)]
    check(torch.cat(parts, 1), pair.expected(ids))
    pair.package.kv_truncate(94)
    check(pair.run(ids[:, 94:]), pair.expected(ids)[:, 94:])
    with pytest.raises(graft.InvalidArgument, match="row 0 of 100 tokens cannot be truncated to 80"):
        pair.package.kv_truncate(80)
    pair.package.reset()
    ids, mask, positions, rows = left_padded(3, 40, (0, 3, 22))
    expected = pair.expected(ids, mask, positions)
    for begin, end in [(0, 20), (20, 26), (26, 40)]:
        part = slice(begin, end)
        found = pair.run(ids[:, part], positions[:, part], rows[:, part])
        real = mask[:, part] == 1
        check(found[real][None], expected[:, part][real][None])
    assert pair.package.kv_lengths() == [40, 37, 18]


@pytest.mark.parametrize(("name", "dimension"), [("gemma3", "input_ids.1"), ("qwen2", "cache_position.1")])
def test_prompts_of_any_length_share_plans(tmp_path, name, dimension):
    pair = make_pair(tmp_path, llm_models.BY_NAME[name].make())
    pair.package = graft.load(
        tmp_path / "model.pte",
        kv_rows=3,
        kv_length=llm_models.CONTEXT,
        buckets={dimension: [8, 32]},
        options=graft.LoadOptions(kv_window_slack=6),
    )
    ids, mask, positions, rows = left_padded(3, 60, (0, 3, 22))
    expected, begin = pair.expected(ids, mask, positions), 0
    for count in (5, 20, 3, 31, 1):
        part = slice(begin, begin := begin + count)
        keep = torch.tensor([count - 1, 0, -1])
        found = pair.package.step(ids[:, part], positions[:, part], rows[:, part], keep)
        real = mask[:, part][:, keep] == 1
        check(found[real][None], expected[:, part][:, keep][real][None])
    assert pair.package.kv_lengths() == [60, 57, 38]
    assert pair.package.counters()["plan_misses"] == 2
    # `forward`, for ExecuTorch's runner, computes the positions itself: it runs at the sizes that it is given.
    pair.package.reset()
    for length in (5, 20):
        pair.package.forward(ids[:1, :length], torch.zeros(1, dtype=torch.int64))
        pair.package.reset()
    assert pair.package.counters()["plan_misses"] == 4


# What the comparison must detect ----------------------------------------------------------------------------------


def attention_nodes(program):
    return [node for node in program.graph.nodes if node.target is torch.ops.graft.attention.default]


def without(argument):
    def change(program):
        for node in attention_nodes(program):
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != argument}

    return change


def without_last_layer(program):
    """The last attention gives what goes into the layer's projection: nothing of the others."""
    last = attention_nodes(program)[-1]
    with program.graph.inserting_after(last):
        zeros = program.graph.call_function(torch.ops.aten.mul.Tensor, (last, 0.0))
        zeros.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(zeros, delete_user_cb=lambda user: user is not zeros)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral", without("window")),
        pytest.param("gemma2", without("window"), marks=pytest.mark.slow),
        pytest.param("gemma2", without("softcap"), marks=pytest.mark.slow),
        pytest.param("gpt_oss", without("sinks"), marks=pytest.mark.slow),
        pytest.param("llama", without_last_layer, marks=pytest.mark.slow),
    ],
)
def test_a_program_without_it_fails(tmp_path, name, change):
    pair = make_pair(tmp_path, llm_models.BY_NAME[name].make(), change)
    assert error(pair.run(tokens(64)), pair.expected(tokens(64))) > 10 * LIMIT


def test_a_call_without_it_fails(tmp_path):
    pair = make_pair(tmp_path, llm_models.BY_NAME["qwen3"].make())
    ids, mask, positions, rows = left_padded(3, 40, (0, 3, 22))
    expected, real = pair.expected(ids, mask, positions), mask == 1
    seen = torch.arange(40).expand(3, -1)  # padding treated as tokens
    assert error(pair.run(ids, positions, seen)[real], expected[real]) > 10 * LIMIT
    pair.package.reset()
    pair.run(ids[:1, :20])
    rows = torch.arange(20, 40)[None]  # the second part gets the rotary positions of the first
    assert error(pair.run(ids[:1, 20:], rows - 20, rows), expected[:1, 20:]) > 10 * LIMIT


# Trained models ---------------------------------------------------------------------------------------------------


def data(name):
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set GRAFT_TEST_DATA")
    return folder


def greedy(model, ids, count):
    """`count` tokens after `ids`."""
    made, now, start = [], torch.tensor([ids]), 0
    while len(made) < count:
        rows = torch.arange(start, start + now.shape[1])[None]
        logits = model.step(now, rows, rows, torch.tensor([now.shape[1] - 1]))
        made.append(int(logits[0, -1].argmax()))
        start += now.shape[1]
        now = torch.tensor([made[-1:]])
    return made


@pytest.mark.parametrize(
    ("file", "weights"),
    [
        ("", "package"),
        ("stories260K-f32.gguf", "external"),
        pytest.param("", "external", marks=pytest.mark.slow),
        pytest.param("stories260K-f32.gguf", "package", marks=pytest.mark.slow),
    ],
)
def test_stories(tmp_path, file, weights):
    folder = data("stories260K")
    path = graft.export_llm(folder / file, tmp_path / "m.pte", weights=weights)
    model = graft.load(path, kv_length=512)
    tokenizer = graft.Tokenizer.load(path)  # of the package
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]
    assert tokenizer.decode(greedy(model, [1], 200)).strip() == (folder / "expected.txt").read_text().strip()
    model.reset()
    prompt, rows = torch.tensor([[1, 403, 407, 261, 378]]), torch.arange(5)[None]
    logits = model.step(prompt, rows, rows, torch.tensor([4]))[0, 0]
    for token, value in {432: 17.7994, 383: 14.2813, 322: 9.7097, 353: 9.5873, 323: 9.1342}.items():
        assert float(logits[token]) == pytest.approx(value, abs=1e-4)


def test_under_executorch(tmp_path):
    from executorch.runtime import Runtime

    model = llm_models.BY_NAME["gemma2"].make()
    path = graft.export_llm(model, tmp_path / "m.pte", context=64)
    method = Runtime.get().load_program(path).load_method("step")
    ids = tokens(40)
    steps = []
    for rows in torch.arange(40)[None].split([20, 1, 19], 1):
        keep = torch.arange(rows.shape[1])
        rows = rows.contiguous()
        steps.append(method.execute((ids[:, rows[0]].contiguous(), rows, rows, keep))[0].clone())
    with torch.no_grad():
        check(torch.cat(steps, 1), model(ids).logits)


def test_batches_under_executorch(tmp_path):
    """Rows and length of the cache are options of the package."""
    from executorch.runtime import Runtime

    model = llm_models.BY_NAME["gemma2"].make()
    options = {"kv_rows": 2, "kv_length": 64}
    path = graft.export_llm(model, tmp_path / "m.pte", context=64, delegate_options=options)
    method = Runtime.get().load_program(path).load_method("step")
    both = tokens(24, batch=2)
    steps = []
    for positions in torch.arange(24).split([15, 1, 8]):
        rows = positions.expand(2, -1).contiguous()
        keep = torch.arange(rows.shape[1])
        steps.append(method.execute((both[:, positions].contiguous(), rows, rows, keep))[0].clone())
    with torch.no_grad():
        check(torch.cat(steps, 1), model(both).logits)


def said_by_text_runner(path, folder, prompts, count):
    """What ExecuTorch's TextLLMRunner says, greedily, one prompt after another, each from the beginning."""
    from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

    runner = TextLLMRunner(str(path), str(folder / "tokenizer.json"))
    said = []
    for prompt in prompts:
        pieces = []
        settings = GenerationConfig(max_new_tokens=count, temperature=0.0, echo=False)
        runner.generate(prompt, settings, pieces.append)
        runner.reset()
        said.append("".join(pieces).replace(" ", ""))  # its tokenizer drops the spaces of this vocabulary
    return said


@pytest.mark.parametrize("options", [{}, {"kv_type": "f16", "kv_length": 128, "threads": 1}], ids=["plain", "options"])
def test_text_runner_of_executorch_runs_the_package(tmp_path, options):
    folder = data("stories260K")
    path = graft.export_llm(folder, tmp_path / "m.pte", delegate_options=options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = ["Once upon a time", "The cat", "Once upon a time"]
    expected = []
    for prompt in prompts:
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        cache = options.get("kv_type", "f32")
        made = greedy(graft.load(path, kv_length=options.get("kv_length", 256), kv_dtype=cache), ids, 60)
        expected.append(tokenizer.decode(made).replace(" ", ""))
    assert said_by_text_runner(path, folder, prompts, 60) == expected
    model = graft.load(path)
    constants = {name: method() for name, method in model.methods.items() if name not in ("step", "forward")}
    length = options.get("kv_length", 512)
    assert constants == {
        "get_max_seq_len": length,
        "get_max_context_len": length,
        "get_vocab_size": 512,
        "get_bos_id": 1,
        "get_eos_ids": [2],
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }


def test_one_sequence_is_the_step_of_its_last_token(tmp_path):
    """`forward` and `step` on one cache, in graft and in ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    model = llm_models.BY_NAME["gemma2"].make()
    path = graft.export_llm(model, tmp_path / "m.pte", context=64)
    ours = graft.load(path, kv_length=64)
    program = Runtime.get().load_program(path)
    theirs = {name: program.load_method(name) for name in ("forward", "step")}
    ids = tokens(40)
    with torch.no_grad():
        expected = model(ids).logits
    begin = 0
    for i, count in enumerate((20, 1, 3, 1, 15)):
        part, end = ids[:, begin : begin + count].contiguous(), begin + count
        if i % 2:
            rows = torch.arange(begin, end)[None]
            call, keep = ("step", (part, rows, rows, torch.tensor([count - 1])))
        else:
            call, keep = ("forward", (part, torch.tensor([begin])))
        found = ours.methods[call](*keep)
        assert found.shape == (1, 1, expected.shape[-1])
        assert torch.equal(theirs[call].execute(keep)[0], found)
        check(found[:, 0], expected[:, end - 1])
        begin = end


def test_examples_of_executorch(tmp_path):
    """The C++ Module on a package of a language model, and the script with TextLLMRunner."""
    folder = data("stories260K")
    path = graft.export_llm(folder, tmp_path / "m.pte", context=128)
    ids = [403, 407, 261, 378]
    expected = greedy(graft.load(path, kv_length=128, kv_dtype="f32"), ids, 30)
    done = module_example.run(path, 30, *ids, program="run_decoder")
    assert done.returncode == 0, done.stderr
    assert [int(token) for token in done.stdout.split()] == expected
    script = Path(__file__).resolve().parents[3] / "examples" / "executorch" / "text_runner.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), "Once upon a time", "30"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = transformers.AutoTokenizer.from_pretrained(folder).decode(expected).replace(" ", "")
    assert text in done.stdout.replace(" ", "")


def perplexity(package, folder):
    model = graft.load(package, kv_length=256)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer((folder / "heldout.txt").read_text(), add_special_tokens=False, return_tensors="pt").input_ids[0]
    total, scored = 0.0, 0
    rows = torch.arange(256)[None]
    for begin in range(0, len(ids) - 256, 256):
        window = ids[begin : begin + 257]
        model.reset()
        logits = model.step(window[None, :-1], rows, rows, rows[0])[0].log_softmax(-1)
        total -= float(logits.gather(1, window[1:, None]).sum())
        scored += 256
    assert scored == 20_480
    return float(torch.tensor(total / scored).exp())


def test_perplexity(tmp_path):
    folder = data("kjv3m")
    path = graft.export_llm(folder, tmp_path / "m.pte")
    assert perplexity(path, folder) == pytest.approx(31.071, rel=1e-3)


@pytest.mark.parametrize(
    ("quantize", "bytes_per_weight", "limit"),
    [
        ("q8_0", 1.07, 5e-3),
        pytest.param({"*": "q4_k", "lm_head": "q6_k"}, 0.63, 5e-2, marks=pytest.mark.slow),
    ],
)
def test_quantized_while_it_is_written(tmp_path, quantize, bytes_per_weight, limit):
    folder = data("kjv3m")
    path = graft.export_llm(folder, tmp_path / "m.pte", quantize=quantize)
    assert path.stat().st_size < 3.4e6 * bytes_per_weight + 200_000
    assert perplexity(path, folder) == pytest.approx(31.071, rel=limit)


@pytest.mark.parametrize("quantize", quick(["q8_0"], ["q8_0", {"*": "q4_0", "embed_tokens": "q5_1"}]))
def test_packed_weights_are_the_same_weights(tmp_path, quantize):
    model = llm_models.BY_NAME["qwen3"].make()
    plain = graft.export_llm(model, tmp_path / "plain.pte", quantize=quantize)
    packed = graft.export_llm(model, tmp_path / "packed.pte", quantize=quantize, pack=True)
    assert plain.read_bytes() != packed.read_bytes()
    expected = Pair(model, graft.load(plain, kv_length=64)).run(tokens(40))
    assert torch.equal(Pair(model, graft.load(packed, kv_length=64)).run(tokens(40)), expected)
    # Without graft's kernels the blocks are unpacked again.
    slow = graft.LoadOptions(fast_kernels=False)
    expected = Pair(model, graft.load(plain, kv_length=64, options=slow)).run(tokens(40))
    assert torch.equal(Pair(model, graft.load(packed, kv_length=64, options=slow)).run(tokens(40)), expected)


def test_rows_that_do_not_divide_into_blocks(tmp_path, capsys):
    model = llm_models.BY_NAME["qwen3"].make()
    graft.export_llm(model, tmp_path / "m.pte", quantize="q8_0", progress=True)
    said = capsys.readouterr().err
    assert "mlp.up_proj.weight: rows of 48 elements do not divide into blocks of q8_0; stored as f16" in said
    found = Pair(model, graft.load(tmp_path / "m.pte", kv_length=64)).run(tokens(40))
    assert torch.nn.functional.cosine_similarity(found, model(tokens(40)).logits, -1).min() > 0.999


def test_halves_are_read_as_they_are(tmp_path):
    model = llm_models.BY_NAME["llama"].make().to(torch.bfloat16)
    path = graft.export_llm(model, tmp_path / "m.pte")
    package = graft.load(path, kv_length=64, kv_dtype="f32")
    found, expected = Pair(model, package).run(tokens(40)), model.to(torch.float32)(tokens(40)).logits
    assert error(found, expected) <= LIMIT
    assert package.stats()["weight_bytes"] < 1.1 * sum(2 * t.numel() for t in model.parameters())


@pytest.fixture(scope="module")
def wide_experts():
    """Rows that divide into blocks."""
    config = {**llm_models._EXPERTS, "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 6}
    small = llm_models.SmallModel("wide_experts", lambda: transformers.Qwen3MoeConfig(**config, norm_topk_prob=True))
    return small.make()


@pytest.mark.slow
def test_experts_in_halves(tmp_path, wide_experts):
    model = wide_experts.to(torch.bfloat16)
    package = graft.load(graft.export_llm(model, tmp_path / "m.pte"), kv_length=64, kv_dtype="f32")
    found, expected = Pair(model, package).run(tokens(40)), model.to(torch.float32)(tokens(40)).logits
    assert error(found, expected) <= LIMIT
    assert package.stats()["weight_bytes"] < 1.1 * sum(2 * t.numel() for t in model.parameters())


def test_experts_in_blocks(tmp_path, wide_experts):
    model = wide_experts.to(torch.float32)
    path = graft.export_llm(model, tmp_path / "m.pte", quantize={"*experts*": "q8_0"})
    package = graft.load(path, kv_length=64, kv_dtype="f32")
    found, expected = Pair(model, package).run(tokens(40)), model(tokens(40)).logits
    # Where the router scores two experts nearly equally, a token may get the other one.
    assert torch.nn.functional.cosine_similarity(found, expected, -1).median() > 0.999
    experts = sum(t.numel() for name, t in model.named_parameters() if "experts" in name)
    rest = sum(4 * t.numel() for name, t in model.named_parameters() if "experts" not in name)
    assert package.stats()["weight_bytes"] < 1.01 * (experts * 34 / 32 + rest)
    # Packed in the package they are read where they are mapped, and have the same bits.
    packed = graft.export_llm(model, tmp_path / "packed.pte", quantize={"*experts*": "q8_0"}, pack=True)
    for options in (graft.LoadOptions(), graft.LoadOptions(fast_kernels=False)):
        expected, again = (
            Pair(model, graft.load(file, kv_length=64, options=options)).run(tokens(40)) for file in (path, packed)
        )
        assert torch.equal(again, expected)
    stats = graft.load(packed, kv_length=64).stats()
    assert stats["packed_bytes"] == 0 and (stats["copied_bytes"] == 0 or package.stats()["packed_bytes"] == 0)


class Routed(torch.nn.Module):
    """A layer's network, for some of the tokens alone: how many depends on the text."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        rows = (flat.sum(-1) > 0).nonzero().squeeze(1)
        return flat.index_put((rows,), self.inner(flat[rows])).reshape(x.shape)


def test_a_model_whose_sizes_depend_on_the_text(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=None,
    )  # fmt: skip
    eager = transformers.LlamaForCausalLM(config).eval()
    eager.model.layers[0].mlp = Routed(eager.model.layers[0].mlp)
    path = graft.export_llm(eager, tmp_path / "routed.pte", plans=["seq=1,5"])
    pair = Pair(eager, graft.load(path, kv_length=64))
    assert pair.package.step.info["segments"] > 1
    ids = torch.randint(0, 97, (1, 12))
    expected = pair.expected(ids)
    for part in ids.split([5, 1, 6], 1):
        start = pair.package.kv_lengths()[0]
        found = pair.run(part)
        torch.testing.assert_close(found, expected[:, start : start + part.shape[1]], atol=1e-5, rtol=1e-5)
    assert pair.package.stats()["plans_loaded"] > 0
    tokens = eager.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=0)[0, 12:].tolist()
    assert len(tokens) == 10
    for buckets in ((), (8, 16)):
        generator = graft.TextGenerator(path, length=64, buckets=buckets)
        assert generator.generate(ids[0].tolist(), max_new_tokens=10).tokens == tokens
    batch = graft.BatchGenerator(path, rows=2, length=64)
    batch.prepare()
    request = batch.submit(ids[0].tolist(), max_new_tokens=10)
    while batch.step():
        pass
    assert batch.take(request).tokens == tokens
