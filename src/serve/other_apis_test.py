"""OpenAI's Responses API, Anthropic's messages, and the page."""

from __future__ import annotations

import json
import re

import pytest

INPUT = "Tell me a story."
TOOL = {"type": "object", "properties": {"town": {"enum": ["Bonn", "Kiel"]}}, "required": ["town"]}


def named_events(server, path: str, **fields: object) -> list[tuple[str, dict]]:
    answer, data = server.request(
        "POST", path, json.dumps({**fields, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    assert answer.status == 200, data
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    found = [re.fullmatch(r"event: (\S+)\ndata: (.*)", part).groups() for part in parts]
    events = [(name, json.loads(text)) for name, text in found]
    assert all(event["type"] == name for name, event in events)
    return events


# --- /v1/responses ---


def test_a_response(server):
    fields = {"input": INPUT, "temperature": 0, "max_output_tokens": 20, "instructions": "Be kind."}
    answer = server.good("/v1/responses", **fields)
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": INPUT}]
    expected = server.good("/v1/chat/completions", messages=chat, temperature=0, max_tokens=20)
    (item,) = answer["output"]
    assert item["type"] == "message" and item["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["output_tokens"] == 20 and answer["instructions"] == "Be kind."
    events = named_events(server, "/v1/responses", **fields)
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    names = [name for name, _ in events]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert names[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert "".join(e["delta"] for name, e in events if name == "response.output_text.delta") == item["content"][0]["text"]
    last = events[-1][1]["response"]
    assert last["output"][0]["content"] == item["content"] and last["usage"]["output_tokens"] == 20


def test_items_are_messages(server):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]},
        {"role": "user", "content": "Go on"},
    ]
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}]
    answer = server.good("/v1/responses", input=items, temperature=0, max_output_tokens=8)
    expected = server.good("/v1/chat/completions", messages=chat, temperature=0, max_tokens=8)
    assert answer["output"][0]["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    assert answer["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]


def test_a_response_with_a_form_and_one_with_a_call(tools):
    form = {"format": {"type": "json_schema", "name": "x", "schema": TOOL, "strict": True}}
    answer = tools.good("/v1/responses", model="hermes", input=INPUT, text=form)
    assert False is answer["store"] and json.loads(answer["output"][0]["content"][0]["text"])["town"] in ("Bonn", "Kiel")
    fields = {"model": "hermes", "input": INPUT, "tool_choice": {"type": "function", "name": "weather"},
              "tools": [{"type": "function", "name": "weather", "parameters": TOOL}], "temperature": 0}  # fmt: skip
    answer = tools.good("/v1/responses", **fields)
    (call,) = answer["output"]
    assert call["type"] == "function_call" and call["name"] == "weather" and answer["status"] == "completed"
    assert json.loads(call["arguments"])["town"] in ("Bonn", "Kiel")
    events = named_events(tools, "/v1/responses", **fields)
    deltas = [e["delta"] for name, e in events if name == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"] and events[-1][0] == "response.completed"
    more = [{"role": "user", "content": INPUT}, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}]
    assert tools.good("/v1/responses", model="hermes", input=more, max_output_tokens=5)["status"] == "incomplete"


def test_responses_with_the_openai_client(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    fields = {"model": "stories", "input": INPUT, "temperature": 0, "max_output_tokens": 12}
    answer = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == answer.output_text and answer.usage.output_tokens == 12


# --- /v1/messages ---


def test_a_message(server):
    fields = {"system": "Be kind.", "messages": [{"role": "user", "content": [{"type": "text", "text": INPUT}]}],
              "temperature": 0, "max_tokens": 20}  # fmt: skip
    answer = server.good("/v1/messages", **fields)
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": INPUT}]
    expected = server.good("/v1/chat/completions", messages=chat, temperature=0, max_tokens=20)
    text = expected["choices"][0]["message"]["content"]
    assert answer["content"] == [{"type": "text", "text": text, "citations": None}] and answer["stop_reason"] == "max_tokens"
    assert answer["type"] == "message" and answer["role"] == "assistant" and answer["usage"]["output_tokens"] == 20
    count = server.good("/v1/messages/count_tokens", system="Be kind.", messages=fields["messages"])
    assert count == {"input_tokens": expected["usage"]["prompt_tokens"]}
    events = named_events(server, "/v1/messages", **fields)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(e["delta"]["text"] for name, e in events if name == "content_block_delta") == text
    assert events[-2][1]["delta"]["stop_reason"] == "max_tokens"
    word = text.split()[3]
    stopped = server.good("/v1/messages", **{**fields, "stop_sequences": [word]})
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == word


def test_tools_in_messages(tools):
    fields = {"model": "hermes", "messages": [{"role": "user", "content": INPUT}], "max_tokens": 100, "temperature": 0,
              "tools": [{"name": "weather", "input_schema": TOOL}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}  # fmt: skip
    answer = tools.good("/v1/messages", **fields)
    (use,) = answer["content"]
    assert use["type"] == "tool_use" and use["input"]["town"] in ("Bonn", "Kiel") and answer["stop_reason"] == "tool_use"
    events = named_events(tools, "/v1/messages", **fields)
    parts = [e["delta"]["partial_json"] for name, e in events if name == "content_block_delta"]
    assert json.loads("".join(parts)) == use["input"]
    messages = [
        *fields["messages"],
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "Rain."},
                                     {"type": "text", "text": "Thanks"}]},
    ]  # fmt: skip
    more = tools.good("/v1/messages/count_tokens", model="hermes", messages=messages)
    assert more["input_tokens"] > answer["usage"]["input_tokens"] // 2


def test_messages_with_reasoning(tools):
    fields = {"model": "thinker", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "temperature": 0}
    assert tools.good("/v1/messages", **fields)["content"][0]["type"] == "text"


def test_messages_with_anthropics_client(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0)
    # Its newest versions have no argument for the temperature.
    fields = {"model": "stories", "messages": [{"role": "user", "content": INPUT}], "max_tokens": 12, "extra_body": {"temperature": 0}}
    answer = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**{**fields, "extra_body": {"temperature": 3}})
    assert error.value.body["type"] == "error" and error.value.body["error"]["param"] == "temperature"


# --- the page ---


def test_the_page_takes_nothing_from_elsewhere(server):
    answer, body = server.request("GET", "/")
    text = body.decode()
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert not re.search(r"https?://|src=|@import|url\(", text)
    ids = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'\$\("([^"]+)"\)', text)) <= ids
    # Everything that can be used has a name for those who do not see it.
    for control in re.findall(r"<(?:input|textarea|select)[^>]*>", text):
        name = re.search(r'id="([^"]+)"', control).group(1)
        assert f'for="{name}"' in text or re.search(rf"<label>[^<]*{re.escape(control)}", text), control
