"""Starts the server as a person does and talks to it over HTTP: plain requests, OpenAI's client, hostile ones."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

import graft
from serving import PATIENCE, Server, binary
from test_data import DATA

@pytest.fixture(scope="session")
def openai_client(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


STORY = "Once upon a time"


# --- texts ---


def test_a_story_from_nothing(server):
    expected = (DATA / "stories260K" / "expected.txt").read_text()
    answer = server.complete("", temperature=0, max_tokens=200)
    assert answer["choices"][0]["text"] == expected and len(expected) == 464
    assert answer["object"] == "text_completion" and answer["model"] == "stories"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 200 and answer["usage"]["prompt_tokens"] == 1


def test_a_stream_is_the_text_in_parts(server):
    whole = server.complete(STORY, temperature=0, max_tokens=40)
    events = server.events("/v1/completions", prompt=STORY, temperature=0, max_tokens=40,
                           stream_options={"include_usage": True})  # fmt: skip
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 40
    assert all(event["usage"] is None for event in events) and len({event["id"] for event in events}) == 1
    assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
    assert [event["choices"][0]["finish_reason"] for event in events][-2:] == [None, "length"]
    assert len(events) > 20


def test_a_text_alone_and_among_many_others(server):
    """Token by token, greedy and with seeds, whatever runs beside it and whatever the cache holds."""
    requests = [
        {"prompt": STORY[: 4 + i % 13] + " the" * (i % 9), "max_tokens": 10 + i * 7 % 60, "logprobs": 0, "seed": i,
         "temperature": [0, 1.2][i % 2], "top_p": [1, 0.9][i // 2 % 2], "frequency_penalty": [0, 0.5][i // 4 % 2]}
        for i in range(33)
    ]  # fmt: skip

    def tokens(request):
        answer = server.complete(**request)["choices"][0]
        return answer["text"], answer["logprobs"]["tokens"]

    alone = [tokens(request) for request in requests]
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        for _ in range(2):
            assert list(pool.map(tokens, requests)) == alone
    assert len({text for text, _ in alone}) > 25


def test_n_texts_draw_from_the_seeds_that_follow(server):
    many = server.complete(["One day", STORY], n=3, seed=5, temperature=1, max_tokens=12)
    assert [choice["index"] for choice in many["choices"]] == list(range(6))
    for index, choice in enumerate(many["choices"]):
        one = server.complete(["One day", STORY][index // 3], seed=5 + index, temperature=1, max_tokens=12)
        assert one["choices"][0]["text"] == choice["text"]
    assert len({choice["text"] for choice in many["choices"]}) == 6
    assert many["usage"]["completion_tokens"] == 72


def test_without_a_seed_texts_differ(server):
    assert len({server.complete(STORY, temperature=1, max_tokens=30)["choices"][0]["text"] for _ in range(4)}) > 1


def test_stop_strings_end_the_text(server):
    whole = server.complete(STORY, temperature=0, max_tokens=60)["choices"][0]["text"]
    word = whole.split()[9]
    for stop in (word, ["never there", word]):
        choice = server.complete(STORY, temperature=0, max_tokens=60, stop=stop)["choices"][0]
        assert choice["text"] == whole[: whole.index(word)] and choice["finish_reason"] == "stop"
        events = server.events("/v1/completions", prompt=STORY, temperature=0, max_tokens=60, stop=stop)
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == choice["text"]


def test_tokens_as_prompt_and_echo(server):
    ids = server.good("/tokenize", content=STORY, add_special=True)["tokens"]
    assert ids == [1, 403, 407, 261, 378]
    texts = [server.complete(prompt, temperature=0, max_tokens=20)["choices"][0]["text"] for prompt in (ids, [ids], STORY)]
    assert len(set(texts)) == 1
    echoed = server.complete(STORY, temperature=0, max_tokens=20, echo=True)["choices"][0]["text"]
    assert echoed == STORY + texts[0]
    events = server.events("/v1/completions", prompt=STORY, temperature=0, max_tokens=20, echo=True)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == echoed
    assert server.complete(STORY, max_tokens=0, echo=True)["choices"][0]["text"] == STORY


def test_the_context_ends_a_text(server):
    context = server.get("/v1/models")[1]["data"][0]["max_model_len"]
    answer = server.complete([1] * (context - 3), temperature=0, max_tokens=50, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 4
    status, error = server.post("/v1/completions", {"prompt": [1] * (context + 1)})
    assert status == 400 and error["error"]["code"] == "context_length_exceeded" and str(context) in error["error"]["message"]


def test_logit_bias_and_penalties(server):
    (id_of_b,) = server.good("/tokenize", content="b", add_special=False)["tokens"][-1:]
    choice = server.complete(STORY, temperature=0, max_tokens=5, logit_bias={str(id_of_b): 100}, logprobs=1)["choices"][0]
    assert choice["logprobs"]["tokens"] == [" b"] * 5
    repeated = server.complete(STORY, temperature=0, max_tokens=40, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    varied = server.complete(STORY, temperature=0, max_tokens=40, logprobs=0, presence_penalty=2, frequency_penalty=2)
    assert len(set(varied["choices"][0]["logprobs"]["tokens"])) > len(set(repeated))


# --- log-probabilities ---


def test_logprobs_of_the_known_prompt(server):
    """The figures of ../shared/data/README.md, which are logits: their differences are those of log-probabilities."""
    known = {432: 17.7994, 383: 14.2813, 322: 9.7097, 353: 9.5873, 323: 9.1342}
    top = server.complete(STORY, temperature=0, max_tokens=1, logprobs=5)["choices"][0]["logprobs"]["top_logprobs"][0]
    found = list(top.values())
    assert len(found) == 5 and found == sorted(found, reverse=True)
    for value, expected in zip(found, known.values()):
        assert value - found[0] == pytest.approx(expected - known[432], abs=2e-3)


def test_logprobs_of_the_prompt_are_those_of_the_text(server):
    text = server.complete(STORY, temperature=0, max_tokens=30, logprobs=2)["choices"][0]
    ids = server.good("/tokenize", content=STORY, add_special=True)["tokens"]
    new = server.good("/tokenize", content=STORY + text["text"], add_special=True)["tokens"][len(ids) :]
    echoed = server.complete(ids + new, max_tokens=0, echo=True, logprobs=2)["choices"][0]["logprobs"]
    assert echoed["token_logprobs"][0] is None and echoed["top_logprobs"][0] is None
    assert len(echoed["tokens"]) == len(ids) + len(new) == len(echoed["text_offset"])
    assert echoed["tokens"][len(ids) :] == text["logprobs"]["tokens"]
    assert echoed["token_logprobs"][len(ids) :] == pytest.approx(text["logprobs"]["token_logprobs"], abs=2e-4)
    whole = "".join(echoed["tokens"])
    for token, offset in zip(echoed["tokens"], echoed["text_offset"]):
        assert whole[offset : offset + len(token)] == token


def test_logprobs_do_not_depend_on_settings_or_on_streaming(server):
    fields = {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 15, "logprobs": True, "top_logprobs": 3,
              "seed": 3, "temperature": 1.1}  # fmt: skip
    whole = server.good("/v1/chat/completions", **fields)["choices"][0]
    content = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content).strip() == whole["message"]["content"].strip()
    for entry in content:
        assert len(entry["top_logprobs"]) == 3 and bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"] <= 0
    events = server.events("/v1/chat/completions", **fields)[:-1]
    parts = [e["choices"][0]["logprobs"]["content"] for e in events if e["choices"][0]["logprobs"]]
    assert [entry for part in parts for entry in part] == content


# --- chat ---


def test_chat(server):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    prompt = server.good("/apply-template", messages=messages)["prompt"]
    assert prompt == "system: Be kind.\nuser: Hi\nassistant:"
    answer = server.good("/v1/chat/completions", messages=messages, temperature=0, max_completion_tokens=20)
    ids = server.good("/tokenize", content=prompt)["tokens"]
    text = server.complete(ids, temperature=0, max_tokens=20)["choices"][0]["text"]
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": [],
    }
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["prompt_tokens"] == len(ids)
    events = server.events("/v1/chat/completions", messages=messages, temperature=0, max_completion_tokens=20)[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": None} and deltas[-1] == {}
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_a_second_turn_reads_only_what_is_new(server):
    messages = [{"role": "user", "content": "Tell me a long story about a cat and a dog. " * 4}]
    first = server.good("/v1/chat/completions", messages=messages, temperature=0, max_tokens=10)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "More"}]
    second = server.good("/v1/chat/completions", messages=messages, temperature=0, max_tokens=10)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] - 2 <= cached < second["usage"]["prompt_tokens"]


def test_the_openai_client(openai_client):
    import openai

    assert [model.id for model in openai_client.models.list()] == ["stories"]
    assert openai_client.models.retrieve("stories").owned_by == "graft"
    messages = [{"role": "user", "content": "Hello"}]
    fields = {"model": "stories", "messages": messages, "temperature": 0, "max_tokens": 24}
    answer = openai_client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    assert len(answer.choices[0].logprobs.content) == 24 and answer.usage.total_tokens > 24
    parts = list(openai_client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == answer.choices[0].message.content and parts[-1].usage.completion_tokens == 24
    text = openai_client.completions.create(model="stories", prompt=STORY, temperature=0, max_tokens=8, logprobs=1)
    assert len(text.choices[0].logprobs.tokens) == 8
    with pytest.raises(openai.BadRequestError, match="functions"):
        openai_client.chat.completions.create(**fields, functions=[{"name": "f", "parameters": {}}])
    with pytest.raises(openai.NotFoundError) as error:
        openai_client.chat.completions.create(**{**fields, "model": "gpt-4"})
    assert error.value.code == "model_not_found"


# --- parameters ---

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT = {"prompt": "Hi", "max_tokens": 2}
NATIVE = {"prompt": [1, "Hi", 2], "n_predict": 2, "n_probs": 1, "logit_bias": [["a", False]]}


def test_parameters_that_change_nothing(server):
    fields = {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "response_format": {"type": "text"},
              "seed": 1, "stop": None, "top_k": -1, "min_p": 0, "logit_bias": {}}  # fmt: skip
    text = server.complete(STORY, temperature=0, max_tokens=9, **fields, suffix="", best_of=1)["choices"][0]["text"]
    assert text == server.complete(STORY, temperature=0, max_tokens=9)["choices"][0]["text"]
    server.good("/v1/chat/completions", **CHAT, **fields, tools=[], tool_choice="none", modalities=["text"], store=False)


def test_tokenize_and_back(server):
    text = "Once upon a time, ééé 🏳️‍🌈"
    ids = server.good("/tokenize", content=text)["tokens"]
    assert server.good("/detokenize", tokens=ids)["content"].strip() == text
    pieces = server.good("/tokenize", prompt=STORY, with_pieces=True)
    assert pieces["count"] == 5 and pieces["tokens"][0] == {"id": 1, "piece": "<s>"}


# --- running it ---


def test_answers_carry_an_id_that_the_log_has_and_no_prompt(server):
    secret = "xylophone"
    answer, _ = server.request(
        "POST", "/v1/completions", json.dumps({"prompt": secret, "max_tokens": 3, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    id = answer.headers["x-request-id"]
    server.wait_for(lambda: any(line.get("id") == id for line in server.lines))
    (line,) = [line for line in server.lines if line.get("id") == id]
    assert line["status"] == 200 and line["route"] == "/v1/completions" and line["completion_tokens"] == 3
    assert line["model"] == "stories" and line["ms"] >= line["first_token_ms"] > 0
    assert secret not in json.dumps(server.lines)


def test_metrics(server):
    server.complete(STORY, max_tokens=4)
    answer, body = server.request("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    seen = set()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in seen
            seen.add(name)
        elif not line.startswith("#"):
            assert re.fullmatch(r'[a-zA-Z_:][\w:]*(\{([a-z_]+="(\\.|[^"\\])*",?)+\})? -?[0-9.e+-]+', line), line
    assert {"vllm:num_requests_running", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds",
            "process_resident_memory_bytes", "graft_http_requests_total"} <= seen  # fmt: skip
    assert server.gauge("vllm:generation_tokens_total") >= 4
    runs = server.gauge("graft_prefill_seconds_total") + server.gauge("graft_decode_seconds_total")
    server.wait_for(lambda: server.gauge("graft_busy_seconds_total") > runs > 0)


@contextlib.contextmanager
def asked(server, *headers, **fields):
    """A client that has asked for a text, and goes at the end of the with block."""
    body = json.dumps({"prompt": STORY, "ignore_eos": True, **fields})
    lines = ["POST /v1/completions HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers, "", body]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall("\r\n".join(lines).encode())
        yield


def test_a_client_that_goes_frees_its_row(server):
    server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 0)
    before = server.gauge("vllm:generation_tokens_total")
    for stream in (True, False):
        with asked(server, max_tokens=500, stream=stream, n=64):
            server.wait_for(lambda: server.gauge("vllm:num_requests_running") > 0)
        server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 0)
    assert server.gauge("vllm:generation_tokens_total") - before < 2 * 64 * 400, "the texts ran to their end"
    server.wait_for(lambda: sum(line.get("status") == 499 for line in server.lines) >= 2)


def test_who_comes_next(stories, tmp_path):
    """With one row: smaller priorities first, then the key that has had the fewest tokens, then who came first."""
    folder = shutil.copytree(stories.with_suffix(""), tmp_path / "stories")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 16}))
    (tmp_path / "keys").write_text("many\nfew\n")
    long = graft.export_llm(folder, tmp_path / "long.pte")
    with Server(long, "--rows", 1, "--api-keys", tmp_path / "keys") as server:

        def ask(tokens, key, fields):
            body = {"prompt": STORY, "max_tokens": tokens, "ignore_eos": True, **fields}
            assert server.post("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})[0] == 200

        def texts(state):
            lines = server.request("GET", "/metrics", headers={"Authorization": "Bearer few"})[1].decode().splitlines()
            return next(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:num_requests_{state}{{"))

        threads = []
        # One that has the row until all others wait: its client then goes.
        with asked(server, "Authorization: Bearer many", max_tokens=60000):
            server.wait_for(lambda: texts("running") == 1)
            for i, (key, fields) in enumerate([("many", {}), ("many", {}), ("few", {}), ("many", {"priority": -1})]):
                threads.append(threading.Thread(target=ask, args=(100 + i, key, fields)))
                threads[-1].start()
                server.wait_for(lambda: texts("waiting") == len(threads))
        for thread in threads:
            thread.join()

        def answered():
            return [line["completion_tokens"] for line in server.lines if line.get("completion_tokens") and line["status"] == 200]

        server.wait_for(lambda: len(answered()) == 4)
        assert answered() == [103, 102, 100, 101]


def test_keys_from_a_file(stories, tmp_path):
    (tmp_path / "keys").write_text("# callers\nalpha\nbeta\n")
    with Server(stories, "--rows", 2, "--api-keys", tmp_path / "keys") as server:
        assert server.get("/v1/models")[0] == 401
        assert server.get("/metrics")[0] == 401
        status, error = server.post("/v1/completions", TEXT, headers={"Authorization": "Bearer alphabet"})
        assert status == 401 and error["error"]["code"] == "invalid_api_key"
        prompt = "Tell me the secret story. " * 6

        def cached(key):
            status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}, headers={"Authorization": f"Bearer {key}"})
            assert status == 200
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert (cached("alpha"), cached("beta")) == (0, 0), "one caller found another's prompt in the cache"
        assert cached("alpha") > 20 and cached("beta") > 20


def test_a_full_queue_and_limits(stories):
    with Server(stories, "--rows", 1, "--max-queue", 2, "--max-texts", 4) as server:
        status, error = server.post("/v1/completions", {**TEXT, "n": 5})
        assert status == 400 and "at most 4" in error["error"]["message"]

        def ask(_):
            body = json.dumps({"prompt": STORY, "max_tokens": 300, "ignore_eos": True}).encode()
            answer, _ = server.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            return answer.status, answer.headers.get("Retry-After")

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(16)))
        assert set(answers) == {(200, None), (429, "1")}


def test_a_request_that_takes_too_long(stories):
    with Server(stories, "--rows", 1, "--max-seconds", 0.05) as server:
        status, error = server.post("/v1/completions", {"prompt": STORY, "max_tokens": 500, "ignore_eos": True, "n": 32})
        assert status == 503 and "too long" in error["error"]["message"]


def test_several_models(stories):
    with Server(f"one={stories}", f"two={stories}", "--rows", 1) as server:
        assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["one", "two"]
        assert server.complete(STORY, model="two", max_tokens=1)["model"] == "two"
        assert server.complete(STORY, max_tokens=1)["model"] == "one"


def chat(server, *args: str, text: str, code: int = 0):
    done = subprocess.run(
        [binary(), "chat", "--server", f"http://127.0.0.1:{server.port}", *args],
        input=text, capture_output=True, text=True, timeout=PATIENCE,
    )
    assert done.returncode == code, done.stderr
    return done


def test_graft_chat_talks_with_a_server(server, tmp_path):
    def expected(*messages: str) -> str:
        list_ = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
        return server.good("/v1/chat/completions", messages=list_, temperature=0, max_tokens=20)["choices"][0]["message"]["content"]

    first = expected("Once")
    second = expected("Once", first, "Then")
    text = "Once\nThen\n/clear\nOnce\n"
    assert chat(server, "--max-new-tokens", "20", text=text).stdout == f"{first}\n{second}\n{first}\n"
    one = chat(server, "--model", "stories", "--system", "", "--max-new-tokens", "3", "--seed", "5", "--do-sample", text="Once\n")
    assert one.stdout.strip()
    # What the server refuses keeps the conversation.
    done = chat(server, "--model", "none", text="Once\nOnce\n")
    assert done.stderr.count("graft: the server refuses (status 404): there is no model 'none'") == 2
    for args, code, message in [
        (("--threads", "2"), 2, "--threads: plays no part with --server"),
        (("x.pte",), 2, "one of FILE and --server is needed"),
    ]:
        assert message in chat(server, *args, text="", code=code).stderr
    for url, message in [
        ("https://127.0.0.1", "must begin with http://"),
        ("http://", "expected http://HOST:PORT"),
        ("http://127.0.0.1:1", "cannot connect to the server at 127.0.0.1:1"),
    ]:
        done = subprocess.run([binary(), "chat", "--server", url], input="a\n", capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_graft_chat_with_a_key(stories, tmp_path):
    (tmp_path / "keys").write_text("secret-key-1\nother\n")
    with Server(stories, "--rows", 1, "--api-keys", tmp_path / "keys") as server:
        args = ("--max-new-tokens", "3", "--api-key-file", str(tmp_path / "keys"))
        assert chat(server, *args, text="Once\n").stdout.strip()
        assert "status 401" in chat(server, text="Once\n").stderr


def test_ctrl_c_in_a_chat_ends_the_answer(server):
    args = [binary(), "chat", "--server", f"http://127.0.0.1:{server.port}", "--ignore-eos"]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("Once\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 0)
        process.stdin.write("Once\n")
        process.stdin.flush()
        server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 1)
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def states(server) -> dict[str, str]:
    return {model["id"]: model["status"]["value"] for model in server.get("/v1/models")[1]["data"]}


def test_models_are_loaded_and_unloaded(stories):
    control = ("--model-control", "--load", "one")
    with Server(f"one={stories}", f"two={stories}", "--rows", 2, *control) as server:
        assert states(server) == {"one": "loaded", "two": "unloaded"}
        text = server.complete(STORY, max_tokens=20, temperature=0)["choices"][0]["text"]
        status, error = server.post("/v1/completions", {"model": "two", "prompt": STORY})
        assert status == 404 and error["error"]["code"] == "model_not_loaded"

        assert server.good("/v1/models/load", model="two")["status"] == {"value": "loaded"}
        assert server.good("/v1/models/load", model="two")["status"] == {"value": "loaded"}  # it is already
        assert server.complete(STORY, model="two", max_tokens=20, temperature=0)["choices"][0]["text"] == text

        # A request that runs goes on.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.complete, STORY, model="one", max_tokens=400, ignore_eos=True)
            server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 1)
            assert server.good("/v1/models/unload", model="one")["status"] == {"value": "unloaded"}
            assert server.complete(STORY, max_tokens=20)["model"] == "two"  # the first that is loaded
            assert running.result()["usage"]["completion_tokens"] == 400
        assert states(server) == {"one": "unloaded", "two": "loaded"}

        server.good("/v1/models/unload", model="two")
        server.good("/v1/models/unload", model="two")
        status, error = server.post("/v1/completions", {"prompt": STORY})
        assert status == 404 and error["error"]["message"] == "no model is loaded"
        for path in ("load", "unload"):
            assert server.post(f"/v1/models/{path}", {"model": "three"})[0] == 404
            assert server.post(f"/v1/models/{path}", {})[0] == 400


def test_models_that_come_and_go_leave_nothing(stories):
    with Server(stories, "--rows", 1, "--model-control") as server:
        process = Path(f"/proc/{server.process.pid}")

        def held() -> tuple[int, int]:
            return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))

        def again() -> None:
            server.good("/v1/models/unload", model="stories")
            server.good("/v1/models/load", model="stories")
            server.complete(STORY, max_tokens=1)

        again()
        before = held()
        for _ in range(5):
            again()
        server.wait_for(lambda: held() <= before)


def test_sigterm_while_models_are_loaded(stories):
    names = [f"m{i}" for i in range(8)]
    args = [f"{name}={stories}" for name in names]
    with Server(*args, "--rows", 1, "--model-control", "--load", "m0", "--drain-seconds", 0.01) as server:
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            asked = [pool.submit(server.post, "/v1/models/load", {"model": name}) for name in names[1:]]
            concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_COMPLETED)
            server.process.terminate()  # the with block expects the exit status 0
            for answer in asked:
                if not answer.exception():
                    assert answer.result()[0] in (200, 503), answer.result()


def test_models_have_a_budget(stories, tmp_path):
    size = stories.stat().st_size
    args = (f"one={stories}", f"two={stories}", "--rows", 1, "--model-control", "--load", "one")
    with Server(*args, "--max-model-bytes", 2 * size) as server:
        status, error = server.post("/v1/models/load", {"model": "two"})
        assert status == 409 and error["error"]["code"] == "model_does_not_fit", error
        assert re.search(r"the model 'two' needs \d+ bytes, and \d+ of \d+ are free: unload another", error["error"]["message"])
        assert states(server) == {"one": "loaded", "two": "unloaded"}
        server.good("/v1/models/unload", model="one")
        assert server.good("/v1/models/load", model="two")["status"] == {"value": "loaded"}


def test_a_load_that_fails_names_no_file(stories, tmp_path):
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(stories.read_bytes()[:5000])
    with Server(f"one={stories}", damaged, "--rows", 1, "--model-control", "--load", "one") as server:
        status, error = server.post("/v1/models/load", {"model": "damaged"})
        assert status == 500 and str(tmp_path) not in json.dumps(error), error
        assert states(server) == {"one": "loaded", "damaged": "unloaded"}
        server.wait_for(
            lambda: any(line["event"] == "not loaded" and str(damaged) in line["error"] for line in server.lines)
        )
        server.complete(STORY, max_tokens=1)


def test_models_are_not_loaded_unasked(server):
    for path in ("load", "unload"):
        status, error = server.post(f"/v1/models/{path}", {"model": "stories"})
        assert status == 403 and "--model-control" in error["error"]["message"]


def test_sigterm_lets_requests_end(stories):
    server = Server(stories, "--rows", 2)
    server.wait_for(lambda: server.get("/health")[0] == 200)
    fields = {"prompt": STORY, "temperature": 0, "max_tokens": 120, "ignore_eos": True, "n": 8}
    expected = server.complete(**fields)["choices"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.complete, **fields)
        server.wait_for(lambda: server.gauge("vllm:num_requests_running") > 0)
        with server:
            pass  # SIGTERM
        assert running.result()["choices"] == expected
    assert [line["event"] for line in server.lines if line["event"] in ("draining", "stopped")] == ["draining", "stopped"]
    with pytest.raises(ConnectionRefusedError):
        server.get("/health")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "MODEL is required"),
        (("not-there.pte",), 1, "not-there.pte"),
        (("a=x.pte", "a=y.pte"), 2, "two models have the name 'a'"),
        (("a b=x.pte",), 2, "the name 'a b'"),
        (("x.pte", "--tokenizer", "y=z"), 2, "is not NAME=FILE"),
        (("x.pte", "--host", "localhost"), 1, "the host must be an address"),
        (("x.pte", "--api-keys", "not-there"), 1, "cannot read the file of API keys"),
        (("x.pte", "--rows", "0"), 2, "--rows"),
        (("x.pte", "--default-model", "y"), 2, "--default-model: there is no model 'y'"),
        (("x.pte", "--chat-template-kwargs", "[]"), 2, "--chat-template-kwargs: the body must be a JSON object"),
        (("x.pte", "--chat-template-kwargs", '{"tools": 1}'), 2, "must not have 'tools'"),
        (("x.pte", "--prompt-lookup", "65"), 2, "--prompt-lookup"),
        (("x.pte", "--load", "y"), 2, "--load: there is no model 'y'"),
    ],
)
def test_wrong_use(args, code, message):
    done = subprocess.run([binary(), "serve", "--port", "0", *args], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code and message in done.stderr, done.stderr


# --- hostile requests ---


def mutated(rng: random.Random) -> bytes:
    """A request with some of its bytes, fields or framing changed."""
    fields = dict(rng.choice([TEXT, CHAT, {"content": "text"}, {"tokens": [1, 2, 3]}, NATIVE]))
    values = [None, True, -1, 0, 2**64, 1e308, "", "\0", "é" * 50, [], [[]], {}, {"a": {"b": []}}, [None], "9" * 400]
    for _ in range(rng.randrange(3)):
        names = [*fields, "stop", "n", "logit_bias", "stream", "seed", "temperature", "logprobs", "messages", "model", "x"]
        fields[rng.choice(names)] = rng.choice(values)
    body = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    head = (
        f"{rng.choice(['POST'] * 8 + ['GET', 'PUT', 'HEAD', 'X'])} "
        f"{rng.choice(['/v1/completions', '/v1/chat/completions', '/completion', '/tokenize', '/detokenize', '/apply-template'])} HTTP/1.1\r\n"
        f"Host: x\r\nContent-Type: application/json\r\n"
    ).encode()
    kind = rng.randrange(6)
    if kind == 0:  # bytes of the body
        changed = bytearray(body)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        body = bytes(changed)
    elif kind == 1:  # cut or doubled
        at = rng.randrange(len(body))
        body = rng.choice([body[:at], body[at:], body[:at] + body])
    elif kind == 2:  # deep
        body = b'{"prompt": ' + b'[{"a":' * rng.randrange(1, 3000)
    if kind == 3:
        size = rng.randrange(1, 20)
        parts = [body[i : i + size] for i in range(0, len(body), size)]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + (framed if rng.random() < 0.7 else framed[::-1])
    message = head + b"Content-Length: %d\r\n\r\n" % (len(body) + rng.choice([0] * 9 + [-1, 1, 10**9])) + body
    if kind == 4:  # bytes anywhere
        changed = bytearray(message)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        message = bytes(changed)
    return message


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 20))])
def test_mutated_requests(server, part):
    """Every answer is 2xx or 4xx, and the server answers the next request as before."""
    count = 600 if part else 150
    expected = server.complete(STORY, temperature=0, max_tokens=8)["choices"][0]["text"]
    rng, statuses = random.Random(part), {}
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            message = mutated(rng)
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR) if rng.random() < 0.2 else connection.settimeout(0.2)
            try:
                data = connection.recv(1 << 16)
            except (TimeoutError, ConnectionResetError):
                data = b""  # it waits for the rest, or the client was taken for gone
            status = re.match(rb"HTTP/1\.1 (\d{3}) ", data)
            assert status or not data, data
            if status:
                statuses[status.group(1)[:1]] = statuses.get(status.group(1)[:1], 0) + 1
                assert status.group(1)[:1] in b"124", (message, data)
    assert statuses[b"4"] > count // 6
    assert server.process.poll() is None
    assert server.complete(STORY, temperature=0, max_tokens=8)["choices"][0]["text"] == expected


def test_idle_and_slow_clients_do_not_stop_others(server):
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(500)]
    try:
        for client in clients[::2]:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-")
        assert server.complete(STORY, max_tokens=3)["usage"]["completion_tokens"] == 3
    finally:
        for client in clients:
            client.close()
