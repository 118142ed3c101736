"""llm-comply: whole answers and streams by the schemas that OpenAI and Anthropic publish, Open Responses' too."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

import graft
from picture_models import BY_NAME
from serving import Server
from test_data import DATA

# Of each format: how many tests llm-comply 0.5.0 has, and those that do not pass with a model that sees no images, which
# another one does. Tests of reasoning are skipped by llm-comply itself unless the model has the name of a vendor's.
FORMATS = {
    "openai-chat": (9, {"chat-image-input": "failed", "chat-reasoning-summary": "skipped"}),
    "open-responses": (13, {"image-input": "failed", "reasoning-summary": "skipped"}),
    "anthropic": (9, {"anth-image-input": "failed", "anth-thinking-display": "skipped"}),
}


@pytest.fixture(scope="module")
def server(tools_template, tmp_path_factory):
    if importlib.util.find_spec("llm_comply") is None:
        pytest.skip("no llm-comply")
    folder = tmp_path_factory.mktemp("comply") / "stories"
    shutil.copytree(DATA / "stories260K", folder, copy_function=shutil.copyfile)
    shutil.copyfile(tools_template, folder / "chat_template.jinja")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))  # room for tools
    # Answers must end by themselves: this model's do with a sentence.
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [2, vocabulary["."]]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    package = graft.export_llm(folder, folder.parent / "stories.pte")
    with Server(package, "--rows", 2, "--require-model") as running:
        yield running


@pytest.fixture(scope="module")
def seeing_server(tmp_path_factory):
    if importlib.util.find_spec("llm_comply") is None:
        pytest.skip("no llm-comply")
    folder = BY_NAME["smolvlm"].save(tmp_path_factory.mktemp("comply") / "smolvlm")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = list(range(2, 200, 3))  # answers of random weights must end too
    (folder / "generation_config.json").write_text(json.dumps(settings))
    package = graft.export_llm(folder, folder.parent / "smolvlm.pte")
    with Server(package, "--rows", 2, "--require-model") as running:
        yield running


def judged(server, model, name, *more):
    done = subprocess.run(
        [sys.executable, "-m", "llm_comply.cli", "--base-url", f"http://127.0.0.1:{server.port}/v1", "--api-key", "none",
         "--model", model, "--format", name, "--json", *more],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return json.loads(done.stdout)["results"]


@pytest.mark.parametrize("name", FORMATS)
def test_images(seeing_server, name):
    [id] = [id for id in FORMATS[name][1] if "image" in id]
    [result] = judged(seeing_server, "smolvlm", name, "--filter", id)
    assert (result["id"], result["status"]) == (id, "passed"), result


@pytest.mark.parametrize("name", FORMATS)
def test_a_format(server, name):
    results = judged(server, "stories", name)
    count, others = FORMATS[name]
    assert len(results) == count
    found = {result["id"]: (result["status"], result.get("errors")) for result in results if result["status"] != "passed"}
    assert {id: status for id, (status, _) in found.items()} == others, found
