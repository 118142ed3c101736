"""Models that are no language models, over HTTP: the Open Inference Protocol, and embeddings of a text encoder."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import re
import struct

import numpy as np
import pytest
import torch
from torch.export import Dim

import graft
from serving import Server


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, n: int):
        self.calls.add_(1)
        y = self.linear(x)
        return {"y": y, "half": y.to(torch.float16), "big": y > 0, "sum": ids.sum(1) + n, "calls": self.calls.clone()}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def server(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("v2") / "net.pte"
    rows = Dim("rows", min=1, max=64)
    inputs = (torch.randn(2, 4), torch.ones(2, 3, dtype=torch.int64), 5)
    graft.export(net, inputs, dynamic_shapes=({0: rows}, {0: rows}, None), path=path)
    with Server(path) as running:
        yield running


def tensor(name, array):
    kinds = {"float32": "FP32", "int64": "INT64"}
    return {"name": name, "shape": list(array.shape), "datatype": kinds[str(array.dtype)], "data": array.ravel().tolist()}


def test_metadata(server):
    assert server.get("/v2/health/live") == (200, {"live": True})
    assert server.get("/v2/health/ready") == (200, {"ready": True})
    status, about = server.get("/v2")
    assert status == 200 and about["name"] == "graft" and about["extensions"] == ["binary_tensor_data"]
    assert server.get("/v2/models/net/ready") == (200, {"name": "net", "ready": True})
    status, model = server.get("/v2/models/net")
    assert status == 200 and model == server.get("/v2/models/net/versions/1")[1]
    assert model["platform"] == "graft_pte" and model["versions"] == ["1"]
    assert [(i["datatype"], i["shape"]) for i in model["inputs"][:2]] == [("FP32", [-1, 4]), ("INT64", [-1, 3])]
    assert [o["datatype"] for o in model["outputs"]] == ["FP32", "FP16", "BOOL", "INT64", "FP32"]
    for path in ("/v2/models/other", "/v2/models/net/versions/2"):
        status, error = server.get(path)
        assert status == 404 and set(error) == {"error"} and isinstance(error["error"], str)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_json(server, net, rows):
    _, model = server.get("/v2/models/net")
    names = [value["name"] for value in model["inputs"]]
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype("float32")
    ids = np.arange(rows * 3).reshape(rows, 3)
    inputs = [tensor(names[0], x), tensor(names[1], ids)]
    if len(names) > 2:
        inputs.append({"name": names[2], "shape": [1], "datatype": "INT64", "data": [5]})
    outputs = [{"name": model["outputs"][index]["name"]} for index in (0, 2, 3, 4)]
    answer = server.good("/v2/models/net/infer", id="one", inputs=inputs, outputs=outputs)
    assert answer["id"] == "one" and answer["model_name"] == "net"
    y, big, total, calls = (np.array(out["data"]).reshape(out["shape"]) for out in answer["outputs"])
    with torch.no_grad():
        expected = net.linear(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert (big == (expected > 0)).all() and (total == ids.sum(1) + 5).all()
    assert calls.tolist() == [1.0], "a call saw the states of another"


def binary_call(server, model, arrays, outputs):
    kinds = {"float32": "FP32", "int64": "INT64"}
    inputs, tail = [], b""
    for value, array in zip(model["inputs"], arrays):
        data = array.tobytes()
        inputs.append({"name": value["name"], "shape": list(array.shape), "datatype": kinds[str(array.dtype)],
                       "parameters": {"binary_data_size": len(data)}})  # fmt: skip
        tail += data
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    answer, body = server.request(
        "POST", "/v2/models/net/infer", head + tail,
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    assert answer.status == 200, body
    size = int(answer.headers["Inference-Header-Content-Length"])
    described, at, found = json.loads(body[:size]), size, []
    types = {"FP32": "float32", "FP16": "float16", "BOOL": "bool", "INT64": "int64"}
    for out in described["outputs"]:
        end = at + out["parameters"]["binary_data_size"]
        found.append(np.frombuffer(body[at:end], types[out["datatype"]]).reshape(out["shape"]))
        at = end
    assert at == len(body)
    return found


def test_binary(server, net):
    _, model = server.get("/v2/models/net")
    arrays = [np.random.default_rng(3).normal(size=(5, 4)).astype("float32"), np.ones((5, 3), "int64")]
    if len(model["inputs"]) > 2:
        arrays.append(np.array([5]))
    outputs = [{"name": value["name"], "parameters": {"binary_data": True}} for value in model["outputs"]]
    y, half, big, total, calls = binary_call(server, model, arrays, outputs)
    with torch.no_grad():
        expected = net.linear(torch.from_numpy(arrays[0]))
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert (half == y.astype("float16")).all() and (big == (y > 0)).all() and (total == 8).all()


def test_many_at_once(server):
    _, model = server.get("/v2/models/net")
    rng = np.random.default_rng(1)

    def ask(rows):
        arrays = [rng.normal(size=(rows, 4)).astype("float32"), np.full((rows, 3), rows)]
        if len(model["inputs"]) > 2:
            arrays.append(np.array([5]))
        outputs = [{"name": model["outputs"][3]["name"], "parameters": {"binary_data": True}}]
        (total,) = binary_call(server, model, arrays, outputs)
        return total.tolist() == [rows * 3 + 5] * rows

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, [1 + i % 9 for i in range(64)]))


@pytest.mark.parametrize(
    ("shape", "message"), [([65, 4], "65"), ([2, 5], "5"), ([0, 4], "0"), ([8], "rank")]
)
def test_sizes_that_the_program_does_not_take(server, shape, message):
    _, model = server.get("/v2/models/net")
    x = np.zeros(shape, "float32")
    inputs = [tensor(model["inputs"][0]["name"], x), tensor(model["inputs"][1]["name"], np.ones((max(shape[0], 1), 3), "int64"))]
    if len(model["inputs"]) > 2:
        inputs.append({"name": model["inputs"][2]["name"], "shape": [1], "datatype": "INT64", "data": [5]})
    status, error = server.post("/v2/models/net/infer", {"inputs": inputs})
    assert status == 400 and message in error["error"], error


def test_no_content_type(server):
    """tritonclient names none; a page of another site may leave it out too, but its browser says where it comes from."""
    for headers, status in [({}, 404), ({"Origin": "http://elsewhere"}, 415), ({"Content-Type": "text/plain"}, 415)]:
        assert server.request("POST", "/v2/models/none/infer", b"{}", headers)[0].status == status


def test_it_is_no_language_model(server):
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/tokenize", {"content": "x"})):
        status, error = server.post(path, body)
        assert status == 400 and "no language model" in error["error"]["message"]
    status, error = server.post("/v1/embeddings", {"input": "x"})
    assert status == 400 and "no text encoder" in error["error"]["message"]


# --- embeddings ---


@pytest.fixture(scope="module")
def minilm(minilm_package):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_package.folder)
    with Server(minilm_package.path, "--tokenizer", f"minilm={minilm_package.tokenizer}") as running:
        yield running, minilm_package.encoder, tokenizer


def test_embeddings(minilm):
    server, encoder, tokenizer = minilm
    texts = ["How do I make bread?", "Knead the dough for ten minutes.", "x"]
    answer = server.good("/v1/embeddings", input=texts, model="minilm")
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2] and answer["object"] == "list"
    tokens = 0
    for text, entry in zip(texts, answer["data"]):
        inputs = tokenizer(text, return_tensors="pt")
        tokens += inputs["input_ids"].shape[1]
        with torch.no_grad():
            mean = encoder(**inputs).last_hidden_state[0].double().mean(0)
        np.testing.assert_allclose(entry["embedding"], (mean / mean.norm()).numpy(), atol=2e-6)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    coded = server.good("/v1/embeddings", input=texts[0], encoding_format="base64")["data"][0]["embedding"]
    vector = struct.unpack("<384f", base64.b64decode(coded))
    np.testing.assert_allclose(vector, answer["data"][0]["embedding"], atol=1e-7)


def test_rerank(minilm):
    server, _, _ = minilm
    documents = ["The cat sleeps.", {"text": "Knead the dough, then bake it for an hour."}, "Stocks fell on Monday."]
    answer = server.good("/v1/rerank", query="How do I make bread?", documents=documents, return_documents=True)
    assert answer["results"][0]["index"] == 1 and answer["results"][0]["document"] == documents[1]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True) and sorted(r["index"] for r in answer["results"]) == [0, 1, 2]
    vectors = [np.array(server.good("/v1/embeddings", input=text)["data"][0]["embedding"])
               for text in ("How do I make bread?", documents[1]["text"])]  # fmt: skip
    assert scores[0] == pytest.approx(vectors[0] @ vectors[1], abs=1e-6)
    assert len(server.good("/v1/rerank", query="x", documents=documents, top_n=2)["results"]) == 2


def test_rerank_as_text_embeddings_inference_has_it(minilm):
    server, _, _ = minilm
    texts = ["The cat sleeps.", "Knead the dough, then bake it for an hour."]
    expected = server.good("/v1/rerank", query="How do I make bread?", documents=texts)["results"]
    listed = server.good("/rerank", query="How do I make bread?", texts=texts, return_text=True)
    assert listed == [{"index": r["index"], "score": r["relevance_score"], "text": texts[r["index"]]} for r in expected]


def test_embeddings_of_token_ids(minilm):
    """OpenAI's forms, and llama-server's: ids are taken as they are, without special tokens of the server's."""
    server, _, tokenizer = minilm
    text = "Knead the dough."
    ids = tokenizer(text)["input_ids"]
    (vector,) = (entry["embedding"] for entry in server.good("/v1/embeddings", input=text)["data"])
    for given in (ids, [ids, text], [{"prompt_string": text}], {"content": [{"type": "text", "text": text}]}):
        answer = server.good("/v1/embeddings", input=given)
        assert answer["data"][0]["embedding"] == vector
        assert answer["usage"]["prompt_tokens"] == len(ids) * len(answer["data"])
    mixed = server.good("/v1/embeddings", input=[ids[0], *tokenizer(text, add_special_tokens=False)["input_ids"], ids[-1]])
    assert mixed["data"][0]["embedding"] == vector


def test_embeddings_of_many_clients(minilm):
    server, _, _ = minilm
    texts = [f"text number {i} " * (1 + i % 5) for i in range(32)]
    alone = [server.good("/v1/embeddings", input=text)["data"][0]["embedding"] for text in texts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda text: server.good("/v1/embeddings", input=text)["data"][0]["embedding"], texts))
    assert together == alone


def test_vectors_do_not_depend_on_company(minilm):
    """Texts of the same number of tokens are one run, of up to 256 tokens, whichever calls they are of: five of each length, in
    one call and in many, have the bits of each alone."""
    server, _, _ = minilm
    texts = [[101, *((7 * place + 31 * length + 1009 * i) % 20000 + 1000 for place in range(length - 2)), 102]
             for i in range(5) for length in (*range(2, 66), 100, 128)]  # fmt: skip

    def vectors(given):
        return [entry["embedding"] for entry in server.good("/v1/embeddings", input=given)["data"]]

    def runs():
        return server.gauge("graft_runs_total")

    before = runs()
    alone = [vectors([text])[0] for text in texts]
    assert runs() - before == len(texts)
    before = runs()
    assert vectors(texts) == alone
    # Up to 8 tokens one by one; then five as 4 + 1 up to 64 tokens, as 2 + 2 + 1 up to 128.
    assert runs() - before == 7 * 5 + 56 * 2 + 3 * 3
    before = runs()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda i: vectors([texts[i]])[0], order)) == [alone[i] for i in order]
    assert runs() - before < len(texts)


def test_embeddings_with_the_openai_client(minilm):
    openai = pytest.importorskip("openai")
    server, _, _ = minilm
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    vectors = client.embeddings.create(model="minilm", input=["a", "b"])
    assert [len(entry.embedding) for entry in vectors.data] == [384, 384]


# Calls that are one run -----------------------------------------------------------------------------------------------


class Scores(torch.nn.Module):
    """Rows on their own; an index beyond the table is data that a kernel must not act on."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids)).softmax(-1)


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("batches") / "scores.pte"
    sizes = {0: Dim("rows", min=1, max=16), 1: Dim("words", min=1, max=40)}
    graft.export(Scores().eval(), (torch.ones(2, 5, dtype=torch.int64),), dynamic_shapes=(sizes,), path=path)
    return path


def counted(server, name: str) -> int:
    _, text = server.request("GET", "/metrics")
    return int(float(re.search(rf'^{name}{{model_name="scores"}} (\S+)$', text.decode(), re.M)[1]))


def asked(server, ids: np.ndarray):
    body = {"inputs": [tensor("ids", ids)]}
    status, answer = server.post("/v2/models/scores/infer", body)
    if status != 200:
        return status, answer["error"]
    (output,) = answer["outputs"]
    return status, np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.mark.parametrize("delay", [0, 300])
def test_calls_are_put_together(scores, delay):
    """Answers are those of each call alone; runs are fewer than calls, and never above --max-batch rows."""
    random = np.random.default_rng(0)
    calls = [random.integers(0, 50, (1 + i % 3, 4 + i % 2)) for i in range(24)]
    model = graft.load(scores)
    with Server(scores, "--max-batch", 8, "--batch-delay-ms", delay) as server:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            found = list(pool.map(lambda ids: asked(server, ids), calls))
        for ids, (status, output) in zip(calls, found, strict=True):
            assert status == 200 and np.allclose(output, model(ids), rtol=1e-5, atol=1e-6)
        rows = sum(len(ids) for ids in calls)
        assert counted(server, "graft_calls_total") == 24 and counted(server, "graft_call_rows_total") == rows
        runs = counted(server, "graft_runs_total")
        assert -(-rows // 8) <= runs <= (12 if delay else 24)


def test_a_wrong_call_does_not_harm_those_beside_it(scores):
    calls = [np.full((1, 5), 60 if i == 3 else i) for i in range(8)]
    model = graft.load(scores)
    with Server(scores, "--batch-delay-ms", 300) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda ids: asked(server, ids), calls))
        for i, (status, output) in enumerate(found):
            if i == 3:
                assert status == 400 and "60" in output
            else:
                assert status == 200 and np.allclose(output, model(calls[i]), rtol=1e-5, atol=1e-6)


def test_batches_can_be_turned_off_and_rows_are_those_of_the_program(scores):
    calls = [np.full((5, 4), i) for i in range(6)]
    with Server(scores, "--max-batch", 1, "--batch-delay-ms", 100) as server:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert all(status == 200 for status, _ in pool.map(lambda ids: asked(server, ids), calls))
        assert counted(server, "graft_runs_total") == 6
    with Server(scores, "--max-batch", 1000, "--batch-delay-ms", 300) as server:  # the program takes 16
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert all(status == 200 for status, _ in pool.map(lambda ids: asked(server, ids), calls))
        assert counted(server, "graft_runs_total") >= 2


def test_a_call_that_has_ended_does_not_hold_its_model(scores):
    """The memory is free after an unload, without another call: the next model fits."""
    args = f"scores={scores}", f"other={scores}", "--model-control", "--load", "scores"
    with Server(*args, "--max-model-bytes", 7_000) as server:  # one needs some 6,000 to be loaded
        assert asked(server, np.ones((1, 4), np.int64))[0] == 200
        assert server.post("/v1/models/load", {"model": "other"})[0] == 409
        assert server.post("/v1/models/unload", {"model": "scores"})[0] == 200
        server.wait_for(lambda: server.post("/v1/models/load", {"model": "other"})[0] == 200)
