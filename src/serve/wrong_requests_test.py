"""Requests that the server refuses: by status and by the part of the message that names what is wrong."""

from __future__ import annotations

import json
import re

import pytest

from serving import Server

MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}
INPUT = "input_1"
# What is right, which each request of the table changes.
RIGHT = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {**MESSAGES, "max_tokens": 2},
    "/v1/chat/completions/input_tokens": MESSAGES,
    "/completion": {"prompt": "Hi", "n_predict": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {**MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/embeddings": {"model": "minilm", "input": "text"},
    "/v1/rerank": {"model": "minilm", "query": "x", "documents": ["y"]},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": MESSAGES,
    "/v2/models/net/infer": {"inputs": [{"name": INPUT, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
}
WRONG = [
    # Completions: prompts, lengths, sampling, log-probabilities, ends, biases.
    ("/v1/completions", {"prompt": None}, "'prompt' is required"),
    ("/v1/completions", {"prompt": 3}, "'prompt' must be a string or an array of token ids, found an integer"),
    ("/v1/completions", {"prompt": {"a": 1}}, "found an object"),
    ("/v1/completions", {"prompt": []}, "has no token ids"),
    ("/v1/completions", {"prompt": [[]]}, "'prompt[0]' has no token ids"),
    ("/v1/completions", {"prompt": [1, 99999]}, "token ids from 0 to 511, found 99999"),
    ("/v1/completions", {"prompt": [1, -1]}, "found -1"),
    ("/v1/completions", {"prompt": [1, 2.5]}, "found 2.5"),
    ("/v1/completions", {"prompt": [1, "a"]}, "found a string"),
    ("/v1/completions", {"prompt": ["a", 1]}, "'prompt[1]' must be a string"),
    ("/v1/completions", {"prompt": ["a"] * 129}, "at most 128"),
    ("/v1/completions", {"prompt": ["a"] * 20, "n": 7}, "asks for 140 texts"),
    ("/v1/completions", {"max_tokens": -1}, "'max_tokens' must be from 0"),
    ("/v1/completions", {"max_tokens": "5"}, "'max_tokens' must be an integer, found a string"),
    ("/v1/completions", {"max_tokens": 1.5}, "must be an integer, found a number with a fraction"),
    ("/v1/completions", {"temperature": 2.1}, "'temperature' must be from 0 to 2, found 2.1"),
    ("/v1/completions", {"temperature": -0.1}, "'temperature' must be from 0"),
    ("/v1/completions", {"temperature": True}, "'temperature' must be a number, found a boolean"),
    ("/v1/completions", {"top_p": 1.01}, "'top_p' must be from 0 to 1"),
    ("/v1/completions", {"top_k": -2}, "'top_k' must be from -1"),
    ("/v1/completions", {"top_k": 0.5}, "'top_k' must be an integer"),
    ("/v1/completions", {"min_p": 2}, "'min_p' must be from 0 to 1"),
    ("/v1/completions", {"priority": 1.5}, "'priority' must be an integer"),
    ("/v1/chat/completions", {"priority": 2**40}, "'priority' must be from -2147483648 to 2147483647"),
    ("/v1/completions", {"seed": 2**63}, "'seed' must be from"),
    ("/v1/completions", {"seed": "x"}, "'seed' must be an integer"),
    ("/v1/completions", {"n": 0}, "'n' must be from 1"),
    ("/v1/completions", {"n": 129}, "'n' must be from 1 to 128"),
    ("/v1/completions", {"best_of": 3}, "'best_of' is supported only where it is 'n'"),
    ("/v1/completions", {"logprobs": 21}, "'logprobs' must be from 0 to 20"),
    ("/v1/completions", {"logprobs": True}, "'logprobs' must be an integer"),
    ("/v1/completions", {"echo": 1}, "'echo' must be a boolean"),
    ("/v1/completions", {"suffix": "end"}, "'suffix' is not supported"),
    ("/v1/completions", {"stream": "yes"}, "'stream' must be a boolean"),
    ("/v1/completions", {"stream_options": {}}, "allowed only with 'stream': true"),
    ("/v1/completions", {"stream": True, "stream_options": {"include": 1}}, "unknown parameter 'stream_options.include'"),
    ("/v1/completions", {"stop": ""}, "'stop' has an empty string"),
    ("/v1/completions", {"stop": ["a", 1]}, "'stop' must be a string or an array of strings"),
    ("/v1/completions", {"stop": ["a"] * 17}, "at most 16"),
    ("/v1/completions", {"stop": {"a": 1}}, "found an object"),
    ("/v1/completions", {"presence_penalty": 3}, "'presence_penalty' must be from -2 to 2"),
    ("/v1/completions", {"frequency_penalty": -2.5}, "'frequency_penalty' must be from -2 to 2"),
    ("/v1/completions", {"repetition_penalty": 0}, "'repetition_penalty' must be from"),
    ("/v1/completions", {"logit_bias": [1]}, "'logit_bias' must be an object"),
    ("/v1/completions", {"logit_bias": {"x": 1}}, "has the key 'x'"),
    ("/v1/completions", {"logit_bias": {"512": 1}}, "has the key '512'"),
    ("/v1/completions", {"logit_bias": {"5": 101}}, "from -100 to 100, found 101"),
    ("/v1/completions", {"logit_bias": {"5": None}}, "found null"),
    ("/v1/completions", {"user": 7}, "'user' must be a string"),
    ("/v1/completions", {"stop_token_ids": ["a"]}, "'stop_token_ids' must hold token ids"),
    ("/v1/completions", {"model": 5}, "'model' must be a string"),
    ("/v1/completions", {"n_predict": 5}, "'n_predict' and 'max_tokens' say different things"),
    ("/v1/completions", {"messages": []}, "unknown parameter 'messages'"),
    ("/v1/chat/completions", {"messages": None}, "'messages' is required"),
    ("/v1/chat/completions", {"messages": []}, "at least one message"),
    ("/v1/chat/completions", {"messages": "Hi"}, "'messages' must be an array"),
    ("/v1/chat/completions", {"messages": ["Hi"]}, "'messages[0]' must be an object"),
    ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "'messages[0].role' is required"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "'messages[0].content' is required"),
    ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "roles are system, developer"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "'messages[0].content' must be a string or"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "weight": 1}]}, "'messages[0].weight'"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is supported"),
    ("/v1/chat/completions", {"top_logprobs": 2}, "'top_logprobs' is allowed only with"),
    ("/v1/chat/completions", {"logprobs": 2}, "'logprobs' must be a boolean"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "'top_logprobs' must be from 0 to 20"),
    ("/v1/chat/completions", {"max_completion_tokens": 3}, "say different things"),
    ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "text, json_object and json_schema are supported"),
    ("/v1/chat/completions", {"tools": [{"type": "function"}]}, "'tools[0].function' is required"),
    ("/v1/chat/completions", {"tool_choice": "auto"}, "'tool_choice' needs 'tools'"),
    ("/v1/chat/completions", {"parallel_tool_calls": 1}, "'parallel_tool_calls' must be a boolean"),
    ("/v1/chat/completions", {"modalities": ["audio"]}, "'modalities' is supported as"),
    ("/v1/chat/completions", {"audio": {}}, "'audio' is not supported"),
    ("/v1/chat/completions", {"reasoning_effort": "low"}, "'reasoning_effort' is not supported"),
    ("/v1/chat/completions", {"store": True}, "'store' is not supported"),
    ("/v1/chat/completions", {"service_tier": "flex"}, "only auto and default"),
    ("/v1/chat/completions", {"metadata": {"a": 1}}, "'metadata.a' must be a string"),
    ("/v1/chat/completions", {"chat_template_kwargs": {"messages": []}}, "must not have 'messages'"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "is of assistants alone"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": ""}}]}, "must have from 1 to 256 bytes"),
    ("/v1/chat/completions", {"tools": [{"type": "retrieval"}]}, "only function is supported"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "the function 'f' twice"),
    ("/v1/chat/completions", {"stop": "a", "n": 200}, "'n' must be from 1 to 128"),
    ("/v1/chat/completions", {"n_predict": -2}, "'n_predict' must be from -1"),
    ("/v1/chat/completions", {"id_slot": "a"}, "'id_slot' must be an integer"),
    ("/v1/chat/completions", {"cache_prompt": 1}, "'cache_prompt' must be a boolean"),
    ("/v1/chat/completions", {"no_stop_trim": True}, "'no_stop_trim' is not supported"),
    ("/v1/completions", {"separate_reasoning": False}, "'separate_reasoning' is not supported"),
    ("/v1/chat/completions", {"timings_per_token": "x"}, "'timings_per_token' must be a boolean"),
    ("/v1/chat/completions/input_tokens", {"messages": []}, "at least one message"),
    # The form of texts.
    ("/v1/completions", {"response_format": {"type": "json_schema"}}, "'response_format.json_schema' is required"),
    ("/v1/completions", {"response_format": {"type": "json_object", "schema": 3}}, "must be a JSON schema"),
    ("/v1/completions", {"json_schema": {"type": "hiccup"}}, "hiccup"),
    ("/v1/completions", {"json_schema": {"not": {}}}, "'not'"),
    ("/v1/completions", {"json_schema": {"items": []}}, "expected an array of schemas"),
    ("/v1/completions", {"json_schema": {}, "grammar": 'root ::= "a"'}, "both say what form the text has"),
    ("/v1/completions", {"grammar": "root ::= ("}, "'grammar'"),
    ("/v1/completions", {"structured_outputs": {}}, "says no form of the text"),
    ("/v1/completions", {"structured_outputs": {"choice": []}}, "must have from 1 to"),
    ("/v1/completions", {"structured_outputs": {"regex": "(?=a)"}}, "'structured_outputs.regex'"),
    # llama-server's completion endpoint.
    ("/completion", {"prompt": None}, "'prompt' is required"),
    ("/completion", {"prompt": []}, "'prompt' must have from 1 to"),
    ("/completion", {"prompt": 3}, "an array of token ids and strings or an object, found an integer"),
    ("/completion", {"prompt": [1, 512]}, "token ids from 0 to 511, found 512"),
    ("/completion", {"prompt": {"text": "a"}}, "must have 'prompt_string' or 'content'"),
    ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "multimodal_data' is not supported"),
    ("/completion", {"prompt": {"content": [{"type": "image_url"}]}}, "only text is supported"),
    ("/completion", {"n_predict": -2}, "'n_predict' must be from -1"),
    ("/completion", {"n_probs": 21}, "'n_probs' must be from 0 to 20"),
    ("/completion", {"n": 2}, "'n' must be 1 here"),
    ("/completion", {"logit_bias": 3}, "'logit_bias' must be an object or an array"),
    ("/completion", {"logit_bias": [[1]]}, "pairs of a token and a bias"),
    ("/completion", {"logit_bias": [[1, 101]]}, "a number from -100 to 100 or false"),
    ("/completion", {"logit_bias": {"512": 1}}, "token ids from 0 to 511"),
    ("/completion", {"mirostat": 2}, "'mirostat' is not supported but for the value that turns it off"),
    ("/completion", {"post_sampling_probs": True}, "'n_probs' gives those of the model"),
    ("/completion", {"samplers": ["top_k"]}, "'samplers' is not supported"),
    ("/completion", {"response_fields": [1]}, "'response_fields' must hold strings"),
    ("/completion", {"seed": "x"}, "'seed' must be an integer"),
    ("/completion", {"suffix": "x"}, "unknown parameter 'suffix'"),
    # Responses.
    ("/v1/responses", {"input": None}, "'input' is required"),
    ("/v1/responses", {"input": 3}, "must be a string or an array of items"),
    ("/v1/responses", {"input": []}, "has no items"),
    ("/v1/responses", {"input": [{"type": "image"}]}, "'input[0].type' is 'image'"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "the model takes no pictures"),
    ("/v1/responses", {"input": [{"type": "function_call", "name": "f"}]}, "'input[0].call_id' is required"),
    ("/v1/responses", {"previous_response_id": "resp_1"}, "nothing is kept"),
    ("/v1/responses", {"background": True}, "'background' is not supported"),
    ("/v1/responses", {"truncation": "auto"}, "'truncation' is not supported"),
    ("/v1/responses", {"tools": [{"type": "web_search"}]}, "other tools are not supported"),
    ("/v1/responses", {"reasoning": {"effort": "low"}}, "'reasoning.effort'"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "'not'"),
    ("/v1/responses", {"temperature": 3}, "'temperature' must be from 0 to 2"),
    ("/v1/responses", {"max_output_tokens": 0}, "'max_output_tokens' must be from 1"),
    ("/v1/responses", {"max_tokens": 3}, "unknown parameter 'max_tokens'"),
    # Anthropic's messages.
    ("/v1/messages", {"max_tokens": None}, "'max_tokens' is required"),
    ("/v1/messages", {"max_tokens": 0}, "'max_tokens' must be from 1"),
    ("/v1/messages", {"messages": []}, "at least one message"),
    ("/v1/messages", {"messages": [{"role": "system", "content": "x"}]}, "must be user or assistant"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'messages[0].content[0].type' is 'image'"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": [1]}]}]}, "citations"),
    ("/v1/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "only custom is supported"),
    ("/v1/messages", {"tool_choice": {"type": "all"}}, "must be auto, any, tool or none"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "the chat template decides"),
    ("/v1/messages", {"stop_sequences": "AAA"}, "'stop_sequences' must be an array"),
    ("/v1/messages", {"container": "x"}, "unknown parameter 'container'"),
    ("/v1/messages/count_tokens", {"messages": None}, "'messages' is required"),
    # Vectors.
    ("/v1/embeddings", {"input": None}, "'input' is required"),
    ("/v1/embeddings", {"input": []}, "from 1 to 2048"),
    ("/v1/embeddings", {"input": ""}, "empty string"),
    ("/v1/embeddings", {"input": [[]]}, "'input[0]' has no tokens"),
    ("/v1/embeddings", {"input": [1, 99999]}, "token ids from 0 to 30521, found 99999"),
    ("/v1/embeddings", {"input": [None]}, "'input[0]' must be a string"),
    ("/v1/embeddings", {"input": {"content": "x"}}, "'input.content' must be an array"),
    ("/v1/embeddings", {"input": "word " * 600}, "too large: it has 602 tokens, the model takes"),
    ("/v1/embeddings", {"dimensions": 10}, "'dimensions' is not supported"),
    ("/v1/embeddings", {"encoding_format": "int8"}, "must be float or base64"),
    ("/v1/embeddings", {"truncate": True}, "unknown parameter 'truncate'"),
    ("/v1/embeddings", {"model": "stories"}, "is no text encoder"),
    ("/v1/rerank", {"query": ""}, "'query' is an empty string"),
    ("/v1/rerank", {"documents": []}, "from 1 to 2048"),
    ("/v1/rerank", {"documents": [3]}, "'documents[0]' must be a string or an object"),
    ("/v1/rerank", {"documents": [{"a": 1}]}, "'documents[0].text' is required"),
    ("/v1/rerank", {"documents": None}, "'documents' is required"),
    ("/v1/rerank", {"texts": ["y"]}, "one of them is allowed"),
    ("/v1/rerank", {"documents": None, "texts": [""]}, "'texts[0]' is an empty string"),
    ("/v1/rerank", {"documents": None, "texts": ["y"], "return_documents": True}, "unknown parameter 'return_documents'"),
    ("/v1/rerank", {"top_n": 0}, "'top_n' must be from 1"),
    ("/v1/rerank", {"x": 1}, "unknown parameter 'x'"),
    # Tokens and templates.
    ("/tokenize", {"content": None}, "one of 'content' and 'prompt' is needed"),
    ("/tokenize", {"content": 1}, "'content' must be a string"),
    ("/tokenize", {"prompt": "x"}, "one of 'content' and 'prompt' is needed"),
    ("/tokenize", {"parse_special": False}, "special tokens in a text are always recognized"),
    ("/tokenize", {"model": "minilm"}, "is no language model"),
    ("/detokenize", {"tokens": None}, "'tokens' is required"),
    ("/detokenize", {"tokens": "a"}, "'tokens' must be an array"),
    ("/detokenize", {"tokens": [99999]}, "token ids from 0 to 511, found 99999"),
    ("/apply-template", {"messages": None}, "'messages' is required"),
    ("/apply-template", {"tools": [{}]}, "'tools[0].type' is required"),
    ("/apply-template", {"add_generation_prompt": 1}, "'add_generation_prompt' must be a boolean"),
    # The Open Inference Protocol.
    ("/v2/models/net/infer", {"inputs": None}, "'inputs' is required"),
    ("/v2/models/net/infer", {"inputs": [{"name": INPUT}]}, "'inputs[0].datatype' is required"),
    ("/v2/models/net/infer", {"inputs": [{"name": "none", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, "no input 'none'"),
    ("/v2/models/net/infer", {"inputs": [{"name": INPUT, "datatype": "FP64", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, "must be FP32, found 'FP64'"),
    ("/v2/models/net/infer", {"inputs": [{"name": INPUT, "datatype": "FP32", "shape": [1, 5], "data": [1] * 5}]}, "size of dimension 1 must be 4, got 5"),
    ("/v2/models/net/infer", {"inputs": [{"name": INPUT, "datatype": "FP32", "shape": [1, 4], "data": [1]}]}, "has 1 elements, the shape says 4"),
    ("/v2/models/net/infer", {"outputs": [{"name": "none"}]}, "no output 'none'"),
    ("/v2/models/net/infer", {"model_name": "other"}, "'model_name' is 'other', the path names 'net'"),
    ("/v2/models/net/infer", {"x": 1}, "unknown parameter 'x'"),
    ("/v2/models/stories/infer", {}, "is a language model"),
]  # fmt: skip

# No model of this name, or nothing to be had without more.
NOT_FOUND = [
    ("POST", "/v1/completions", {"model": "none"}, 404, "there is no model 'none'"),
    ("POST", "/v1/embeddings", {"model": "none"}, 404, "there is no model 'none'"),
    ("POST", "/v2/models/none/infer", {}, 404, "there is no model 'none'"),
    ("POST", "/v1/models/load", {"model": "stories"}, 403, "--model-control"),
    ("GET", "/v1/models/none", None, 404, "there is no model 'none'"),
    ("GET", "/v2/models/none", None, 404, "there is no model 'none'"),
    ("GET", "/v2/models/net/versions/2", None, 404, "version"),
    ("GET", "/nowhere", None, 404, "there is nothing at this path"),
    ("GET", "/v1/completions", None, 405, "the method GET is not allowed here; allowed: POST"),
    ("GET", "/completions", None, 405, "allowed: POST"),
    ("DELETE", "/v1/models/load", None, 405, "allowed: POST"),
    ("DELETE", "/v1/models", None, 405, "allowed: GET"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(stories, minilm_package, net_package):
    models = (stories, minilm_package.path, "--tokenizer", f"minilm={minilm_package.tokenizer}", net_package)
    with Server(*models, "--rows", 2) as running:
        yield running


@pytest.mark.parametrize("path", RIGHT)
def test_what_the_table_changes_is_right(server, path):
    server.good(path, **RIGHT[path])


def message_of(answer: dict, path: str) -> str:
    if path.startswith("/v2"):
        assert set(answer) == {"error"}
        return answer["error"]
    # Anthropic's clients look for the type.
    assert set(answer) == ({"type", "request_id", "error"} if path.startswith("/v1/messages") else {"error"})
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "change", "message"), WRONG, ids=[f"{path}-{json.dumps(change)[:50]}" for path, change, _ in WRONG]
)
def test_wrong_requests(server, path, change, message):
    status, answer = server.post(path, {**RIGHT.get(path, {}), **change})
    assert status == 400 and message in message_of(answer, path), answer
    assert path.startswith("/v2") or answer["error"]["type"] in ("invalid_request_error", "exceed_context_size_error")


@pytest.mark.parametrize(("method", "path", "change", "status", "message"), NOT_FOUND)
def test_what_there_is_not(server, method, path, change, status, message):
    body = None if change is None else json.dumps({**RIGHT.get(path, {}), **change}).encode()
    answer, data = server.request(method, path, body, {"Content-Type": "application/json"})
    assert answer.status == status and message in message_of(json.loads(data), path), data


def test_a_prompt_longer_than_the_context(server):
    context = server.get("/v1/models/stories")[1]["max_model_len"]
    for path in ("/v1/completions", "/completion"):
        status, answer = server.post(path, {"prompt": [1] * (context + 1)})
        error = answer["error"]
        assert status == 400 and f"exceeds the available context size of {context}" in error["message"]
        assert error["code"] == "context_length_exceeded" and error["type"] == "exceed_context_size_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (context + 1, context)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/nowhere", None, {}, 404),
        ("GET", "/v1/models/none", None, {}, 404),
        ("GET", "/v1/completions", None, {}, 405),
        ("DELETE", "/v1/models", None, {}, 405),
        ("OPTIONS", "/v1/completions", None, {"Origin": "http://elsewhere"}, 405),
        ("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/completions", b"prompt=x", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/v1/completions", b"{}", {}, 415),
        ("POST", "/v1/completions", b"", {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b"[]", {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "prompt": "b"}', {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b'{"prompt": "\xff"}', {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b'{"x": ' + b"[" * 5000, {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "temperature": 1e999}', {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b'{"prompt": "' + b"a" * (5 << 20) + b'"}', {"Content-Type": "application/json"}, 400),
        ("POST", "/v1/completions", b" " * (33 << 20), {"Content-Type": "application/json"}, 413),
        ("GET", "/v1/models", None, {"X": "y" * 20000}, 431),
    ],
)  # fmt: skip
def test_refused_by_status(server, method, path, body, headers, status):
    try:
        answer, data = server.request(method, path, body, headers)
    except (BrokenPipeError, ConnectionResetError):  # the answer to a body that is too large may come before its end
        assert status == 413
        return
    assert answer.status == status
    error = json.loads(data)["error"]
    assert error["message"] and not re.search(r"/(?:tmp|home|work|root|usr)\b", error["message"])
    assert "access-control-allow-origin" not in {name.lower() for name in answer.headers}


def test_pages_of_other_sites(stories):
    page, other = {"Origin": "https://chat.example.org"}, {"Origin": "https://evil.example.org"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    body, json_type = b'{"prompt": "a", "max_tokens": 2}', {"Content-Type": "application/json"}
    with Server(stories, "--cors-origin", page["Origin"]) as server:

        def allowed(method, path, body, headers, status):
            answer, _ = server.request(method, path, body, headers)
            assert answer.status == status
            return answer.getheader("Access-Control-Allow-Origin")

        for path in ("/v1/completions", "/v2/models/stories/infer"):
            assert allowed("OPTIONS", path, None, page | asks, 200) == page["Origin"]
            assert allowed("OPTIONS", path, None, other | asks, 200) is None
        for extra in ({}, {"stream": True}):
            request = json.dumps(json.loads(body) | extra).encode()
            assert allowed("POST", "/v1/completions", request, page | json_type, 200) == page["Origin"]
            assert allowed("POST", "/v1/completions", request, other | json_type, 200) is None
        assert allowed("POST", "/v1/completions", b"{}", page | json_type, 400) == page["Origin"]  # errors too
        assert allowed("OPTIONS", "/v1/completions", None, page, 405) == page["Origin"]
