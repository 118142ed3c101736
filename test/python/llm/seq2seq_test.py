"""Models with an encoder and a decoder on graft against eager PyTorch, in f32: the encoder runs once, its keys and
values stay in the cache, the decoder goes on over them."""

import subprocess

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import graft
import graft.executorch
import llm_models
import module_example
from runner_test import binary
from graft.llm import ops, seq2seq
from llm_models import SEQ2SEQ_CASES, VOCAB
from package_test import LIMIT, check, error
from quick import quick

TOKENS = 64


def run_cli(*args, code=0, err=False):
    done = subprocess.run([binary(), *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if err else done.stdout


class Pair:
    def __init__(self, folder, model, **options):
        self.eager = model
        self.features = seq2seq.takes_features(model)
        self.path = path = graft.export_llm(model, folder / "model.pte")
        encoder = graft.LoadOptions(kv_encoder_length=320)
        self.package = graft.load(path, kv_rows=3, kv_length=96, options=encoder, **options)

    def source(self, count, batch=1, pads=None):
        """What both take, at the encoder's length `count`; pads: of each row, on the right."""
        made = torch.Generator().manual_seed(count + batch)
        if self.features:
            config = self.eager.config
            shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
            return (torch.randn(shape, generator=made),), {}
        ids = torch.randint(3, VOCAB, (batch, count), generator=made)
        mask = torch.ones(batch, count, dtype=torch.long)
        for row, pad in enumerate(pads or ()):
            mask[row, count - pad :] = 0
        return (ids, mask), {"attention_mask": mask}

    def expected(self, source, ids):
        inputs, mask = source
        name = "input_features" if self.features else "input_ids"
        with torch.no_grad():
            return self.eager(**{name: inputs[0]}, **mask, decoder_input_ids=ids).logits

    def decode(self, ids, start=0):
        rows = (start + torch.arange(ids.shape[1])).expand(ids.shape[0], -1).contiguous()
        return self.package.step(ids.contiguous(), rows, rows, torch.arange(ids.shape[1]))


def tokens(batch=1, count=TOKENS):
    return torch.randint(3, VOCAB, (batch, count), generator=torch.Generator().manual_seed(batch))


@pytest.fixture(scope="module", params=SEQ2SEQ_CASES)
def pair(request, tmp_path_factory):
    return Pair(tmp_path_factory.mktemp(request.param.name), request.param.make())


@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_sources(pair, count):
    if pair.features:
        pytest.skip("takes sources of one length: test_sources_of_whisper")
    source = pair.source(count)
    assert pair.package.encode(*source[0]).tolist() == [count]
    check(pair.decode(tokens()), pair.expected(source, tokens()))


@pytest.mark.parametrize("count", quick([1, 300], [1, 5, 300]))
def test_sources_of_whisper(tmp_path, count):
    pair = Pair(tmp_path, llm_models.whisper(count).make())
    source = pair.source(count, 2)
    assert pair.package.encode(*source[0]).tolist() == [count, count]
    check(pair.decode(tokens(2)), pair.expected(source, tokens(2)))


def test_decoding_in_parts_and_a_padded_batch(pair):
    source = pair.source(40, 3, (0, 3, 22))
    lengths = pair.package.encode(*source[0]).tolist()
    assert lengths == ([64] * 3 if pair.features else [40, 37, 18])
    ids = tokens(3)
    steps = [pair.decode(ids[:, :5]), *(pair.decode(ids[:, i : i + 1], i) for i in range(5, TOKENS))]
    expected = pair.expected(source, ids)
    check(torch.cat(steps, 1), expected)
    assert pair.package.kv_lengths() == [TOKENS] * 3
    pair.package.kv_truncate(30)
    check(pair.decode(ids[:, 30:40], 30), expected[:, 30:40])


def test_padding_on_the_left_of_a_source(pair):
    if pair.features or pair.eager.config.model_type == "bart":
        pytest.skip("its encoder has absolute positions")
    ids, mask = pair.source(40, 3)[0]
    mask[1, :7], mask[2, :30] = 0, 0
    source = (ids, mask), {"attention_mask": mask}
    assert pair.package.encode(ids, mask).tolist() == [40, 33, 10]
    check(pair.decode(tokens(3)), pair.expected(source, tokens(3)))


def test_a_new_source_begins_anew(pair):
    first, second = pair.source(5, 2), pair.source(64, 2)
    pair.package.encode(*first[0])
    pair.decode(tokens(2))
    pair.package.encode(*second[0])
    assert pair.package.kv_lengths()[:2] == [0, 0]
    with pytest.raises(graft.ExecutionError, match="leaves a gap"):
        pair.decode(tokens(2)[:, :1], 5)
    if not pair.features:
        check(pair.decode(tokens(2)), pair.expected(second, tokens(2)))


def test_rows_are_selected_forked_and_saved_with_their_source(pair, tmp_path):
    source = pair.source(40, 3, (0, 3, 22))
    pair.package.encode(*source[0])
    ids = tokens(3)
    pair.decode(ids[:, :10])
    pair.package.save(tmp_path / "states")
    other = pair.package.fork()
    expected = pair.expected(source, ids)[:, 10:]
    rows = torch.arange(10, TOKENS).expand(3, -1).contiguous()
    check(other.step(ids[:, 10:].contiguous(), rows, rows, torch.arange(TOKENS - 10)), expected)
    pair.package.kv_select([2, 0, 1])
    order = [2, 0, 1]
    check(pair.decode(ids[order][:, 10:], 10), expected[order])
    pair.package.reset()
    with pytest.raises(graft.ExecutionError, match="row 0 has no source"):
        pair.decode(ids[:, :1])
    pair.package.restore(tmp_path / "states")
    pair.package.kv_resize(3, 80)
    check(pair.decode(ids[:, 10:], 10), expected)


def test_errors(pair):
    if pair.features:
        return
    with pytest.raises(graft.InvalidArgument, match="in 1..|at least 1"):
        pair.package.encode(torch.ones(1, 0, dtype=torch.long), torch.ones(1, 0, dtype=torch.long))
    with pytest.raises(graft.ExecutionError, match="row 0 has 330 tokens, the cache has room for 320"):
        pair.package.encode(*(t.contiguous() for t in pair.source(330)[0]))
    with pytest.raises(graft.ExecutionError, match="row 0 has no tokens"):
        pair.package.encode(torch.ones(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(graft.InvalidArgument, match="a batch of 4 needs as many rows"):
        pair.package.encode(*pair.source(5, 4)[0])


# From text to text -------------------------------------------------------------------------------------------------


PENALTY = 5.0  # small random models repeat themselves otherwise


def greedy(model, source, start, count):
    """Token by token from eager PyTorch, without any cache; what stands there already is less likely."""
    ids = torch.tensor([[start]])
    with torch.no_grad():
        for _ in range(count):
            logits = model(**source, decoder_input_ids=ids).logits[:, -1]
            seen = logits[0, ids[0]]
            logits[0, ids[0]] = torch.where(seen < 0, seen * PENALTY, seen / PENALTY)
            ids = torch.cat([ids, logits.argmax(-1)[:, None]], 1)
    return ids[0, 1:].tolist()


def of_words(folder, model):
    """A folder of Hugging Face with a tokenizer of as many words, whose text is the tokens' numbers."""
    names = ["<unk>", *(f"w{i}" for i in range(1, VOCAB))]
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", quick(["t5"], ["t5", "bart"]))
def test_text_to_text(tmp_path, name):
    model = llm_models.BY_NAME[name].make()
    package = graft.export_llm(of_words(tmp_path / "hf", model), tmp_path / "model.pte")
    sources = [[5, 9, 30, 7], [11, 40, 8, 8, 21, 33, 17]]
    start, count = model.config.decoder_start_token_id, 12
    expected = [greedy(model, {"input_ids": torch.tensor([ids])}, start, count) for ids in sources]
    assert expected[0] != expected[1] and len(set(expected[0])) > count / 2
    generator = graft.TextGenerator(package, rows=2, length=40)
    settings = {"max_new_tokens": count, "ignore_eos": True, "repetition_penalty": PENALTY}
    assert [g.tokens for g in generator.generate_batch(sources, **settings)] == expected
    # The cache of the first encoder inputs must not affect the next ones.
    assert [g.tokens for g in generator.generate_batch(sources[::-1], **settings)] == expected[::-1]
    text = " ".join(f"w{i}" for i in sources[1])
    assert generator.generate(text, **settings).tokens == expected[1]
    flags = ("--max-new-tokens", count, "--ignore-eos", "--repetition-penalty", PENALTY)
    found = run_cli("generate", package, "--prompt", text, *flags)
    assert found == generator.generate(text, **settings).text != ""
    with pytest.raises(graft.InvalidArgument, match="no encoder of features"):
        generator.generate_from_features(torch.zeros(1, 4, 8))


def test_features_to_text(tmp_path):
    model = llm_models.whisper(64).make()
    package = graft.export_llm(model, tmp_path / "model.pte")
    features = torch.randn(2, model.config.num_mel_bins, 128, generator=torch.Generator().manual_seed(0))
    start, count = model.config.decoder_start_token_id, 12
    expected = [greedy(model, {"input_features": f[None]}, start, count) for f in features]
    generator = graft.TextGenerator(package, rows=2, length=40)
    found = generator.generate_from_features(
        features, max_new_tokens=count, ignore_eos=True, repetition_penalty=PENALTY
    )
    assert [g.tokens for g in found] == expected
    with pytest.raises(graft.InvalidArgument, match="rows of the cache"):
        generator.generate_from_features(features.repeat(2, 1, 1))
    np.save(tmp_path / "features.npy", features[0].numpy())
    stats = run_cli("generate", package, "--features", tmp_path / "features.npy", "--max-new-tokens", 3, "--stats", err=True)
    assert "runs " in stats
    assert "give --features" in run_cli("generate", package, "--prompt", "w1", code=1, err=True)


# What the comparison must detect ----------------------------------------------------------------------------------


def test_without_the_bias_it_fails(tmp_path, monkeypatch):
    attention = ops.attention
    monkeypatch.setattr(ops, "attention", lambda *args, bias, **kwargs: attention(*args, bias=None, **kwargs))
    pair = Pair(tmp_path, llm_models.BY_NAME["t5"].make())
    source = pair.source(20)
    pair.package.encode(*source[0])
    assert error(pair.decode(tokens()), pair.expected(source, tokens())) > 10 * LIMIT


@pytest.mark.parametrize("name", quick(["t5"], ["t5", "bart"]))
def test_without_padding_or_with_another_source_it_fails(tmp_path, name):
    pair = Pair(tmp_path, llm_models.BY_NAME[name].make())
    source = pair.source(40, 3, (0, 3, 22))
    ids, mask = source[0]
    expected = pair.expected(source, tokens(3))
    pair.package.encode(ids, torch.ones_like(mask))
    assert error(pair.decode(tokens(3))[1:], expected[1:]) > 10 * LIMIT
    pair.package.encode(ids.flip(0).contiguous(), mask.flip(0).contiguous())
    assert error(pair.decode(tokens(3)), expected) > 10 * LIMIT


def test_types_of_the_cache(tmp_path):
    model = llm_models.BY_NAME["bart"].make()
    for kind, least in [("f16", 0.99999), ("bf16", 0.999)]:
        pair = Pair(tmp_path, model, kv_dtype=kind)
        source = pair.source(40, 2)
        pair.package.encode(*source[0])
        found, expected = pair.decode(tokens(2)), pair.expected(source, tokens(2))
        assert torch.nn.functional.cosine_similarity(found, expected, -1).min() > least


def test_quantized(tmp_path):
    model = llm_models.SmallModel(
        "bart", llm_models._of("Bart", {**llm_models._SEQ2SEQ, "d_model": 96}, max_position_embeddings=128)
    ).make()
    graft.export_llm(model, tmp_path / "q.pte", quantize="q8_0")
    package = graft.load(tmp_path / "q.pte", kv_length=96)
    ids = tokens(1, 30)
    package.encode(ids, torch.ones_like(ids))
    rows = torch.arange(30)[None]
    found = package.step(ids, rows, rows, torch.arange(30))
    with torch.no_grad():
        expected = model(input_ids=ids, decoder_input_ids=ids).logits
    assert torch.nn.functional.cosine_similarity(found, expected, -1).min() > 0.999
    assert package.stats()["weight_bytes"] < 1.6 * sum(t.numel() for t in model.parameters())


def test_from_a_folder(tmp_path):
    model = llm_models.BY_NAME["t5"].make()
    model.save_pretrained(tmp_path / "t5")
    path = graft.export_llm(tmp_path / "t5", tmp_path / "t5.pte", weights="external")
    package = graft.load(path, kv_length=96)
    ids = tokens(1, 30)
    package.encode(ids, torch.ones_like(ids))
    rows = torch.arange(30)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, decoder_input_ids=ids).logits
    check(package.step(ids, rows, rows, torch.arange(30)), expected)


def test_programs_in_eager_pytorch():
    """The operators' definitions: the programs run without the engine."""
    model = llm_models.BY_NAME["t5"].make()
    traced = seq2seq.trace(model, context=64, encoder_context=64)
    weights = model.state_dict()

    def run(program, *inputs):
        flat = []
        values = iter(inputs)
        for spec in program.graph_signature.input_specs:
            known = weights.get(spec.target, program.constants.get(spec.target))
            flat.append(next(values) if spec.target is None else known)
        return torch.fx.Interpreter(program.graph_module).run(*flat)[0]

    ids = tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    assert run(traced["encode"], ids, mask).tolist() == [20, 15]
    rows = torch.arange(20).expand(2, -1)
    found = run(traced["step"], ids, rows, rows, torch.arange(20))
    with torch.no_grad():
        check(found, model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids).logits)


def test_under_executorch(pair):
    """`encode` leaves keys and values where `forward` of the same program finds them, for a batch of two, twice."""
    from executorch.runtime import Runtime

    try:
        graft.executorch.set_options(kv_rows=2, kv_length=64, kv_encoder_length=320)
        program = Runtime.get().load_program(str(pair.path))
        other = Runtime.get().load_program(str(pair.path)).load_method("step")
        encode, forward = program.load_method("encode"), program.load_method("step")
    finally:
        graft.executorch.set_options()
    ids, keep = tokens(2)[:, :12], torch.arange(6)
    for count in (40, 7):
        source = pair.source(count, 2)
        encode.execute(source[0])
        parts = []
        for rows in torch.arange(12).expand(2, -1).split(6, 1):
            rows = rows.contiguous()
            parts.append(forward.execute((ids[:, rows[0]].contiguous(), rows, rows, keep))[0].clone())
        check(torch.cat(parts, 1), pair.expected(source, ids))
    with pytest.raises(RuntimeError):
        rows = torch.arange(6).expand(2, -1).contiguous()
        other.execute((ids[:, :6].contiguous(), rows, rows, keep))  # nobody encoded for that program


def test_module_of_executorch(tmp_path):
    """C++: what `encode` leaves is what `forward` decodes."""
    case = next(case.values[0] for case in SEQ2SEQ_CASES if case.id == "t5")
    model = case.make()
    path = graft.export_llm(model, tmp_path / "m.pte")
    source = [5, 9, 30, 7, 11]
    done = module_example.run(path, 8, 3, "--source", *source, program="run_decoder")
    assert done.returncode == 0, done.stderr
    ids = [3]
    for _ in range(8):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    assert [int(token) for token in done.stdout.split()] == ids[1:]
