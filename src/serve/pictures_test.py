"""Pictures in chat completions of `graft serve`, against the generator of the same package, which
test/python/llm/pictures_test.py compares with transformers."""

from __future__ import annotations

import base64
import concurrent.futures
import io

import numpy as np
import PIL.Image
import pytest

import graft
from picture_models import BY_NAME, picture
from serving import Server

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module", params=["smolvlm", "qwen2_5_vl"])
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return graft.export_llm(BY_NAME[request.param].save(folder / "model"), folder / "model.pte")


@pytest.fixture(scope="module")
def server(package):
    with Server(package, "--rows", "2", "--prefix-cache-bytes", str(1 << 24), "--context", "256") as running:
        yield running


def url(image, kind="png"):
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, kind)
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode()


def part(image, **more):
    return {"type": "image_url", "image_url": {"url": url(image), **more}}


def text(content):
    return {"type": "text", "text": content}


def asked(*content, tokens=8):
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": tokens, "temperature": 0}


def expected(package, content, images, tokens=8):
    """Text and number of the prompt's tokens."""
    generator = graft.TextGenerator(package, threads=1)
    found = generator.generate([{"role": "user", "content": content}], images=images, max_new_tokens=tokens)
    return found.text, generator.stats["prompt_tokens"]


def test_pictures_in_chats(server, package):
    one, two = picture(40, 60, 1), picture(40, 60, 2)
    place = {"type": "image"}
    cases = [
        ([text("What is "), part(one), text("?")], [text("What is "), place, text("?")], [one]),
        ([text("What is "), part(two), text("?")], [text("What is "), place, text("?")], [two]),
        ([part(one, detail="auto"), part(two), text("differ")], [place, place, text("differ")], [one, two]),
        ([text("no picture")], [text("no picture")], []),
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda case: server.post(PATH, asked(*case[0])), cases * 2))
    for (_, content, images), (status, answer) in zip(cases * 2, answers):
        assert status == 200, answer
        said, tokens = expected(package, content, images)
        assert answer["choices"][0]["message"]["content"] == said
        assert answer["usage"]["prompt_tokens"] == tokens


def test_messages_that_are_strings(server, package):
    status, answer = server.post(PATH, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0})
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == expected(package, [text("Hi")], [])[0]


def test_wrong_pictures(server):
    good = picture(9, 9)
    damaged = url(good)[:-40]
    flat = np.zeros((8193, 4097, 3), np.uint8)
    for content, said in [
        ({"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}, "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "is not base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "cannot be read: expected PNG, JPEG or BMP"),
        ({"type": "image_url", "image_url": {"url": damaged}}, "is damaged"),
        ({"type": "image_url", "image_url": {}}, "url"),
        ({"type": "image_url"}, "image_url"),
        (part(good, detail="high"), "'messages[0].content[0].image_url.detail' is supported as auto alone"),
        ({"type": "input_audio"}, "text and image_url are supported"),
        (part(flat), "has 4097 x 8193 pixels: expected 1 to 33554432"),
        (text("<image><|image_pad|>"), "the prompt has 1 places of pictures"),
    ]:
        status, answer = server.post(PATH, asked(content))
        assert status == 400 and said in answer["error"]["message"], answer
    many = [part(picture(30, 30, i)) for i in range(40)]
    status, answer = server.post(PATH, asked(*many))
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert server.post(PATH, asked(part(good)))[0] == 200


def test_completions_have_no_pictures(server):
    for prompt in ("<image>", "<|image_pad|>"):
        status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
        if status == 200:  # the other model's token
            continue
        assert status == 400 and "tokens of pictures" in answer["error"]["message"], answer
