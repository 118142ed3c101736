"""A model with recurrent layers behind the server: many clients at once, turns of a chat, what it cannot be given."""

import concurrent.futures
import shutil
import subprocess

import pytest
import torch

import graft
import llm_models
from serving import TEMPLATE, Server, binary
from test_data import DATA

PROMPTS = ["Once upon a time", "The dog", "A long, long time ago there was a girl who", "One", "Tom and his mom went to the"]
GREEDY = dict(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """LFM2's shape with the tokenizer of stories260K."""
    if not (DATA / "stories260K").is_dir():
        pytest.skip("no stories260K in ../shared/data, and GRAFT_TEST_DATA names no folder that has it")
    folder = tmp_path_factory.mktemp("recurrent")
    config = llm_models.BY_NAME["lfm2"].config()
    config.vocab_size = 512
    model = llm_models.SmallModel("lfm2", lambda: config).make()
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder / "model")
    for file in DATA.joinpath("stories260K").glob("tokenizer*"):
        shutil.copy(file, folder / "model" / file.name)
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return graft.export_llm(folder / "model", folder / "lfm2.pte")


def test_many_clients_get_what_one_gets(package):
    alone = graft.TextGenerator(package)
    expected = [alone.generate(prompt, temperature=0, max_new_tokens=24, ignore_eos=True).text for prompt in PROMPTS]
    assert len(set(expected)) == len(PROMPTS)
    with Server(package, "--rows", "3", "--threads", "1") as server:
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            found = list(pool.map(lambda prompt: server.complete(prompt, **GREEDY)["choices"][0]["text"], PROMPTS * 4))
        assert found == expected * 4
        messages = [{"role": "user", "content": "Tell me a story."}]
        for _ in range(3):
            answer = server.good("/v1/chat/completions", messages=messages, **GREEDY)["choices"][0]["message"]["content"]
            again = server.good("/v1/chat/completions", messages=messages, **GREEDY)["choices"][0]["message"]["content"]
            assert answer == again
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prefix-cache-bytes", "1000000"], "a prefix cache keeps keys and values of tokens; the model has recurrent states"),
        (["--prompt-lookup", "3"], "a model with recurrent states cannot take drafts back"),
    ],
)
def test_what_it_cannot_have_is_said_when_it_loads(package, options, message):
    run = subprocess.run([binary(), "serve", package, "--port", "0", *options], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and message in run.stderr
