"""Sound in chat completions of `graft serve`, against the generator of the same package, which
test/python/llm/audio_test.py compares with transformers."""

from __future__ import annotations

import base64
import concurrent.futures

import pytest

import graft
from audio_models import AUDIO_MODELS
from serving import Server
from speech_models import wav

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module", params=AUDIO_MODELS, ids=lambda kind: kind.name)
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    return graft.export_llm(request.param.save(folder / "model"), folder / "model.pte")


@pytest.fixture(scope="module")
def server(package):
    with Server(package, "--rows", "2", "--prefix-cache-bytes", str(1 << 24), "--context", "256") as running:
        yield running


def part(seconds, seed=0, form="wav"):
    data = base64.b64encode(wav(seconds, seed)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def text(content):
    return {"type": "text", "text": content}


def asked(*content, tokens=8):
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": tokens, "temperature": 0}


def expected(package, content, files, tokens=8):
    """Text and number of the prompt's tokens."""
    generator = graft.TextGenerator(package, threads=1)
    found = generator.generate([{"role": "user", "content": content}], audio=files, max_new_tokens=tokens)
    return found.text, generator.stats["prompt_tokens"]


def test_sound_in_chats(server, package, tmp_path):
    files = [tmp_path / f"{i}.wav" for i in (1, 2)]
    for i, file in enumerate(files, 1):
        file.write_bytes(wav(0.7, i))
    one, two, place = part(0.7, 1), part(0.7, 2), {"type": "audio"}
    cases = [
        ([text("What is "), one, text("?")], [text("What is "), place, text("?")], files[:1]),
        ([text("What is "), two, text("?")], [text("What is "), place, text("?")], files[1:]),
        ([one, two, text("differ")], [place, place, text("differ")], files),
        ([text("no sound")], [text("no sound")], []),
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda case: server.post(PATH, asked(*case[0])), cases * 2))
    for (_, content, sounds), (status, answer) in zip(cases * 2, answers):
        assert status == 200, answer
        said, tokens = expected(package, content, sounds)
        assert answer["choices"][0]["message"]["content"] == said
        assert answer["usage"]["prompt_tokens"] == tokens


def test_wrong_sounds(server):
    def of(data="", form="wav"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}

    for content, said in [
        (of("*"), "'messages[0].content[0].input_audio.data' is not base64"),
        (of("AAAA"), "expected WAV, FLAC or MP3"),
        (of("AAAA", "ogg"), "'messages[0].content[0].input_audio.format' is 'ogg'; formats are wav, mp3 and flac"),
        ({"type": "input_audio", "input_audio": {}}, "data"),
        ({"type": "input_audio"}, "input_audio"),
        ({"type": "image_url"}, "text and input_audio are supported"),
        (text("<|AUDIO|>[AUDIO]"), "the prompt has 1 places of sounds"),
    ]:
        status, answer = server.post(PATH, asked(content))
        assert status == 400 and said in answer["error"]["message"], answer
    many = [part(1.9, i) for i in range(20)]
    status, answer = server.post(PATH, asked(*many))
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert server.post(PATH, asked(part(0.7)))[0] == 200
