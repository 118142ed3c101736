"""Pictures in requests of `graft serve`: chat completions against the generator of the same package, which
test/python/llm/pictures_test.py compares with transformers, the other APIs against chat completions."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json

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


# --- OpenAI's Responses API and Anthropic's messages ---


def input_image(image, **more):
    return {"type": "input_image", "image_url": url(image), **more}


def input_text(content):
    return {"type": "input_text", "text": content}


def block(image, kind="png"):
    data = url(image, kind).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": f"image/{kind}", "data": data}}


def response(items, tokens=8):
    return {"input": items, "max_output_tokens": tokens, "temperature": 0}


def message(messages, tokens=8):
    return {"messages": messages, "max_tokens": tokens, "temperature": 0}


def user(*content):
    return {"role": "user", "content": list(content)}


def text_of_response(answer):
    """An empty text is no item."""
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


def text_of_message(answer):
    return "".join(block["text"] for block in answer["content"])


def streamed(server, path, body, kind, text_of):
    answer, data = server.request("POST", path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
    assert answer.status == 200, data
    events = [json.loads(line.removeprefix("data: ")) for line in data.decode().splitlines() if line.startswith("data: ")]
    return "".join(text_of(event) for event in events if event["type"] == kind)


def test_pictures_in_other_apis_are_those_of_chats(server):
    one, two = picture(40, 60, 1), picture(40, 60, 2)
    cases = [  # of a chat, of a response and of Anthropic's messages
        ([text("What is "), part(one), text("?")], [input_text("What is "), input_image(one), input_text("?")],
         [text("What is "), block(one), text("?")]),
        ([part(one), part(two), text("differ")], [input_image(one, detail="auto"), input_image(two), input_text("differ")],
         [block(one), block(two), text("differ")]),
        ([part(two)], [input_image(two)], [block(two)]),
        ([text("no picture")], [input_text("no picture")], [text("no picture")]),
    ]  # fmt: skip
    prompts, texts = set(), set()
    for chat, items, blocks in cases:
        status, expected = server.post(PATH, asked(*chat))
        assert status == 200, expected
        said, tokens = expected["choices"][0]["message"]["content"], expected["usage"]["prompt_tokens"]
        prompts.add(tokens)
        texts.add(said)

        body = response([user(*items)])
        status, answer = server.post("/v1/responses", body)
        assert status == 200, answer
        assert text_of_response(answer) == said and answer["usage"]["input_tokens"] == tokens
        assert streamed(server, "/v1/responses", body, "response.output_text.delta", lambda event: event["delta"]) == said

        body = message([user(*blocks)])
        status, answer = server.post("/v1/messages", body)
        assert status == 200, answer
        usage = answer["usage"]
        assert text_of_message(answer) == said
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == tokens
        assert streamed(server, "/v1/messages", body, "content_block_delta", lambda event: event["delta"]["text"]) == said
        status, count = server.post("/v1/messages/count_tokens", {"messages": body["messages"]})
        assert status == 200 and count == {"input_tokens": tokens}
    assert len(prompts) > 2 and len(texts) > 2


def test_pictures_of_several_messages_keep_their_places(server):
    """Those of tools' results too, which become messages of their own, before the others of theirs."""
    one, two = picture(40, 60, 1), picture(60, 40, 2)
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": [text("seen: "), part(one)]}, user(part(two), text("and?"))]  # fmt: skip
    status, expected = server.post(PATH, {"messages": chat, "max_tokens": 8, "temperature": 0})
    assert status == 200, expected
    said, tokens = expected["choices"][0]["message"]["content"], expected["usage"]["prompt_tokens"]
    items = [{"role": "user", "content": "Hi"}, {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "a", "output": [input_text("seen: "), input_image(one)]},
             user(input_image(two), input_text("and?"))]  # fmt: skip
    status, answer = server.post("/v1/responses", response(items))
    assert status == 200, answer
    assert text_of_response(answer) == said and answer["usage"]["input_tokens"] == tokens
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("seen: "), block(one)]}
    messages = [{"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                user(block(two), result, text("and?"))]  # fmt: skip
    status, answer = server.post("/v1/messages", message(messages))
    assert status == 200, answer
    usage = answer["usage"]
    assert text_of_message(answer) == said and usage["input_tokens"] + usage["cache_read_input_tokens"] == tokens


def test_wrong_pictures_in_responses(server):
    good = picture(9, 9)
    where = "'input[1].content[0]"
    for content, said in [
        ({"type": "input_image", "image_url": "http://example.com/a.png"}, f"{where}.image_url' must be data:image/png"),
        ({"type": "input_image", "image_url": "data:text/plain;base64,AAAA"}, f"{where}.image_url' must be data:image/png"),
        ({"type": "input_image", "image_url": "data:image/png;base64,*"}, f"{where}.image_url' is not base64"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, f"{where}.image_url' cannot be read"),
        ({"type": "input_image", "image_url": url(good)[:-40]}, f"{where}.image_url' is damaged"),
        ({"type": "input_image", "image_url": {"url": url(good)}}, f"{where}.image_url' must be a string"),
        ({"type": "input_image"}, f"{where}.image_url' is required"),
        ({"type": "input_image", "file_id": "file-1"}, f"{where}.file_id' is not supported"),
        (input_image(good, detail="high"), f"{where}.detail' is supported as auto alone"),
        (input_image(good, size=1), "size"),
        (input_image(np.zeros((8193, 4097, 3), np.uint8)), "has 4097 x 8193 pixels: expected 1 to 33554432"),
        ({"type": "input_audio", "input_audio": {}}, f"{where}.type' is 'input_audio': text and input_image are supported"),
        ({"type": "input_file", "file_id": "file-1"}, f"{where}.type' is 'input_file': text and input_image are supported"),
        (part(good), f"{where}.type' is 'image_url': text and input_image are supported"),
    ]:
        status, answer = server.post("/v1/responses", response([{"role": "user", "content": "Hi"}, user(content)]))
        assert status == 400 and said in answer["error"]["message"], answer
    status, answer = server.post("/v1/responses", response([user(*[input_image(picture(30, 30, i)) for i in range(40)])]))
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer


def test_wrong_pictures_in_messages(server):
    def source(**fields):
        return {"type": "image", "source": fields}

    good = picture(9, 9)
    data = block(good)["source"]["data"]
    wrong = [
        (source(type="url", url="http://example.com/a.png"), ".source.type' is 'url': base64 is supported"),
        (source(type="file", file_id="file-1"), ".source.type' is 'file': base64 is supported"),
        (source(type="base64", media_type="image/webp", data=data), ".source.media_type' is 'image/webp'; types are image/png"),
        (source(type="base64", media_type="image/png", data="*"), ".source.data' is not base64"),
        (source(type="base64", media_type="image/png", data="AAAA"), ".source.data' cannot be read"),
        (source(type="base64", media_type="image/png", data=data[:-40]), ".source.data' is damaged"),
        (source(type="base64", media_type="image/png"), ".source.data' is required"),
        (source(type="base64", data=data), ".source.media_type' is required"),
        (source(type="base64", media_type="image/png", data=data, size=1), "size"),
        ({"type": "image"}, ".source' is required"),
        ({"type": "document", "source": {}}, ".type' is 'document'"),
    ]
    for content, said in wrong:
        for shape, where in [
            (user(content), "messages[0].content[0]"),
            (user({"type": "tool_result", "tool_use_id": "a", "content": [content]}), "messages[0].content[0].content[0]"),
        ]:
            status, answer = server.post("/v1/messages", message([shape]))
            assert status == 400 and said in answer["error"]["message"], answer
            assert where in answer["error"]["message"], answer
    status, answer = server.post("/v1/messages", {**message([user(block(good))]), "system": [block(good)]})
    assert status == 400 and "'system[0].type' is 'image': only text is supported here" in answer["error"]["message"], answer


def test_models_without_pictures(stories):
    """Of the small model of stories, which reads text alone."""
    image = picture(9, 9)
    with Server(stories) as server:
        for path, body, said in [
            (PATH, asked(part(image)), "'messages[0].content[0].type' is 'image_url': only text is supported"),
            ("/v1/responses", response([user(input_image(image))]),
             "'input[0].content[0].type' is 'input_image': the model takes no pictures"),
            ("/v1/messages", message([user(block(image))]),
             "'messages[0].content[0].type' is 'image': the model takes no pictures"),
        ]:  # fmt: skip
            status, answer = server.post(path, body)
            assert status == 400 and said in answer["error"]["message"], answer
