"""`graft.hf.export_static` and `attach`: programs of fixed shapes under `generate()`."""

import copy
import io

import pytest
import torch
from transformers import DynamicCache, StaticCache

import graft
import llm_models
from graft.hf import masks

CLOSE = 1e-4
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:While compiling")]
NAMES = ("qwen3", "llama", "gemma3")


def _case(name, strict, runtime):
    slow = strict or runtime == "graft" or name == "llama"
    marks = [pytest.mark.slow] if slow else []
    return pytest.param((name, strict, runtime), id=f"{name}-{'strict' if strict else 'lax'}-{runtime}", marks=marks)


@pytest.fixture(
    scope="module", params=[_case(n, s, r) for n in NAMES for s in (False, True) for r in ("torch", "graft")]
)
def models(request):
    name, strict, runtime = request.param
    small = llm_models.BY_NAME[name]
    eager, attached = small.make(), small.make()
    programs = graft.hf.export_static(attached, 64, (8, 16), strict=strict)
    assert graft.hf.attach(attached, programs, runtime=runtime, threads=1) is attached
    return eager, attached


def prompt(tokens, rows=1):
    return torch.randint(3, llm_models.VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def compare(models, ids, **options):
    results = []
    for model in models:
        torch.manual_seed(1)
        made = model.generate(
            ids,
            **copy.deepcopy({"do_sample": False, **options}),
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        results.append(made)
    assert torch.equal(results[0].sequences, results[1].sequences)
    for a, b in zip(results[0].logits, results[1].logits):
        assert (a - b).abs().max() <= CLOSE * a.abs().max()


@pytest.mark.parametrize(
    "options",
    [
        dict(max_new_tokens=16),
        dict(max_new_tokens=40),
        dict(max_new_tokens=16, do_sample=True, temperature=0.7, top_p=0.9),
        dict(max_new_tokens=12, num_beams=3),
        dict(max_new_tokens=12, prompt_lookup_num_tokens=3),
        dict(max_new_tokens=12, cache_implementation="static"),
        dict(max_new_tokens=4, use_cache=False),
    ],
)
@pytest.mark.parametrize("tokens", [1, 8, 11, 21])
def test_generate(models, options, tokens):
    compare(models, prompt(tokens), **options)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("beams", [1, 3])
def test_left_padding_stays(models, cache, beams):
    ids, mask, _, _ = llm_models.left_padded(3, 14, (0, 3, 9))
    compare(models, ids, attention_mask=mask, max_new_tokens=12, num_beams=beams, cache_implementation=cache)


def test_a_dict_of_masks(models):
    """As generate() makes of a 2-D mask for a static cache."""
    eager, attached = models
    ids, mask, positions, _ = llm_models.left_padded(2, 12, (0, 5))
    with torch.no_grad():
        expected = eager(ids, attention_mask=mask, position_ids=positions).logits
    seen = {
        kind: masks.visible_columns(mask == 1, window, 0)[:, None]
        for kind, window in attached.graft.programs.kinds.items()
    }
    found = attached(ids, attention_mask=seen, position_ids=positions).logits
    assert (found - expected)[mask == 1].abs().max() <= CLOSE * expected.abs().max()
    # Without the padding the result differs.
    found = attached(ids, position_ids=positions).logits
    assert (found - expected)[mask == 1].abs().max() > 0.01 * expected.abs().max()


def test_caches_of_the_caller(models):
    results = []
    for model in models:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(prompt(7, 2), past_key_values=cache)
            mine = copy.deepcopy(cache)
            model(prompt(3, 2), past_key_values=mine)
            mine.batch_repeat_interleave(2)
            mine.reorder_cache(torch.tensor([3, 0, 1, 1]))
            results.append([model(prompt(2, 4), past_key_values=mine).logits, cache.layers[0].keys])
        assert (cache.get_seq_length(), mine.get_seq_length()) == (7, 12)
    for a, b in zip(*results):
        assert (a - b).abs().max() <= CLOSE * a.abs().max()


def test_an_eager_cache_is_taken_over(models):
    eager, attached = models
    results = []
    for second in models:
        cache = StaticCache(config=eager.config, max_cache_len=40)
        with torch.no_grad():
            eager(prompt(17, 2), past_key_values=cache)
            results.append(second(prompt(2, 2), past_key_values=cache).logits)
    assert (results[0] - results[1]).abs().max() <= CLOSE * results[0].abs().max()


@pytest.fixture(scope="module")
def one_layer():
    """A model of one layer, and its programs for one bucket."""
    config = llm_models.transformers.Qwen3Config(**{**llm_models._LLAMA, "num_hidden_layers": 1})
    torch.manual_seed(0)
    model = llm_models.transformers.Qwen3ForCausalLM(config).eval()
    return model, graft.hf.export_static(model, 24, (8,))


def test_on_graft(one_layer):
    """The fixture's slow cases, with one layer and one bucket."""
    eager, programs = one_layer
    attached = copy.deepcopy(eager)
    graft.hf.attach(attached, programs, runtime="graft", threads=1)
    ids, mask, _, _ = llm_models.left_padded(2, 11, (0, 4))
    compare((eager, attached), ids, attention_mask=mask, max_new_tokens=8, cache_implementation="static")
    assert attached.graft.stats()["calls"] == {8: 2, 1: 7}


def test_programs_are_files_too(one_layer):
    """Saved as .pt2, loaded, and run by hand."""
    model, programs = one_layer
    assert set(programs.prefill) == {8} and programs.decode is programs.programs[1]
    loaded = {}
    for tokens, program in programs.programs.items():
        mutated = program.graph_signature.buffers_to_mutate or program.graph_signature.user_inputs_to_mutate
        assert not mutated, tokens
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded[tokens] = torch.export.load(file)
    ids = prompt(9)
    with torch.no_grad():
        expected = model(ids).logits
    cache = graft.hf.StaticKV.zeros(programs.layers, 1, 24, torch.float32)
    found = []
    for first, count in ((0, 8), (8, 1)):
        position = torch.arange(first, first + count)
        mask = torch.arange(24)[None, :] <= position[:, None]
        logits, rows = loaded[count].module()(
            ids[:, first : first + count], position[None], position, {"full_attention": mask[None, None]}, cache
        )
        cache.apply(rows, position)
        found.append(logits)
    assert (torch.cat(found, 1) - expected).abs().max() <= CLOSE * expected.abs().max()


def test_wrong_uses(one_layer):
    eager, programs = one_layer
    model = copy.deepcopy(eager)
    for length, buckets in ((8, (16,)), (8, (1,)), (8, ())):
        with pytest.raises(graft.InvalidArgument, match="prefill_buckets"):
            graft.hf.export_static(model, length, buckets)
    with pytest.raises(graft.InvalidArgument, match="programs of export_static"):
        graft.hf.attach(model, {})
    with pytest.raises(graft.InvalidArgument, match="runtime 'torch' or 'graft'"):
        graft.hf.attach(model, programs, runtime="onnx")
    graft.hf.attach(model, programs)
    with pytest.raises(graft.InvalidArgument, match="room for 24 tokens, 25 are needed"):
        model(prompt(25))
    with pytest.raises(graft.Unsupported, match="continuous batching.*one cache for all rows"):
        model.generate_batch([[3, 4]])
