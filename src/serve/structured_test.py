"""Texts that have a form: JSON schemas, regular expressions, rules, calls of tools. What is refused is refused."""

from __future__ import annotations

import json
import re

import pytest

import graft
import serving

MESSAGES = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 3, "maximum": 99},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["age", "kind", "tags"],
    "additionalProperties": False,
}


def is_right(value: dict) -> bool:
    return (
        set(value) - {"note"} == {"age", "kind", "tags"}
        and 3 <= value["age"] <= 99
        and value["kind"] in ("cat", "dog", None)
        and len(value["tags"]) <= 3
        and all(len(tag) <= 5 for tag in value["tags"])
        and len(value.get("note", "")) <= 8
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_schema(server, seed):
    fields = {"messages": MESSAGES, "max_tokens": 300, "seed": seed, "temperature": [0, 0.7, 1.5, 2][seed],
              "response_format": {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}}  # fmt: skip
    choice = server.good("/v1/chat/completions", **fields)["choices"][0]
    assert is_right(json.loads(choice["message"]["content"])) and choice["finish_reason"] == "stop"
    events = server.events("/v1/chat/completions", **fields)[:-1]
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == choice["message"]["content"]
    text = server.complete("A pet: ", max_tokens=300, seed=seed, structured_outputs={"json": SCHEMA}, n=3, logprobs=0)
    for one in text["choices"]:
        assert is_right(json.loads(one["text"])) and "".join(one["logprobs"]["tokens"]) == one["text"]
    assert len({one["text"] for one in text["choices"]}) == 3


def test_any_object(server):
    answer = server.good("/v1/chat/completions", messages=MESSAGES, max_tokens=400, temperature=0, stop="}",
                         response_format={"type": "json_object"})  # fmt: skip
    assert answer["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"structured_outputs": {"regex": r"[A-F0-9]{8}-\d{3}"}}, r"[A-F0-9]{8}-\d{3}"),
        ({"structured_outputs": {"choice": ["red", "green", "blue and green"]}}, "red|green|blue and green"),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | [xy]{2}'}}, r"\(*[xy]{2}\)*"),
        ({"structured_outputs": {"grammar": 'start: A "-" start | A\nA: "x".."z" ~ 2\n'}}, r"[xyz]{2}(-[xyz]{2})*"),
        ({"grammar": 'root ::= item ("," item){3}\nitem ::= [0-9]+ "!"'}, r"\d+!(,\d+!){3}"),
        ({"json_schema": {"type": "string", "pattern": "^[a-c]{3}$"}}, '"[a-c]{3}"'),
    ],
)
def test_other_forms(server, form, pattern):
    for temperature in (0, 1):
        choice = server.complete("x", temperature=temperature, seed=1, max_tokens=60, **form)["choices"][0]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, choice["text"])
        else:
            assert any(c in pattern for c in "!(")  # endless ones


def test_a_form_does_not_depend_on_what_runs_beside_it(server):
    import concurrent.futures

    requests = [{"prompt": "x" * (1 + i), "max_tokens": 80, "seed": i, "temperature": 1} for i in range(12)]
    for request in requests[::2]:
        request["structured_outputs"] = {"json": SCHEMA}
    alone = [server.complete(**request)["choices"][0]["text"] for request in requests]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda request: server.complete(**request)["choices"][0]["text"], requests))
    assert together == alone


OBJECT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
REFUSED = [
    ({"response_format": {"type": "json_schema"}}, "'response_format.json_schema' is required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "json_schema.schema' is required"),
    ({"response_format": {"type": "xml"}}, "text, json_object and json_schema are supported"),
    ({"response_format": {"type": "text", "more": 1}}, "unknown parameter 'response_format.more'"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, "'not'"),
    ({"structured_outputs": {"json": {"type": "object", "patternProperties": {"a": {}}}}}, "'patternProperties'"),
    ({"structured_outputs": {"json": {"$ref": "http://x/y"}}}, "'http://x/y'"),
    ({"structured_outputs": {"json": "{"}}, "not valid JSON"),
    ({"structured_outputs": {"json": 3}}, "must be a JSON schema, found an integer"),
    ({"structured_outputs": {"regex": "(?=a)"}}, "look-around"),
    ({"structured_outputs": {"regex": "("}}, "expected ')'"),
    ({"structured_outputs": {"choice": []}}, "from 1 to"),
    ({"structured_outputs": {"choice": [1]}}, "must hold strings"),
    ({"structured_outputs": {}}, "says no form"),
    ({"structured_outputs": {"lark": "start: x"}}, "unknown parameter 'structured_outputs.lark'"),
    ({"structured_outputs": {"grammar": "start: x"}}, "no rule 'x'"),
    ({"structured_outputs": {"grammar": "start: /a/i"}}, "flags"),
    ({"grammar": "root ::= x"}, "no rule 'x'"),
    ({"grammar": 'root ::= root "a" | "b"'}, "left recursion"),
    ({"grammar": 'root ::= "a"', "response_format": OBJECT}, "one of them is allowed"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused(server, change, message):
    status, error = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, **change})
    assert status == 400 and message in error["error"]["message"], error


# --- tools ---

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a town.", "parameters": {
        "type": "object", "properties": {"town": {"enum": ["Bonn", "Kiel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["town", "days"]}}},
    {"type": "function", "function": {"name": "clock"}},
]  # fmt: skip


def assembled(events: list) -> dict:
    message: dict = {"content": "", "tool_calls": []}
    for event in events[:-1]:
        delta = event["choices"][0]["delta"]
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"]) and call["function"]["arguments"] == ""
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            else:
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


FAMILIES = "hermes llama mistral mistral_args deepseek deepseek_r1 gemma function_gemma qwen_xml harmony".split()


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("choice", ["required", "weather"])
def test_calls_that_must_come(tools, model, choice):
    named = {"type": "function", "function": {"name": choice}}
    fields = {"model": model, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 200, "seed": 2, "temperature": 1,
              "tool_choice": choice if choice == "required" else named, "parallel_tool_calls": False}  # fmt: skip
    answer = tools.good("/v1/chat/completions", **fields)["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"]
    if model.startswith("mistral"):
        assert re.fullmatch("[a-z0-9]{9}", call["id"])
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments["town"] in ("Bonn", "Kiel") and 1 <= arguments["days"] <= 9
    else:
        assert choice == "required" and arguments == {}
    events = tools.events("/v1/chat/completions", **fields)
    assert assembled(events)["tool_calls"] == [call["function"]]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    parts = sum(len(e["choices"][0]["delta"].get("tool_calls", [])) for e in events[:-1])
    assert parts > 2 or choice == "required" or "gemma" in model  # whose arguments become JSON when they are complete


def forced(on, model, text, **fields):
    """The answer to a model that is made to write this text."""
    fields = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 300,
              "structured_outputs": {"choice": [text]}, **fields}  # fmt: skip
    answer = on.good("/v1/chat/completions", **fields)["choices"][0]
    streamed = assembled(on.events("/v1/chat/completions", **fields))
    message = answer["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert streamed["content"] == (message["content"] or "") and streamed["tool_calls"] == calls
    assert streamed.get("reasoning_content") == message.get("reasoning_content")
    return answer


def test_calls_are_found_in_texts(tools):
    # The context has 512 tokens, which are single letters here.
    call, few = '<tool_call>\n{"name": "f", "arguments": {"a": [2]}}\n</tool_call>', [TOOLS[1]]
    answer = forced(tools, "hermes", f"Let me see.\n{call}\n{call}", tools=few)
    assert answer["message"]["content"] == "Let me see." and answer["finish_reason"] == "tool_calls"
    assert [c["function"]["name"] for c in answer["message"]["tool_calls"]] == ["f"] * 2
    assert json.loads(answer["message"]["tool_calls"][1]["function"]["arguments"]) == {"a": [2]}
    assert len({c["id"] for c in answer["message"]["tool_calls"]}) == 2
    # Without tools it is a text like any other.
    assert forced(tools, "hermes", call)["message"]["content"] == call
    assert forced(tools, "hermes", call, tools=few, tool_choice="none")["message"]["content"] == call
    for text in ("Just a text.", "<tool_call> is a tag", "1 < 2", "<tool_call>\n[1]</tool_call>"):
        assert forced(tools, "hermes", text, tools=few)["message"]["content"] == text
    one = '{"name": "clock", "parameters": {}}'
    answer = forced(tools, "llama", f"{one}; {one}", tools=few)
    assert [c["function"] for c in answer["message"]["tool_calls"]] == [{"name": "clock", "arguments": "{}"}] * 2
    assert forced(tools, "llama", '{"a": 1}', tools=few)["message"]["content"] == '{"a": 1}'
    answer = forced(tools, "mistral", '[{"name": "clock", "arguments": {}}, {"arguments": {"a": "]}"}, "name": "b"}]', tools=few)
    assert [c["function"]["arguments"] for c in answer["message"]["tool_calls"]] == ["{}", '{"a":"]}"}']


CALLS = {
    "mistral_args": 'Well. [TOOL_CALLS]f[ARGS]{"a": [2]}[TOOL_CALLS]clock[ARGS]{}',
    "deepseek": "Well. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": [2]}<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock"
    "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_r1": "Well. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": [2]}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gemma": "Well. <|tool_call>call:f{a:[2]}<tool_call|><|tool_call>call:clock{}<tool_call|>",
    "function_gemma": "Well. <start_function_call>call:f{a:[2]}<end_function_call><start_function_call>call:clock{}<end_function_call>",
    "qwen_xml": "Well. <tool_call>\n<function=f>\n<parameter=a>\n[2]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
    "<function=clock>\n</function>\n</tool_call>",
    "harmony": "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
    '{"a": [2]}<|call|><|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>',
}
F = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}


@pytest.mark.parametrize("model", CALLS)
def test_calls_of_other_families(tools, model):
    answer = forced(tools, model, CALLS[model], tools=[F, TOOLS[1]])
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer["message"]["tool_calls"]]
    assert answer["message"]["content"] == "Well." and calls == [("f", {"a": [2]}), ("clock", {})]
    assert answer["finish_reason"] == "tool_calls"
    if model != "harmony":  # whose channels are taken apart without tools too
        assert forced(tools, model, CALLS[model])["message"]["content"] == CALLS[model]


def test_channels_without_tools(tools):
    text = "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two."
    message = forced(tools, "harmony", text)["message"]
    assert message["reasoning_content"] == "One." and message["content"] == "Two."
    messages = [*MESSAGES, {"role": "assistant", "content": "Two.", "reasoning_content": "One."}]
    assert "Two.One." in tools.good("/apply-template", model="harmony", messages=messages)["prompt"]


def test_tags_that_are_special_tokens_are_found(tmp_path):
    """Special tokens are no part of a text, but for those that say that a call begins."""
    serving.export_stories(tmp_path)
    template = "{{ tools }} <|tool_call>call: {{ messages[0].content }}"
    folder, number, tag = tmp_path / "stories", 511, "<|tool_call>"
    description = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, flags = description["model"]["vocab"], ("single_word", "lstrip", "rstrip", "normalized")
    description["model"]["vocab"] = {tag if i == number else text: i for text, i in vocabulary.items()}
    description["added_tokens"].append({"id": number, "content": tag, "special": True, **dict.fromkeys(flags, False)})
    for file, text in (("tokenizer.json", json.dumps(description)), ("chat_template.jinja", template)):
        (folder / file).unlink()
        (folder / file).write_text(text)
    fields = {"messages": MESSAGES, "max_tokens": 2, "logit_bias": {str(number): 100}}
    with serving.Server(graft.export_llm(folder, tmp_path / "special.pte")) as server:
        answer = server.good("/v1/chat/completions", **fields, tools=[F])["choices"][0]
        assert answer["message"]["content"] == tag * 2
        assert not server.good("/v1/chat/completions", **fields)["choices"][0]["message"]["content"]


def test_reasoning_is_split_out(tools):
    answer = forced(tools, "thinker", "<think>\nOne, two.\n</think>\n\nThree.")
    message = {"role": "assistant", "content": "Three.", "refusal": None, "annotations": [], "reasoning_content": "One, two."}
    assert answer["message"] == message
    answer = forced(tools, "thinker", "<think>a</think>\n<tool_call>{\"name\": \"clock\"}</tool_call>", tools=[TOOLS[1]])
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    assert answer["message"]["reasoning_content"] == "a" and answer["message"]["content"] is None
    assert forced(tools, "thinker", "<thing>")["message"]["content"] == "<thing>"
    assert forced(tools, "plain", "<think>x</think>y")["message"]["content"] == "<think>x</think>y"


def test_the_template_is_told_of_tools_and_calls(tools):
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Kiel", "days": 1}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]  # fmt: skip
    prompt = tools.good("/apply-template", model="hermes", messages=messages)["prompt"]
    assert '<tool_call>{"name": "weather", "arguments": {"town": "Kiel", "days": 1}}</tool_call>' in prompt
    assert "tool: Rain." in prompt
    with_tools = tools.good("/v1/chat/completions", model="hermes", messages=messages, max_tokens=1, tools=TOOLS)
    without = tools.good("/v1/chat/completions", model="hermes", messages=messages, max_tokens=1)
    assert with_tools["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 50


def test_the_openai_client_calls_tools(tools):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{tools.port}/v1", api_key="none", max_retries=0)
    fields = {"model": "hermes", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "seed": 1, "max_tokens": 200}
    answer = client.chat.completions.create(**fields, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    json.loads(call.function.arguments)
    with client.chat.completions.stream(**fields, parallel_tool_calls=False) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == call.function.name


WRONG_TOOLS = [
    ({"model": "plain"}, "knows no tools"),
    ({"tools": [{"type": "web"}]}, "only function is supported"),
    ({"tools": [{"type": "function", "function": {}}]}, "'tools[0].function.name' is required"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "'weather' twice"),
    ({"tools": [TOOLS[0]] * 129}, "at most 128"),
    ({"tools": []}, "needs 'tools'"),
    ({"tool_choice": "any"}, "must be none, auto, required"),
    ({"tool_choice": 3}, "must be a string or an object"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "names 'x', which is no tool"),
    ({"grammar": 'root ::= "a"'}, "cannot have another form"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]}, "'not'"),
    ({"messages": [{"role": "assistant", "content": None}]}, "'messages[0].content' is required"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "of assistants alone"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]}, "must be a JSON object"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_TOOLS)
def test_wrong_tools(tools, change, message):
    fields = {"model": "hermes", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 2, **change}
    status, error = tools.post("/v1/chat/completions", fields)
    assert status == 400 and message in error["error"]["message"], error
