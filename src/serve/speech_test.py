"""Transcription by `graft serve`, against the transcriber of the same package, which speech_test.py compares with
transformers."""

from __future__ import annotations

import concurrent.futures
import json
import signal
import socket
import time

import pytest

import ctc_models
import graft
from serving import Server
from speech_models import save_moonshine, save_whisper, wav

PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    save_whisper(folder / "whisper")
    return graft.export_llm(folder / "whisper", folder / "whisper.pte")


@pytest.fixture(scope="module")
def speech(whisper, stories):
    with Server(whisper, stories) as running:
        yield running


def form(file: bytes | None, boundary: str = "XY", **fields: object) -> tuple[bytes, str]:
    body = b""
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{one}\r\n'.encode()
    if file is not None:
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode() + file + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def ask(server, file, path=PATH, headers=None, **fields):
    body, kind = form(file, **fields)
    answer, data = server.request("POST", path, body, {"Content-Type": kind, **(headers or {})})
    return answer, data


def expected(whisper, file, tmp_path, **settings):
    (tmp_path / "a.wav").write_bytes(file)
    defaults = {
        "temperatures": [0, 0.2, 0.4, 0.6, 0.8, 1],
        "compression_ratio_threshold": 2.4,
        "logprob_threshold": -1.0,
        "no_speech_threshold": 0.6,
    }
    return graft.Transcriber(whisper)(tmp_path / "a.wav", **{**defaults, **settings})


def test_formats(speech, whisper, tmp_path):
    file = wav(2.7, seed=1, rate=22050)
    plain = expected(whisper, file, tmp_path)
    answer, data = ask(speech, file)
    assert answer.status == 200
    assert json.loads(data) == {"text": plain.text.strip(), "usage": {"type": "duration", "seconds": 3}}
    answer, data = ask(speech, file, response_format="verbose_json", **{"timestamp_granularities[]": ["segment"]})
    found = json.loads(data)
    assert [s["tokens"] for s in found["segments"]] == [s.tokens for s in plain.segments]
    assert found["language"] == plain.language and found["task"] == "transcribe" and abs(found["duration"] - 2.7) < 1e-3
    for segment, ours in zip(found["segments"], plain.segments, strict=True):
        assert segment["avg_logprob"] == pytest.approx(ours.avg_logprob) and segment["temperature"] == ours.temperature
    answer, data = ask(speech, file, response_format="text")
    assert answer.headers["Content-Type"].startswith("text/plain") and data.decode().strip() == plain.text.strip()
    answer, data = ask(speech, file, response_format="srt")
    assert data.decode().count(" --> ") == len(plain.segments)
    answer, data = ask(speech, file, response_format="vtt")
    assert answer.headers["Content-Type"].startswith("text/vtt") and data.startswith(b"WEBVTT\n")


def test_settings(speech, whisper, tmp_path):
    file = wav(2.2, seed=2)
    for fields, settings in (
        ({"language": "de"}, {"language": "de"}),
        ({"prompt": "Graft, ggml"}, {"prompt": "Graft, ggml"}),
        ({"temperature": "0.7", "seed": "5"}, {"temperatures": [0.7], "seed": 5}),
    ):
        answer, data = ask(speech, file, **fields)
        assert answer.status == 200, data
        assert json.loads(data)["text"] == expected(whisper, file, tmp_path, **settings).text.strip()
    answer, data = ask(speech, file, "/v1/audio/translations")
    assert json.loads(data)["text"] == expected(whisper, file, tmp_path, task="translate").text.strip()
    assert ask(speech, file, "/v1/audio/translations", language="en")[0].status == 400


def test_a_stream(speech, whisper, tmp_path):
    file = wav(3.1, seed=3)
    plain = expected(whisper, file, tmp_path)
    answer, data = ask(speech, file, stream="true")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n")[:-1]]
    deltas = [event["delta"] for event in events[:-1]]
    assert deltas == [segment.text for segment in plain.segments]
    assert events[-1]["type"] == "transcript.text.done" and events[-1]["text"] == plain.text.strip()


def test_many_at_once(speech, whisper, tmp_path):
    files = [wav(0.5 + 0.3 * i, seed=i) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [json.loads(data)["text"] for _, data in pool.map(lambda file: ask(speech, file), files)]
    assert found == [expected(whisper, file, tmp_path).text.strip() for file in files]


def test_openais_client(speech, whisper, tmp_path):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{speech.port}/v1", api_key="none")
    file = wav(2.4, seed=4)
    plain = expected(whisper, file, tmp_path)
    found = client.audio.transcriptions.create(model="whisper", file=("a.wav", file))
    assert found.text == plain.text.strip()
    found = client.audio.transcriptions.create(
        model="whisper", file=("a.wav", file), response_format="verbose_json", timestamp_granularities=["segment"], temperature=0
    )
    assert [s.tokens for s in found.segments] == [s.tokens for s in plain.segments]
    stream = client.audio.transcriptions.create(model="whisper", file=("a.wav", file), stream=True)
    events = list(stream)
    assert events[-1].type == "transcript.text.done" and events[-1].text == plain.text.strip()
    found = client.audio.translations.create(model="whisper", file=("a.wav", file))
    assert found.text == expected(whisper, file, tmp_path, task="translate").text.strip()


@pytest.mark.parametrize("file, fields, status, message", [
    (None, {}, 400, "'file' is needed"),
    (b"", {}, 400, "'file' is empty"),
    (b"no sound", {}, 400, "'file' cannot be read: expected WAV, FLAC or MP3, found 8 bytes of something else"),
    (wav(0.1), {"language": "xx"}, 400, "knows no language 'xx'"),
    (wav(0.1), {"temperature": "2"}, 400, "'temperature' must be from 0 to 1"),
    (wav(0.1), {"temperature": "hot"}, 400, "'temperature' must be a number, found a string"),
    (wav(0.1), {"response_format": "xml"}, 400, "'response_format' must be json, text"),
    (wav(0.1), {"stream": "true", "response_format": "text"}, 400, "must be json with 'stream'"),
    (wav(0.1), {"timestamp_granularities[]": ["word"]}, 400, "supported as segment alone"),
    (wav(0.1), {"include[]": ["logprobs"]}, 400, "'include' is not supported"),
    (wav(0.1), {"chunking_strategy": "vad"}, 400, "supported as auto alone"),
    (wav(0.1), {"nonsense": "1"}, 400, "nonsense"),
    (wav(0.1), {"model": "stories"}, 400, "'stories' is no model of speech"),
    (wav(0.1), {"model": "none"}, 404, "no model 'none'"),
    (wav(0.1), {"prompt": "x" * 500}, 400, "the prompt has 501 tokens, the model takes 31"),
    (wav(0.1), {"model": ["whisper", "whisper"]}, 400, "'model' occurs twice"),
], ids=lambda v: str(v)[:20])  # fmt: skip
def test_wrong_requests(speech, file, fields, status, message):
    answer, data = ask(speech, file, **fields)
    assert answer.status == status and message in json.loads(data)["error"]["message"], data
    assert ask(speech, wav(0.1))[0].status == 200


def test_requests_that_are_no_forms(speech):
    answer, data = speech.request("POST", PATH, b"{}", {"Content-Type": "application/json"})
    assert answer.status == 415 and b"multipart/form-data" in data
    body, kind = form(wav(0.1))
    answer, data = speech.request("POST", "/v1/completions", body, {"Content-Type": kind})
    assert answer.status == 415
    answer, data = speech.request("POST", PATH, body[:-8], {"Content-Type": kind})
    assert answer.status == 400 and b"does not end with its boundary" in data


def test_pages_of_other_sites_cannot_send_forms(speech):
    assert ask(speech, wav(0.1), headers={"Origin": "https://example.org"})[0].status == 403
    assert ask(speech, wav(0.1), headers={"Origin": "null"})[0].status == 403
    own = f"http://127.0.0.1:{speech.port}"
    assert ask(speech, wav(0.1), headers={"Origin": own})[0].status == 200


def test_other_endpoints_refuse_a_model_of_speech(speech):
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/tokenize", {"content": "a"}),
    ):
        status, answer = speech.post(path, {"model": "whisper", **body})
        assert status == 400 and "'whisper' is no" in answer["error"]["message"], answer
    assert speech.get("/v2/models/whisper")[0] in (400, 404)
    assert {m["id"] for m in speech.get("/v1/models")[1]["data"]} == {"whisper", "stories"}


def test_a_second_signal_ends_it_at_once(whisper, stories):
    """Whatever runs and waits then: requests hold their model, and must not end its threads from one of these."""
    body, kind = form(wav(60, seed=1))
    form_head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    text = json.dumps({"model": "stories", "prompt": "Once", "max_tokens": 400, "n": 20, "ignore_eos": True}).encode()
    text_head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
    for delay in (0, 0.01, 0.05, 0.1, 0.2, 0.4):
        with Server(whisper, stories) as running:
            connections = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(6)]
            for i, connection in enumerate(connections):
                connection.sendall(form_head + body if i % 2 else text_head + text)
            time.sleep(delay)
            running.process.send_signal(signal.SIGTERM)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(30) == 0
            for connection in connections:
                connection.close()


def test_a_client_that_goes_ends_it(speech):
    body, kind = form(wav(60, seed=1))
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = len(speech.lines)
    with socket.create_connection(("127.0.0.1", speech.port)) as connection:
        connection.sendall(head + body)
    speech.wait_for(lambda: any(line.get("status") == 499 for line in speech.lines[before:]))
    assert ask(speech, wav(0.1))[0].status == 200


# --- models without time stamps ---


@pytest.fixture(scope="module", params=["parakeet", "moonshine"])
def plain(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    save = save_moonshine if request.param == "moonshine" else ctc_models.BY_NAME[request.param].save
    return graft.export_llm(save(folder / "model"), folder / "model.pte")


@pytest.fixture(scope="module")
def plain_server(plain):
    with Server(plain) as running:
        yield running


def test_models_without_time_stamps(plain_server, plain, tmp_path):
    file = wav(2.7, seed=1, rate=22050)
    (tmp_path / "a.wav").write_bytes(file)
    said = graft.Transcriber(plain)(tmp_path / "a.wav")
    text = said.text.strip()
    assert text
    answer, data = ask(plain_server, file)
    assert answer.status == 200 and json.loads(data) == {"text": text, "usage": {"type": "duration", "seconds": 3}}
    found = json.loads(ask(plain_server, file, response_format="verbose_json")[1])
    assert found["text"] == text and found["language"] == ""
    (segment,) = found["segments"]
    assert segment["tokens"] == said.segments[0].tokens and (segment["start"], segment["end"]) == (0, found["duration"])
    assert ask(plain_server, file, response_format="text")[1].decode() == text + "\n"
    answer, data = ask(plain_server, file, stream="true")
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    assert [event["type"] for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[1]["text"] == text


def test_wrong_requests_to_models_without_time_stamps(plain_server):
    file = wav(0.9)
    for fields, said in [
        ({"language": "en"}, "'language' is not supported by"),
        ({"prompt": "Hi"}, "'prompt' is not supported by"),
        ({"temperature": "0.5"}, "'temperatures' is not supported by"),
        ({"response_format": "srt"}, "has no time stamps: json, text and verbose_json are supported"),
        ({"response_format": "vtt"}, "has no time stamps"),
        ({"timestamp_granularities[]": ["segment"], "response_format": "verbose_json"}, "has no time stamps"),
    ]:
        answer, data = ask(plain_server, file, **fields)
        assert answer.status == 400 and said in json.loads(data)["error"]["message"], data
    answer, data = ask(plain_server, file, path="/v1/audio/translations")
    assert answer.status == 400 and "'task' is not supported by" in json.loads(data)["error"]["message"], data
    answer, data = ask(plain_server, wav(0.01))
    assert answer.status == 400 and "samples at 16000 per second, the sound has 160" in json.loads(data)["error"]["message"]
    answer, data = plain_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert answer == 400 and "is no language model" in data["error"]["message"]
