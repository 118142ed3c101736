"""Caches of transformers as handles on the engine: each method against the same one of an eager cache."""

import copy
import gc

import pytest
import torch
from transformers import DynamicCache, StaticCache

import graft
import llm_models
from graft.hf.cache import HandleLayer

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def models(request):
    small = llm_models.BY_NAME[request.param]
    return small.make(), graft.compile(small.make(), threads=1)


def prompt(rows, tokens):
    return torch.randint(3, llm_models.VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def both(models, use, kind=DynamicCache):
    """The logits that `use(model, cache)` ends with, of eager PyTorch and of graft."""
    results = []
    for model in models:
        cache = kind(config=model.config) if kind is DynamicCache else kind(config=model.config, max_cache_len=48)
        with torch.no_grad():
            results.append(use(model, cache))
    return results


def same(results):
    expected, found = results
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


KINDS = [DynamicCache, StaticCache]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_callers_object(models, kind):
    def use(model, cache):
        result = model(prompt(2, 12), past_key_values=cache)
        assert result.past_key_values is cache and type(cache) is kind
        assert int(cache.get_seq_length()) == 12
        return model(prompt(2, 3), past_key_values=cache).logits

    same(both(models, use, kind))
    cache = kind(config=models[1].config, **({} if kind is DynamicCache else {"max_cache_len": 48}))
    models[1](prompt(2, 5), past_key_values=cache)
    assert all(isinstance(layer, HandleLayer) for layer in cache.layers)
    assert cache.batch_size == 2
    assert not cache.is_compileable and cache.is_croppable and len(cache) == models[1].config.num_hidden_layers


def test_rows(models):
    def use(model, cache):
        model(prompt(3, 6), past_key_values=cache)
        cache.reorder_cache(torch.tensor([2, 2, 0]))
        model(prompt(3, 2), past_key_values=cache)
        cache.batch_repeat_interleave(2)
        model(prompt(6, 2), past_key_values=cache)
        cache.batch_select_indices(torch.tensor([5, 0, 3]))
        return model(prompt(3, 2), past_key_values=cache).logits

    same(both(models, use))


def test_rows_of_a_padded_batch(models):
    ids, mask, positions, _ = llm_models.left_padded(3, 9, (0, 2, 5))

    def use(model, cache):
        model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        order = torch.tensor([1, 2, 0])
        cache.reorder_cache(order)
        longer = torch.cat([mask[order], torch.ones(3, 2, dtype=torch.long)], 1)
        following = (longer.cumsum(1) - 1)[:, -2:]
        return model(prompt(3, 2), attention_mask=longer, position_ids=following, past_key_values=cache).logits

    same(both(models, use))


def test_crop_and_reset(models):
    def use(model, cache):
        model(prompt(1, 7), past_key_values=cache)
        cache.crop(-3)
        assert cache.get_seq_length() == 4
        first = model(prompt(1, 3), past_key_values=cache).logits
        cache.reset()
        assert cache.get_seq_length() == 0
        second = model(prompt(1, 5), past_key_values=cache).logits
        return torch.cat([first, second], 1)

    same(both(models, use))
    cache = DynamicCache()
    models[1](prompt(1, 4), past_key_values=cache)
    with pytest.raises(ValueError, match="at most 0"):
        cache.crop(2)


def test_copies_are_apart(models):
    def use(model, cache):
        model(prompt(2, 6), past_key_values=cache)
        mine = copy.deepcopy(cache)
        model(prompt(2, 4), past_key_values=mine)
        assert (cache.get_seq_length(), mine.get_seq_length()) == (6, 10)
        other = model(prompt(2, 3), past_key_values=cache).logits
        return torch.cat([other, model(prompt(2, 2), past_key_values=mine).logits], 1)

    same(both(models, use))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [5, 13])  # within and beyond the windows
def test_tensors_of_layers(models, kind, tokens):
    caches = []
    for model in models:
        cache = kind(config=model.config, **({} if kind is DynamicCache else {"max_cache_len": 30}))
        with torch.no_grad():
            model(prompt(2, tokens), past_key_values=cache)
            model(prompt(2, 2), past_key_values=cache)
        caches.append(cache)
    before = models[1].graft.stats()["materialized"]
    for eager, handle in zip(caches[0].layers, caches[1].layers):
        for side in ("keys", "values"):
            expected, found = getattr(eager, side), getattr(handle, side)
            assert found.shape == expected.shape and found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert models[1].graft.stats()["materialized"] == before + 2 * len(caches[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [5, 13, 30])
@pytest.mark.parametrize("pads", [(0, 0), (0, 4)])
def test_an_eager_cache_is_taken_over_once(models, kind, tokens, pads):
    eager, compiled = models
    ids, mask, positions, _ = llm_models.left_padded(2, tokens, pads)
    longer = torch.cat([mask, torch.ones(2, 3, dtype=torch.long)], 1)
    following = (longer.cumsum(1) - 1)[:, -3:]
    before = compiled.graft.stats()["imported"]
    results = []
    for second in models:
        cache = kind(config=eager.config, **({} if kind is DynamicCache else {"max_cache_len": 40}))
        with torch.no_grad():
            eager(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
            for step in range(3):
                seen, place = longer[:, : tokens + step + 1], following[:, step : step + 1]
                result = second(prompt(2, 1), attention_mask=seen, position_ids=place, past_key_values=cache)
            results.append(result.logits)
    same(results)
    assert compiled.graft.stats()["imported"] == before + 1


def test_a_static_cache_is_full(models):
    cache = StaticCache(config=models[1].config, max_cache_len=10)
    models[1](prompt(1, 9), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match="room for 10 tokens, 11 are needed"):
        models[1](prompt(1, 2), past_key_values=cache)
    assert models[1](prompt(1, 1), past_key_values=cache).logits.isfinite().all()


def test_growth_and_limits():
    model = llm_models.BY_NAME["qwen3"].make()
    cache = DynamicCache()
    compiled = graft.compile(copy.deepcopy(model), threads=1)
    results = []
    for one in (model, compiled):
        cache = DynamicCache()
        with torch.no_grad():
            one(prompt(1, 250), past_key_values=cache)
            results.append(one(prompt(1, 20), past_key_values=cache).logits)
    same(results)
    assert compiled.graft.stats()["resized"] == 1
    compiled = graft.compile(compiled, max_length=40, threads=1)
    cache = DynamicCache()
    compiled(prompt(1, 30), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match="room for 40 tokens, 41 are needed"):
        compiled(prompt(1, 11), past_key_values=cache)
    assert cache.get_seq_length() == 30


def test_sessions_are_used_again(models):
    compiled = models[1]
    gc.collect()
    compiled(prompt(1, 4))
    gc.collect()
    before = compiled.graft.stats()["sessions"]
    for _ in range(5):
        compiled(prompt(1, 4), past_key_values=DynamicCache())
        gc.collect()
    assert compiled.graft.stats()["sessions"] == before


def test_nothing_is_allocated_or_copied_per_step(models):
    compiled = models[1]
    cache = DynamicCache()
    compiled(prompt(1, 8), past_key_values=cache)
    compiled(prompt(1, 1), past_key_values=cache)
    session = cache.layers[0].state.session
    before, counted = session.counters(), compiled.graft.stats()
    for _ in range(10):
        compiled(prompt(1, 1), past_key_values=cache)
    after = session.counters()
    same_names = ("state_bytes", "arena_allocations", "arena_bytes", "io_copies", "plan_misses", "graphs_built")
    assert {name: after[name] - before[name] for name in same_names} == dict.fromkeys(same_names, 0)
    now = compiled.graft.stats()
    assert all(now[name] == counted[name] for name in ("resized", "reordered", "imported", "materialized", "sessions"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_types_of_the_cache(dtype):
    model = llm_models.BY_NAME["llama"].make()
    expected = model(prompt(1, 30)).logits
    compiled = graft.compile(model, kv_dtype=dtype, threads=1)
    found = compiled(prompt(1, 30)).logits
    assert 0 < (found - expected).abs().max() <= 0.05 * expected.abs().max()


def test_wrong_caches(models):
    compiled = models[1]
    cache = DynamicCache()
    compiled(prompt(2, 4), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match="holds 2 rows, the batch has 3"):
        compiled(prompt(3, 1), past_key_values=cache)
    with pytest.raises(graft.Unsupported, match="belongs to a model compiled with graft"):
        models[0](prompt(2, 1), past_key_values=cache)
    other = graft.compile(llm_models.BY_NAME["qwen3"].make(), threads=1)
    with pytest.raises(graft.InvalidArgument, match="another compiled model"):
        other(prompt(2, 1), past_key_values=cache)
    with pytest.raises(graft.InvalidArgument, match="expected a Cache"):
        compiled(prompt(2, 1), past_key_values=((torch.zeros(1), torch.zeros(1)),))
    few = DynamicCache(config=llm_models.transformers.LlamaConfig(num_hidden_layers=2))
    with pytest.raises(graft.InvalidArgument, match="has 2 layers"):
        compiled(prompt(1, 1), past_key_values=few)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_default_dtype_of_torch_plays_no_part(models, dtype):
    """The engine writes f32, however wide new tensors of torch are."""
    torch.set_default_dtype(dtype)
    try:

        def use(model, cache):
            model(prompt(2, 12), past_key_values=cache)
            keys, values = cache.layers[0].keys, cache.layers[-1].values
            assert keys.dtype == values.dtype == torch.float32
            logits = model(prompt(2, 3), past_key_values=cache).logits
            assert logits.dtype == torch.float32
            return torch.cat([t.flatten() for t in (keys, values, logits)])

        same(both(models, use))
    finally:
        torch.set_default_dtype(torch.float32)
