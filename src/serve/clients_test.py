"""Clients that people have, against a server of `graft serve`: what each sends must be served, and what it reads must be
there. openai's own are in serve_test.py, any_model_test.py and other_apis_test.py, anthropic's in the last."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from serving import Server

ASK = [{"role": "user", "content": "Once"}]


@pytest.fixture(scope="module")
def expected(server) -> str:
    answer = server.good("/v1/chat/completions", messages=ASK, temperature=0, max_tokens=12)
    return answer["choices"][0]["message"]["content"]


def test_langchain(server, expected):
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="stories", temperature=0, max_tokens=12
    )
    answer = model.invoke("Once")
    assert answer.content == expected
    assert answer.usage_metadata["output_tokens"] == 12
    assert "".join(part.content for part in model.stream("Once")) == expected
    assert [one.content for one in model.batch(["Once", "Once"])] == [expected] * 2


def test_langchains_structured_output(server):
    langchain = pytest.importorskip("langchain_openai")
    pydantic = pytest.importorskip("pydantic")

    class Pet(pydantic.BaseModel):
        big: bool
        legs: int = pydantic.Field(ge=0, le=8)

    model = langchain.ChatOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="stories", temperature=0, max_tokens=200
    )
    pet = model.with_structured_output(Pet, method="json_schema").invoke("A pet")
    assert isinstance(pet, Pet) and 0 <= pet.legs <= 8


def test_litellm(server, expected):
    litellm = pytest.importorskip("litellm")
    to = {"model": "openai/stories", "api_base": f"http://127.0.0.1:{server.port}/v1", "api_key": "none"}
    settings = {"messages": ASK, "temperature": 0, "max_tokens": 12}
    answer = litellm.completion(**to, **settings)
    assert answer.choices[0].message.content == expected and answer.usage.completion_tokens == 12
    parts = litellm.completion(**to, **settings, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected


@pytest.fixture(scope="module")
def net(net_package):
    with Server(net_package) as running:
        yield running


def layer(net, x: np.ndarray) -> np.ndarray:
    """What the model gives, by plain JSON."""
    value = {"name": "input_1", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    (out,) = net.good("/v2/models/net/infer", inputs=[value])["outputs"]
    return np.array(out["data"]).reshape(out["shape"])


def test_tritonclient(net):
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(f"127.0.0.1:{net.port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("net")
    assert client.get_server_metadata()["name"] == "graft"
    metadata = client.get_model_metadata("net")
    x = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    for binary in (True, False):
        given = triton.InferInput(metadata["inputs"][0]["name"], x.shape, "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        wanted = triton.InferRequestedOutput(metadata["outputs"][0]["name"], binary_data=binary)
        found = client.infer("net", [given], outputs=[wanted]).as_numpy(metadata["outputs"][0]["name"])
        np.testing.assert_allclose(found, layer(net, x), atol=1e-6)
    with pytest.raises(triton.InferenceServerException, match="there is no model 'other'"):
        client.get_model_metadata("other")


@pytest.mark.parametrize("binary", [False, True])
def test_kserve(net, binary):
    kserve = pytest.importorskip("kserve")
    from kserve.inference_client import RESTConfig

    x = np.random.default_rng(1).standard_normal((3, 4), dtype=np.float32)
    base = f"http://127.0.0.1:{net.port}"

    async def ask() -> np.ndarray:
        client = kserve.InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        assert await client.is_server_live(base) and await client.is_server_ready(base)
        assert await client.is_model_ready(base, "net")
        given = kserve.InferInput("input_1", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        answer = await client.infer(base, kserve.InferRequest("net", [given]), model_name="net")
        await client.close()
        return answer.outputs[0].as_numpy()

    np.testing.assert_allclose(asyncio.run(ask()), layer(net, x), atol=1e-6)
