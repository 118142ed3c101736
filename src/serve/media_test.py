"""A model that takes pictures or sounds behind `graft serve`, against the generator of the same package, which
test/python/llm/phi4_multimodal_test.py compares with transformers."""

from __future__ import annotations

import base64
import concurrent.futures
import io

import PIL.Image
import pytest

import graft
from picture_models import BY_NAME, picture
from serving import Server
from speech_models import wav

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("media")
    return graft.export_llm(BY_NAME["phi4_multimodal"].save(folder / "model"), folder / "model.pte")


@pytest.fixture(scope="module")
def server(package):
    with Server(package, "--rows", "2", "--prefix-cache-bytes", str(1 << 24), "--context", "1024") as running:
        yield running


def seen(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "png")
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()},
    }


def heard(file):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file).decode(), "format": "wav"}}


def text(content):
    return {"type": "text", "text": content}


def asked(*content):
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 8, "temperature": 0}


def test_pictures_and_sounds_in_chats(server, package, tmp_path):
    image, file = picture(40, 60, 1), tmp_path / "a.wav"
    file.write_bytes(wav(0.7, 1))
    cases = [
        ([text("What is "), seen(image)], [text("What is "), {"type": "image"}], {"images": [image]}),
        ([text("What is "), heard(file.read_bytes())], [text("What is "), {"type": "audio"}], {"audio": [file]}),
        ([text("nothing else")], [text("nothing else")], {}),
    ]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda case: server.post(PATH, asked(*case[0])), cases * 2))
    generator = graft.TextGenerator(package, threads=1)
    for (_, content, media), (status, answer) in zip(cases * 2, answers):
        assert status == 200, answer
        expected = generator.generate([{"role": "user", "content": content}], max_new_tokens=8, **media)
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["usage"]["prompt_tokens"] == generator.stats["prompt_tokens"]


def test_wrong_requests(server):
    for content, message in [
        ([seen(picture(40, 60)), heard(wav(0.7))], "expected pictures or sounds, found both"),
        ([{"type": "video_url"}], "'video_url': text, image_url and input_audio are supported"),
        ([seen(picture(9, 128))], "a picture of 9 x 128 pixels is too long"),
        ([heard(wav(0.05))], "a sound of 800 samples is shorter than two positions of the tower"),
        ([seen(picture(40, 60)), text("<|video_pad|>")], "tokens of sounds"),
    ]:
        status, answer = server.post(PATH, asked(*content))
        assert status == 400 and message in answer["error"]["message"], answer
    assert server.post(PATH, asked(text("Hi")))[0] == 200
