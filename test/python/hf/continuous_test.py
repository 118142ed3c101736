"""transformers' continuous batching on compiled models, beside `generate()` of eager PyTorch."""

import copy
import re

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching.requests import RequestStatus

import graft
import llm_models

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = [5, 1, 9, 3, 17, 2, 8, 4, 6, 12, 7, 30, 11, 10, 15, 13, 14, 21, 19, 23]  # more than run at once


@pytest.fixture(scope="module", params=["qwen3", "mistral", "gpt2"])
def pair(request):
    eager = llm_models.BY_NAME[request.param].make()
    return eager, graft.compile(copy.deepcopy(eager), threads=1, route="fast")


def prompts(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, llm_models.VOCAB, (n,), generator=generator).tolist() for n in lengths]


def config(**settings):
    return GenerationConfig(**{"max_new_tokens": 10, "eos_token_id": -1, "do_sample": False, **settings})


def alone(model, prompt, **settings):
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **settings}
    return model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()


def test_each_text_is_that_of_its_prompt_alone(pair):
    eager, compiled = pair
    found = compiled.generate_batch(prompts(), generation_config=config())
    assert list(found) == [f"req_{i}" for i in range(len(LENGTHS))]
    for prompt, result in zip(prompts(), found.values()):
        assert result.prompt_ids == prompt and result.error is None and result.status == RequestStatus.FINISHED
        assert result.generated_tokens == alone(eager, prompt)


def test_texts_that_end(pair):
    eager, compiled = pair
    free = [alone(eager, prompt) for prompt in prompts()]
    ends = [free[0][4], free[2][2]]
    found = compiled.generate_batch(prompts(), generation_config=config(eos_token_id=ends))
    lengths = []
    for prompt, result in zip(prompts(), found.values()):
        assert result.generated_tokens == alone(eager, prompt, eos_token_id=ends)
        lengths.append(len(result.generated_tokens))
    assert min(lengths) < 10
    found = compiled.generate_batch(prompts()[:3], generation_config=config(), max_new_tokens=4)
    assert [result.generated_tokens for result in found.values()] == [text[:4] for text in free[:3]]


def test_a_penalty_of_repetitions(pair):
    eager, compiled = pair
    found = compiled.generate_batch(prompts()[:4], generation_config=config(repetition_penalty=0.4))
    for prompt, result in zip(prompts(), found.values()):
        assert result.generated_tokens == alone(eager, prompt, repetition_penalty=0.4)
    assert any(one.generated_tokens != alone(eager, prompt) for prompt, one in zip(prompts(), found.values()))


def test_several_texts_of_a_prompt_are_drawn(pair):
    _, compiled = pair
    settings = config(do_sample=True, temperature=1.5, num_return_sequences=3)

    def draw(seed):
        torch.manual_seed(seed)
        return {name: one.generated_tokens for name, one in compiled.generate_batch(prompts()[:2], settings).items()}

    first = draw(1)
    assert list(first) == ["req_0__child#0", "req_0__child#1", "req_0", "req_1__child#0", "req_1__child#1", "req_1"]
    assert len({tuple(tokens) for tokens in list(first.values())[:3]}) == 3
    assert draw(1) == first and draw(2) != first


def test_a_manager_takes_requests_while_it_runs(pair):
    eager, compiled = pair
    with compiled.continuous_batching_context_manager(generation_config=config()) as manager:
        plans = manager._generator.plans()
        first = manager.add_request(prompts()[0], streaming=True, record_timestamps=True)
        parts = list(manager.request_id_iter(first))
        assert [len(part.generated_tokens) for part in parts] == list(range(1, 11)) and len(parts[-1].timestamps) == 10
        assert parts[-1].generated_tokens == alone(eager, prompts()[0])
        ids = manager.add_requests(prompts()[1:4], max_new_tokens=6)
        own = manager.add_request(prompts()[4], request_id="mine", eos_token_id=alone(eager, prompts()[4])[3])
        results = {}
        while len(results) < 4:
            result = manager.get_result(timeout=10)
            results[result.request_id] = result
        for prompt, name in zip(prompts()[1:4], ids):
            assert results[name].generated_tokens == alone(eager, prompt, max_new_tokens=6)
        end = alone(eager, prompts()[4])[3]
        assert own == "mine" and results[own].generated_tokens == alone(eager, prompts()[4], eos_token_id=end)
        assert manager.get_result(timeout=0.01) is None
        assert manager._generator.plans() == plans  # made by warmup()
    assert not manager.is_running() and manager.add_request(prompts()[0]) is None


def test_requests_are_cancelled(pair):
    eager, compiled = pair
    manager = compiled.init_continuous_batching(generation_config=config())
    manager.add_request(prompts()[0], request_id="waits")
    manager.cancel_request("waits")
    assert manager._results.get_nowait().generated_tokens == []
    manager.start()
    long = manager.add_request(prompts()[1], max_new_tokens=40, streaming=True)
    for part in manager.request_id_iter(long):
        if len(part.generated_tokens) == 3:
            manager.cancel_request(long)
    assert 3 <= len(part.generated_tokens) and part.is_finished()
    assert part.generated_tokens[:3] == alone(eager, prompts()[1])[:3]
    manager.add_request(prompts()[2], request_id="never", max_new_tokens=40)
    manager.stop(hard_stop=True)
    last = list(manager)
    assert [one.request_id for one in last] == ["never"] and last[0].is_finished()


@pytest.mark.parametrize(
    ("prompt", "settings", "error"),
    [
        ([], {}, "no tokens"),
        ([10**6], {}, "1000000"),
        ([3], {"max_new_tokens": 10**9}, "expected at most .* tokens of prompt and text, found 1000000001"),
    ],
)
def test_wrong_requests_fail_alone(pair, prompt, settings, error):
    eager, compiled = pair
    with compiled.continuous_batching_context_manager(generation_config=config(), warmup=False) as manager:
        wrong, right = manager.add_request(prompt, **settings), manager.add_request(prompts()[0])
        results = {}
        while len(results) < 2:
            result = manager.get_result(timeout=10)
            results[result.request_id] = result
    assert results[wrong].status == RequestStatus.FAILED and results[wrong].error
    assert results[right].generated_tokens == alone(eager, prompts()[0])
    assert re.search(error, results[wrong].error), results[wrong].error


def test_what_cannot_be_said(pair):
    _, compiled = pair
    for settings in (dict(num_beams=2), dict(no_repeat_ngram_size=2), dict(bad_words_ids=[[3]]), dict(min_new_tokens=3)):
        with pytest.raises(graft.Unsupported, match=f"no {next(iter(settings))}"):
            compiled.generate_batch(prompts()[:1], generation_config=config(**settings))
    manager = compiled.init_continuous_batching(generation_config=config())
    with pytest.raises(graft.InvalidArgument, match="settings among"):
        manager.add_request([3], length_penalty=2.0)
    manager.add_request([3], request_id="a")
    with pytest.raises(graft.InvalidArgument, match="that no request has"):
        manager.add_request([3], request_id="a")


def test_positions_that_do_not_count_from_zero():
    with pytest.raises(graft.Unsupported, match="positions that count tokens"):
        model = llm_models.BY_NAME["qwen3"].make()
        compiled = graft.compile(model, threads=1)
        compiled.graft.positions = None
        compiled.generate_batch([[3, 4]])


def test_weights_as_they_are(pair):
    eager, compiled = (copy.deepcopy(one) for one in pair)
    before = compiled.generate_batch(prompts()[:1], generation_config=config())["req_0"].generated_tokens
    with torch.no_grad():
        for model in (eager, compiled):
            model.get_input_embeddings().weight.copy_(model.get_input_embeddings().weight.flip(0).clone())
    found = compiled.generate_batch(prompts()[:1], generation_config=config())["req_0"].generated_tokens
    assert found == alone(eager, prompts()[0]) and found != before
