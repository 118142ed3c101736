"""Rows through models as a person runs `graft batch`: what comes out is what the models give, row by row."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
import torch

import graft
from batches import batch, errors, files, good, read, write_rows
from serving import Server, export_minilm

WORDS = "Once upon a time there was a little girl called Lily who liked to play outside in the sun with her dog".split()


def texts(count: int, seed: int = 0) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randrange(1, 25))) for _ in range(count)]


# --- text encoders ---


def test_embeddings_and_classes(encoder, tmp_path):
    model, package, folder = encoder
    tokenizer = graft.Tokenizer.load(folder)
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": i, "body": text} for i, text in enumerate(texts(90))])
    task = "classify" if model.classes else "embed"
    args = "--task", task, "--text-column", "body", "--tokenizer", folder
    found = good(package, rows, tmp_path / "out", *args, "--shard-rows", 40)
    assert [row["id"] for row in found] == list(range(90)) and len(list((tmp_path / "out").glob("part-*"))) == 3
    for row in found:
        ids = torch.tensor([tokenizer.encode(row["body"])])
        with torch.no_grad():
            output = model(ids, torch.ones_like(ids))[0]
        if model.classes:
            scores = output.double().softmax(0).numpy()
            assert list(row) == ["id", "body", "label", "score", "scores"] and row["label"] == scores.argmax()
            np.testing.assert_allclose(row["scores"], scores, atol=2e-6)
            assert row["score"] == row["scores"][row["label"]]
        else:
            mean = output.double().mean(0)
            np.testing.assert_allclose(row["embedding"], (mean / mean.norm()).numpy(), atol=2e-6)
    if model.classes:
        named = good(package, rows, tmp_path / "named", *args, "--labels", "no,maybe,yes", "--drop", "body")
        assert [row["label"] for row in named] == [["no", "maybe", "yes"][row["label"]] for row in found]
        assert list(named[0]) == ["id", "label", "score", "scores"]
        done = batch(package, rows, tmp_path / "two", *args, "--labels", "no,yes")
        assert done.returncode == 1 and "the model has 3 classes, --labels names 2" in done.stderr
        done = batch(package, rows, tmp_path / "six", "--task", "embed", *args[2:])
        assert done.returncode == 0, "logits are vectors too"
    else:
        done = batch(package, rows, tmp_path / "classes", "--task", "classify", *args[2:])
        assert done.returncode == 1 and "classify needs logits [B, classes]" in done.stderr


def test_texts_that_are_too_long(encoder, tmp_path):
    model, package, folder = encoder
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "short"}, {"text": "word " * 100}, {"text": 7}, {"text": ""}])
    args = "--task", "classify" if model.classes else "embed", "--tokenizer", folder
    found = good(package, rows, tmp_path / "out", *args)
    assert [row["text"] for row in found] == ["short", ""] or [row["text"] for row in found] == ["short"]
    reasons = {error["row"]: error["error"] for error in errors(tmp_path / "out")}
    assert "tokens, the model takes 64 (--truncate cuts such texts off)" in reasons[1]
    assert reasons[2] == "column 'text' must be a string, found an integer"
    cut = good(package, rows, tmp_path / "cut", *args, "--truncate")
    assert [row["text"] for row in cut][:2] == ["short", "word " * 100]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("minilm") / "minilm.pte"
    sizes = {0: torch.export.Dim("rows", min=1, max=32), 1: torch.export.Dim("tokens", min=2, max=512)}
    folder, encoder = export_minilm(path, sizes)
    return path, encoder, transformers.AutoTokenizer.from_pretrained(folder), folder / "tokenizer.json"


def test_minilm(minilm, tmp_path):
    path, encoder, tokenizer, file = minilm
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in texts(60)])
    found = good(path, rows, tmp_path / "out", "--task", "embed", "--tokenizer", file)
    with torch.no_grad():
        inputs = tokenizer([row["text"] for row in found], padding=True, return_tensors="pt")
        states = encoder(**inputs).last_hidden_state.double()
    mask = inputs["attention_mask"][:, :, None]
    expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    np.testing.assert_allclose([row["embedding"] for row in found], expected.numpy(), atol=5e-6)
    # The same rows in another order are the same but for the last bits: other rows share their calls.
    backwards = write_rows(tmp_path / "backwards.jsonl", [{"text": row["text"]} for row in reversed(found)])
    again = good(path, backwards, tmp_path / "again", "--task", "embed", "--tokenizer", file)[::-1]
    np.testing.assert_allclose([r["embedding"] for r in again], [r["embedding"] for r in found], atol=2e-6)


def test_rerank(minilm, tmp_path):
    path, _, _, file = minilm
    documents = ["The cat sleeps.", "Knead the dough, then bake it for an hour.", "Stocks fell on Monday."]
    given = [{"query": "How do I make bread?", "documents": documents}, {"query": "Where is the cat?", "documents": documents},
             {"query": "", "documents": documents}, {"query": "x", "documents": []}, {"query": "x"}]  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", given)
    found = good(path, rows, tmp_path / "out", "--task", "rerank", "--tokenizer", file, "--set", "top_n=2")
    assert [row["results"][0]["index"] for row in found] == [1, 0] and len(found[0]["results"]) == 2
    reasons = [error["error"] for error in errors(tmp_path / "out")]
    assert "empty string" in reasons[0] and "from 1 to" in reasons[1] and reasons[2] == "there is no column 'documents'"
    with Server(path, "--tokenizer", f"minilm={file}") as server:
        answer = server.good("/v1/rerank", **given[0], top_n=2)
    assert answer["results"] == found[0]["results"]


# --- language models ---


def test_texts_are_those_of_the_server(stories, tmp_path):
    prompts = texts(40)
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": prompt, "n": i} for i, prompt in enumerate(prompts)])
    args = "--task", "generate", "--text-column", "prompt", "--set", "max_tokens=12", "--set", "temperature=0"
    found = good(stories, rows, tmp_path / "out", *args, "--rows", 4, "--shard-rows", 16)
    with Server(stories, "--rows", 1) as server:
        expected = [server.complete(p, max_tokens=12, temperature=0)["choices"][0] for p in prompts]
    assert [(row["completion"], row["finish_reason"], row["n"]) for row in found] == [
        (choice["text"], choice["finish_reason"], i) for i, choice in enumerate(expected)
    ]
    one = tmp_path / "one"
    assert good(stories, rows, one, *args, "--rows", 1, "--shard-rows", 7, "--prefix-cache-bytes", 0) == found


def test_rows_that_sample_have_seeds_of_their_own(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "Once upon a time"}] * 12)
    args = "--task", "generate", "--set", "max_tokens=12", "--set", "temperature=1.5"
    first = good(stories, rows, tmp_path / "first", *args)
    assert len({row["completion"] for row in first}) > 6
    assert good(stories, rows, tmp_path / "second", *args, "--rows", 2) == first
    same = good(stories, rows, tmp_path / "same", *args, "--set", "seed=3")
    assert len({row["completion"] for row in same}) == 1


def test_chat(stories, tmp_path):
    messages = [[{"role": "user", "content": text}] for text in texts(6)]
    rows = write_rows(tmp_path / "rows.jsonl", [{"messages": m, "text": m[0]["content"]} for m in messages])
    settings = "--set", "max_tokens=10", "--set", "temperature=0"
    found = good(stories, rows, tmp_path / "out", "--task", "chat", *settings)
    of_text = good(stories, rows, tmp_path / "text", "--task", "chat", "--text-column", "text", *settings)
    assert of_text == found
    system = good(stories, rows, tmp_path / "system", "--task", "chat", "--system", "Be brief.", *settings)
    form = '{"type":"json_schema","json_schema":{"name":"n","schema":{"enum":["yes","no"]}}}'
    formed = good(stories, rows, tmp_path / "form", "--task", "chat", *settings, "--set", f"response_format={form}")
    assert {row["answer"] for row in formed} <= {'"yes"', '"no"'}
    with Server(stories, "--rows", 2) as server:
        for row, told, given in zip(found, system, messages):
            fields = {"max_tokens": 10, "temperature": 0}
            answer = server.good("/v1/chat/completions", messages=given, **fields)["choices"][0]
            assert (row["answer"], row["finish_reason"]) == (answer["message"]["content"], answer["finish_reason"])
            given = [{"role": "system", "content": "Be brief."}, *given]
            answer = server.good("/v1/chat/completions", messages=given, **fields)["choices"][0]
            assert told["answer"] == answer["message"]["content"]


# --- files of OpenAI's Batch API ---


def request(custom_id: object, url: str, **body: object) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def test_openai_files(stories, tmp_path):
    chat, plain = "/v1/chat/completions", "/v1/completions"
    say = [{"role": "user", "content": "Hello"}]
    requests = [
        request("a", chat, model="gpt", messages=say, max_tokens=8, temperature=0),
        request("b", plain, model="gpt", prompt=["Once", "One day"], max_tokens=5, n=2, temperature=1, logprobs=1),
        request("c", chat, model="gpt", messages=say, temperature=9),
        request("d", chat, model="other", messages=say),
        request("e", "/v1/embeddings", model="gpt", input="x"),
        request("f", chat, model="gpt", messages=say, nonsense=1),
        request("g", plain, model="gpt", prompt="Once upon a time", max_tokens=6, seed=5, temperature=1),
        request("h", plain, model="gpt", prompt="x", stream=True),
        request("i", "/v1/models/unload", model="gpt"),
        {**request("j", chat, messages=say), "method": "GET"},
        request(7, chat, messages=say),
        "{",
        {**request("k", chat, messages=say), "more": 1},
    ]
    rows = write_rows(tmp_path / "rows.jsonl", requests)
    found = good(f"gpt={stories}", rows, tmp_path / "out", "--task", "openai")
    assert [line["custom_id"] for line in found] == list("abcdefg")
    assert all(set(line) == {"id", "custom_id", "response", "error"} and line["error"] is None for line in found)
    assert len({line["id"] for line in found}) == 7 and found[0]["id"].startswith("batch_req_")
    assert [line["response"]["status_code"] for line in found] == [200, 200, 400, 404, 400, 400, 200]
    reasons = {error["row"]: error["error"] for error in errors(tmp_path / "out")}
    assert sorted(reasons) == [7, 8, 9, 10, 11, 12]
    for row, text in {7: "'body.stream' must be false", 8: "'url' must be", 9: "'method' must be POST",
                      10: "'custom_id' must be a string", 11: "no valid JSON", 12: "unknown parameter 'more'"}.items():  # fmt: skip
        assert text in reasons[row]
    with Server(f"gpt={stories}", "--rows", 2) as server:
        for line, asked in zip(found, requests):
            status, answer = server.post(asked["url"], asked["body"])
            body = line["response"]["body"]
            assert status == line["response"]["status_code"]
            if status != 200:
                assert body == answer
            else:
                assert body.keys() == answer.keys() and body["model"] == "gpt"
                usage = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
                assert body["usage"] == usage
                if "seed" in asked["body"] or asked["body"].get("temperature") == 0:
                    assert body["choices"] == answer["choices"]
    assert [len(line["response"]["body"].get("choices", [])) for line in found] == [1, 4, 0, 0, 0, 0, 1]


def test_openai_embeddings(minilm, tmp_path):
    path, _, _, file = minilm
    bodies = [{"model": "minilm", "input": ["a", "b"]}, {"model": "minilm", "input": "a", "encoding_format": "base64"},
              {"model": "minilm", "input": []}]  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", [request(str(i), "/v1/embeddings", **b) for i, b in enumerate(bodies)])
    found = good(path, rows, tmp_path / "out", "--task", "openai", "--tokenizer", file)
    with Server(path, "--tokenizer", f"minilm={file}") as server:
        for line, body in zip(found, bodies):
            assert (line["response"]["status_code"], line["response"]["body"]) == server.post("/v1/embeddings", body)


# --- any method ---


# An input that is a number has no name in a package.
METHOD = "--task", "method", "--column", "input_2=n"


def net_rows(count: int) -> list[dict]:
    chosen = random.Random(3)
    return [
        {"x": [chosen.uniform(-2, 2) for _ in range(4)], "ids": [chosen.randrange(100) for _ in range(chosen.randrange(2, 6))],
         "n": chosen.randrange(3), "name": f"row {i}"} for i in range(count)
    ]  # fmt: skip


def test_any_method(net, tmp_path):
    model, package = net
    given = net_rows(150)
    rows = write_rows(tmp_path / "rows.jsonl", given)
    found = good(package, rows, tmp_path / "out", *METHOD, "--shard-rows", 64)
    names = [name for name in found[0] if name not in given[0]]
    assert len(found) == 150 and len(names) == 4
    for row, asked in zip(found, given):
        assert {key: row[key] for key in asked} == asked
        with torch.no_grad():
            y = model.linear(torch.tensor([asked["x"]]))[0]
        np.testing.assert_allclose(row[names[0]], y.numpy(), atol=1e-6)
        assert row[names[1]] == (y > 0).tolist() and row[names[2]] == sum(asked["ids"]) + asked["n"]
        assert row[names[3]] == 1.0, "a call begins with the states of the package"
    renamed = write_rows(tmp_path / "renamed.jsonl", [{"a": row["x"], "ids": row["ids"], "n": row["n"]} for row in given])
    again = good(package, renamed, tmp_path / "again", *METHOD, "--column", "x=a", "--batch-rows", 1)
    for row, other in zip(found, again):
        np.testing.assert_allclose(row[names[0]], other[names[0]], atol=1e-6)


def test_rows_that_a_method_does_not_take(net, tmp_path):
    _, package = net
    row = net_rows(1)[0]
    changes = [{}, {"x": [1, 2, 3]}, {"x": 5}, {"x": [[1, 2, 3, 4]]}, {"x": [1, "2", 3, 4]}, {"ids": [1.5, 2]},
               {"ids": [[1], [2, 3]]}, {"n": [1]}, {"n": None}, {"ids": list(range(10))}, {"x": [1e39, 0, 0, 0]}, {}]  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", [{**row, **change} for change in changes])
    found = good(package, rows, tmp_path / "out", *METHOD)
    assert len(found) == 2 and found[0] == found[1]
    reasons = [(error["row"], error["error"]) for error in errors(tmp_path / "out")]
    assert [number for number, _ in reasons] == list(range(1, 11))
    for (_, reason), text in zip(reasons, ("dimension 1", "lists 1 deep, found an integer", "lists 1 deep, found lists 2 deep",
                                           "must hold numbers, found a string", "must hold integers", "different sizes",
                                           "must be a number, found lists 1 deep", "there is no column 'n'", "dimension 1",
                                           "which FP32 cannot")):  # fmt: skip
        assert text in reason, (reason, text)


def test_inputs_without_rows(tmp_path):
    class Whole(torch.nn.Module):
        def forward(self, m: torch.Tensor):
            return m @ m, m.sum()

    package = tmp_path / "whole.pte"
    graft.export(Whole(), (torch.ones(2, 2),), path=package)
    rows = write_rows(tmp_path / "rows.jsonl", [{"m": [[1, 2], [3, 4]]}, {"m": [[0.5, 0], [0, 2]]}])
    found = good(package, rows, tmp_path / "out", "--task", "method")
    assert [list(row.values())[1:] for row in found] == [[[[7, 10], [15, 22]], 10], [[[0.25, 0], [0, 4]], 2.5]]


# --- files ---


def test_csv(encoder, tmp_path):
    model, package, folder = encoder
    given = [("a, b", "Once upon"), ('say "x"', "a time\nthere"), ("", "was"), ("ä", ' "Lily" ')]
    with open(tmp_path / "rows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("note", "text"), *given])
    args = "--task", "classify" if model.classes else "embed", "--tokenizer", folder
    done = batch(package, tmp_path / "rows.csv", tmp_path / "out", *args)
    assert done.returncode == 0 and "4 rows, 0 of them errors" in done.stderr
    with open(tmp_path / "out" / "part-00000.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [(row["note"], row["text"]) for row in found] == given
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text} for _, text in given])
    for row, other in zip(found, good(package, rows, tmp_path / "json", *args)):
        for name, value in other.items():
            assert (row[name] if name == "text" else json.loads(row[name])) == value


def test_csv_of_lists(net, tmp_path):
    _, package = net
    given = net_rows(5)
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        cells = [[json.dumps(v) if k != "name" else v for k, v in row.items()] for row in given]
        csv.writer(file).writerows([list(given[0]), *cells])
    assert batch(package, tmp_path / "rows.csv", tmp_path / "out", *METHOD).returncode == 0
    expected = good(package, write_rows(tmp_path / "rows.jsonl", given), tmp_path / "json", *METHOD)
    with open(tmp_path / "out" / "part-00000.csv", newline="") as file:
        for row, other in zip(csv.DictReader(file), expected):
            assert {k: v if k == "name" else json.loads(v) for k, v in row.items()} == other


def test_rows_keep_their_text(net, tmp_path):
    """Numbers as they were written, also those that no number of C++ is."""
    _, package = net
    line = '{"big": 123456789012345678901234567890, "f": 1.50, "x": [1, 2, 3, 4.0], "ids":[1, 2],"n":1 }'
    rows = write_rows(tmp_path / "rows.jsonl", [line, "", "  " + line + "  "])
    good(package, rows, tmp_path / "out", *METHOD)
    lines = (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()
    assert len(lines) == 2 and lines[0] == lines[1] and lines[0].startswith(line[:-2] + ",")


def test_bad_rows_do_not_stop_a_run(stories, tmp_path):
    lines = ['{"text": "Once"}', "{", "[]", '{"text": null}', '{"other": 1}', '{"text": "a", "completion": 1}',
             '{"text": "' + "a " * 2000 + '"}', '{"text": "upon"}']  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", lines)
    found = good(stories, rows, tmp_path / "out", "--task", "generate", "--set", "max_tokens=3", "--shard-rows", 3)
    assert [row["text"] for row in found] == ["Once", "upon"]
    found_errors = errors(tmp_path / "out")
    assert [(error["row"], error["line"]) for error in found_errors] == [(i, i + 1) for i in range(1, 7)]
    for error, text in zip(found_errors, ("no valid JSON", "found an array", "no column 'text'", "no column 'text'",
                                          "has a column 'completion'", "which exceeds the available context size")):  # fmt: skip
        assert text in error["error"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [(shard["rows"], shard.get("errors", 0)) for shard in manifest["shards"]] == [(3, 2), (3, 3), (2, 1)]
    dropped = good(stories, rows, tmp_path / "drop", "--task", "generate", "--set", "max_tokens=3", "--drop", "completion")
    assert [row["text"] for row in dropped] == ["Once", "a", "upon"]


def test_an_empty_file(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [])
    assert good(stories, rows, tmp_path / "out", "--task", "generate") == [] and files(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--task", "generate", "--text-column", "prompt"], 1, "none of the first 3 rows can be computed; line 1: there is no"),
        (["--task", "generate", "--set", "temperature=9"], 1, "'temperature' must be from 0 to 2"),
        (["--task", "generate", "--set", "n=2"], 1, "--set cannot give 'n' to this task"),
        (["--task", "generate", "--set", "stop=x"], 1, "'x' is no JSON"),
        (["--task", "generate", "--set", "stop"], 1, "--set takes NAME=JSON"),
        (["--task", "generate", "--set", "seed=1", "--set", "seed=2"], 1, "gives 'seed' twice"),
        (["--task", "generate", "--column", "x=y"], 1, "reads nothing that it calls 'x'"),
        (["--task", "generate", "--column", "text"], 2, "is not WHAT=NAME"),
        (["--task", "generate", "--truncate"], 1, "the task 'generate' has no --truncate"),
        (["--task", "generate", "--method", "step"], 1, "the task 'generate' has no --method"),
        (["--task", "openai", "--drop", "x"], 1, "has no --drop"),
        (["--task", "openai"], 1, "none of the first 3 rows can be computed; line 1: 'custom_id' is required"),
        (["--task", "rerank"], 1, "is no text encoder with a tokenizer"),
        (["--task", "embed"], 1, "is not a text encoder"),
        (["--task", "method"], 1, "there is no column 'input_ids'"),
        (["--task", "method", "--method", "none"], 1, "none"),
        (["--task", "sing"], 2, "--task"),
        ([], 2, "--task"),
        (["--task", "generate", "--shard-rows", "0"], 2, "--shard-rows"),
        (["--task", "generate", "--format", "csv"], 1, "has no column 'text'"),
    ],
)  # fmt: skip
def test_wrong_use(stories, tmp_path, args, code, message):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}, {"text": "c"}])
    done = batch(stories, rows, tmp_path / "out", *args)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and read(tmp_path / "out") == [] == errors(tmp_path / "out")


def test_wrong_columns_of_csv(stories, tmp_path):
    (tmp_path / "rows.csv").write_text("a,completion\n1,2\n")
    for args, message in ((["--text-column", "b", "--drop", "completion"], "has no column 'b', which the task 'generate' reads"),
                          (["--text-column", "a"], "has a column 'completion', which is what the task"),
                          (["--text-column", "a", "--drop", "completion", "--drop", "c"], "has no column 'c' to drop")):  # fmt: skip
        done = batch(stories, tmp_path / "rows.csv", tmp_path / message[:20], "--task", "generate", *args)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_unreadable_input(stories, tmp_path):
    task = "--task", "generate"
    (tmp_path / "rows.txt").write_text("{}\n")
    for rows, message in ((tmp_path / "none.jsonl", "there is no file"), (tmp_path / "rows.txt", "is named neither .jsonl, .csv")):
        done = batch(stories, rows, tmp_path / "out", *task)
        assert done.returncode != 0 and message in done.stderr
    done = batch(stories, tmp_path, tmp_path / "out", *task, "--format", "jsonl")
    assert done.returncode == 1 and "it is no regular file" in done.stderr
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "a"}])
    done = batch(tmp_path / "none.pte", rows, tmp_path / "out", *task)
    assert done.returncode == 1 and "none.pte" in done.stderr and not (tmp_path / "out").exists()
    (tmp_path / "bad.csv").write_bytes(b"\xff\n")
    done = batch(stories, tmp_path / "bad.csv", tmp_path / "out", *task)
    assert done.returncode == 1 and "not UTF-8" in done.stderr
