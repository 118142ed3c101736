"""What llama-server's clients ask for: its completion endpoint, its names of paths, its fields, and the flags that its
command line has too. Its own tests are run by test/judges/llama.sh."""

from __future__ import annotations

import json

import pytest

from serving import Server
from test_data import DATA

STORY = "Once upon a time"
ASK = [{"role": "user", "content": "Once"}]


def ask(server, prompt: object, **fields: object) -> dict:
    return server.good("/completion", prompt=prompt, **fields)


def events_of(server, path: str, **fields: object) -> list[dict]:
    """Of a stream, without "[DONE]"."""
    return [event for event in server.events(path, **fields) if event != "[DONE]"]


# --- /completion ---


def test_a_story(server):
    expected = (DATA / "stories260K" / "expected.txt").read_text()
    answer = ask(server, "", temperature=0, n_predict=200)
    assert answer["content"] == expected and answer["stop"] is True and answer["stop_type"] == "limit"
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (1, 200)
    assert answer["truncated"] is False and answer["has_new_line"] == ("\n" in expected)
    assert answer["tokens"] == [] and answer["model"] == "stories" and answer["prompt"].startswith("<s>")
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["temperature"], settings["logit_bias"]) == (200, 0, [])
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == 1 and timings["predicted_n"] == 200
    assert timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0


def test_a_stream_has_an_event_for_each_token(server):
    whole = ask(server, STORY, temperature=0, n_predict=30, return_tokens=True)
    *parts, last = events_of(server, "/completion", prompt=STORY, temperature=0, n_predict=30)
    assert "".join(part["content"] for part in parts) == whole["content"] and last["content"] == ""
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert len(parts) == 30 == len(whole["tokens"]) and all(part["stop"] is False for part in parts)
    same = ("generation_settings", "timings", "stream")
    assert {k: v for k, v in last.items() if k not in (*same, "content")} == {
        k: v for k, v in whole.items() if k not in (*same, "content")
    } | {"tokens": []}


def test_prompts_in_all_forms(server):
    ids = server.good("/tokenize", content=STORY, add_special=True)["tokens"]
    one = ask(server, STORY, temperature=0, n_predict=8)
    forms = [STORY, ids, {"prompt_string": STORY}, {"content": [{"type": "text", "text": STORY}]}]
    for form in forms:
        assert ask(server, form, temperature=0, n_predict=8)["content"] == one["content"]
    many = ask(server, forms, temperature=0, n_predict=8)
    assert [answer["content"] for answer in many] == [one["content"]] * 4
    assert [answer["index"] for answer in many] == [0, 1, 2, 3]
    mixed = ask(server, [1, STORY, 2], temperature=0, n_predict=1)
    assert mixed["tokens_evaluated"] == 1 + len(ids) - 1 + 1


def test_probabilities_are_those_of_completions(server):
    choice = server.complete(STORY, temperature=0, max_tokens=4, logprobs=3)["choices"][0]["logprobs"]
    whole = ask(server, STORY, temperature=0, n_predict=4, n_probs=3)["completion_probabilities"]
    parts = events_of(server, "/completion", prompt=STORY, temperature=0, n_predict=4, n_probs=3)[:-1]
    for found in (whole, [entry for part in parts for entry in part["completion_probabilities"]]):
        assert [entry["token"] for entry in found] == choice["tokens"]
        assert [entry["logprob"] for entry in found] == pytest.approx(choice["token_logprobs"], abs=1e-6)
        for entry in found:
            assert bytes(entry["bytes"]).decode() == entry["token"] and len(entry["top_logprobs"]) == 3
            assert entry["top_logprobs"][0]["id"] == entry["id"]


def test_biases_by_id_and_by_text(server):
    (id,) = server.good("/tokenize", content="b", add_special=False)["tokens"][-1:]
    for bias in ({str(id): 100}, [[id, 100]]):
        assert ask(server, STORY, temperature=0, n_predict=3, logit_bias=bias)["content"] == " b b b"
    tokens = ask(server, STORY, temperature=0, n_predict=1, return_tokens=True)["tokens"]
    for never in ([[tokens[0], False]], {ask(server, STORY, temperature=0, n_predict=1)["content"]: -100}):
        assert ask(server, STORY, temperature=0, n_predict=1, return_tokens=True, logit_bias=never)["tokens"] != tokens


def test_the_end_of_a_text(server):
    context = server.get("/v1/models")[1]["data"][0]["max_model_len"]
    full = ask(server, [1] * (context - 3), temperature=0, ignore_eos=True)
    assert full["tokens_predicted"] == 3 and full["truncated"] is True and full["stop_type"] == "limit"
    assert all(entry["bias"] is None for entry in full["generation_settings"]["logit_bias"])
    whole = ask(server, STORY, temperature=0, n_predict=60)["content"]
    word = whole.split()[9]
    answer = ask(server, STORY, temperature=0, n_predict=60, stop=["never there", word])
    assert answer["content"] == whole[: whole.index(word)]
    assert answer["stop_type"] == "word" and answer["stopping_word"] == word
    assert ask(server, STORY, n_predict=0)["tokens_predicted"] == 0


def test_fields_that_were_asked_for(server):
    fields = ["content", "generation_settings/n_predict", "nothing", "content/x"]
    answer = ask(server, STORY, temperature=0, n_predict=2, response_fields=fields)
    assert list(answer) == ["content", "generation_settings/n_predict"] and answer["generation_settings/n_predict"] == 2


def test_a_prompt_that_shares_no_cache(server):
    prompt = "A dog that nobody has seen before ran to the shop. " * 3
    ask(server, prompt, n_predict=1)
    assert ask(server, prompt, n_predict=1, cache_prompt=False)["timings"]["cache_n"] == 0
    assert ask(server, prompt, n_predict=1, id_slot=0)["timings"]["cache_n"] > 20


def test_a_form(server):
    assert ask(server, STORY, temperature=0, n_predict=20, json_schema={"const": "42"})["content"] == '"42"'
    assert ask(server, STORY, temperature=0, n_predict=20, grammar='root ::= "a"{5}')["content"] == "aaaaa"


# --- names and fields of other endpoints ---


def test_paths_without_a_version(server):
    assert server.get("/models") == server.get("/v1/models")
    fields = {"messages": ASK, "temperature": 0, "max_tokens": 5}
    text = server.good("/v1/chat/completions", **fields)["choices"][0]["message"]["content"]
    assert server.good("/chat/completions", **fields)["choices"][0]["message"]["content"] == text
    assert server.good("/completions", prompt=STORY, n_predict=2)["tokens_predicted"] == 2
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        count = server.good(path, messages=ASK)["input_tokens"]
        assert count == len(server.good("/tokenize", content=server.good("/apply-template", messages=ASK)["prompt"])["tokens"])


def test_n_predict_is_max_tokens(server):
    for path, fields in (("/v1/completions", {"prompt": STORY}), ("/v1/chat/completions", {"messages": ASK})):
        assert server.good(path, **fields, n_predict=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    context = server.get("/v1/models")[1]["data"][0]["max_model_len"]
    answer = server.complete([1] * (context - 3), n_predict=-1, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 4


def test_timings(server):
    fields = {"messages": ASK, "max_tokens": 6, "ignore_eos": True}
    whole = server.good("/v1/chat/completions", **fields, timings_per_token=True)
    assert whole["timings"]["predicted_n"] == 6
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["usage"]["prompt_tokens"]
    assert "timings" not in server.good("/v1/chat/completions", **fields)
    first, *rest = events_of(
        server, "/v1/chat/completions", **fields, timings_per_token=True, stream_options={"include_usage": True}
    )
    assert "timings" not in first and all("timings" in event for event in rest)
    counts = [event["timings"]["predicted_n"] for event in rest]
    assert counts == sorted(counts) and counts[0] <= 2 and counts[-1] == 6


def test_parts_of_a_message_are_lines(server):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]
    prompt = server.good("/apply-template", messages=[{"role": "user", "content": parts}])["prompt"]
    assert prompt == "user: What is\nthis?\nassistant:"


def test_templates_with_tools_and_without_an_answers_beginning(tools):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    prompt = tools.good("/apply-template", model="hermes", messages=ASK, tools=[tool])["prompt"]
    assert '"name": "f"' in prompt and prompt.endswith("a:")
    # Whatever the template does with them, it is no error to name tools here.
    assert tools.good("/apply-template", model="plain", messages=ASK, tools=[tool])["prompt"]


# --- flags ---


def test_flags_of_the_server(stories, tmp_path):
    flags = ("--rows", 2, "--seed", 7, "--default-model", "stories", "--prompt-lookup", 4)
    with Server(stories, *flags) as server:
        draws = [server.complete(STORY, max_tokens=20, temperature=1)["choices"][0]["text"] for _ in range(2)]
        assert draws[0] == draws[1]
        assert ask(server, STORY, n_predict=1, seed=-1)["generation_settings"]["seed"] == 7
        assert server.complete(STORY, model="gpt-4", max_tokens=1)["model"] == "stories"
        assert server.get("/v1/models/gpt-4")[0] == 404  # it is not there for that
        expected = (DATA / "stories260K" / "expected.txt").read_text()
        assert server.complete("", temperature=0, max_tokens=200)["choices"][0]["text"] == expected
        parts = events_of(server, "/completion", prompt="", temperature=0, n_predict=200)
        assert "".join(part["content"] for part in parts) == expected and len(parts) == 201


def test_variables_of_templates_and_a_model_that_must_be_named(stories, tmp_path):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((DATA / "stories260K" / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ mood }}{% if add_generation_prompt %}:{% endif %}")
    flags = ("--tokenizer", f"stories={tmp_path}", "--chat-template-kwargs", json.dumps({"mood": "calm"}), "--require-model")
    with Server(stories, "--rows", 1, *flags) as server:
        def prompt(**fields: object) -> str:
            return server.good("/apply-template", model="stories", messages=ASK, **fields)["prompt"]

        assert prompt() == "calm:" and prompt(chat_template_kwargs={"mood": "wild"}) == "wild:"
        assert prompt(add_generation_prompt=False) == "calm"
        status, error = server.post("/v1/completions", {"prompt": STORY})
        assert status == 400 and "'model' is required" in error["error"]["message"]


def test_what_routers_add_to_requests(server):
    added = {
        "no_stop_trim": False, "return_hidden_states": False, "continue_final_message": False,
        "separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True,
    }  # fmt: skip
    plain = server.complete("Once", temperature=0, max_tokens=8)
    assert server.complete("Once", temperature=0, max_tokens=8, **added)["choices"] == plain["choices"]
    ask = {"messages": [{"role": "user", "content": "Once"}], "temperature": 0, "max_tokens": 8}
    plain = server.good("/v1/chat/completions", **ask)
    assert server.good("/v1/chat/completions", **ask, **added)["choices"] == plain["choices"]
