"""LoRA adapters of `graft serve` and of the commands for language models: requests name them as models."""

from __future__ import annotations

import concurrent.futures
import shutil
import subprocess

import pytest
import torch
import transformers

import graft
import lora
from serving import Server, binary

PROMPT = "Once upon a time there was a little"
COUNT = 12


@pytest.fixture(scope="module")
def adapters(stories):
    """Of stories260K; the folder, and the texts that eager peft gives."""
    folder = stories.parent / "adapters"
    base = transformers.AutoModelForCausalLM.from_pretrained(stories.parent / "stories", dtype=torch.float32).eval()
    tokenizer = graft.Tokenizer.load(stories)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    texts = {}
    for name, seed in (("one", 1), ("two", 2)):
        model = lora.adapted(base, "llama", seed)
        lora.saved(model, folder / name)
        texts[name] = greedy(model, ids, tokenizer)
    texts["stories"] = greedy(base, ids, tokenizer)
    assert len(set(texts.values())) == 3
    return folder, texts


def greedy(model, ids, tokenizer):
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0)
    whole, prompt = tokenizer.decode(out[0].tolist()), tokenizer.decode(ids[0].tolist())
    assert whole.startswith(prompt)
    return whole[len(prompt) :]


def ask(server, model, prompt=PROMPT, **fields):
    answer = server.complete(prompt, model=model, max_tokens=COUNT, temperature=0, ignore_eos=True, **fields)
    assert answer["model"] == model
    return answer["choices"][0]["text"]


def test_requests_name_adapters(stories, adapters):
    folder, texts = adapters
    with Server(stories, "--rows", 4, "--lora", f"one={folder / 'one'}", "--lora", f"stories/two={folder / 'two'}") as server:
        listed = {model["id"]: model for model in server.get("/v1/models")[1]["data"]}
        assert set(listed) == {"stories", "one", "two"}
        assert "parent" not in listed["stories"]
        assert {listed[name]["parent"] for name in ("one", "two")} == {"stories"}
        assert server.get("/v1/models/two")[1] == listed["two"]
        names = ["one", "two", "stories", "two", "stories", "one"] * 3
        assert [ask(server, name) for name in names[:6]] == [texts[name] for name in names[:6]]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:  # side by side, in one batch
            assert list(pool.map(lambda name: ask(server, name), names)) == [texts[name] for name in names]
        chat = [{"role": "user", "content": "A dog"}]
        answers = {
            name: server.good("/v1/chat/completions", model=name, messages=chat, max_tokens=8, temperature=0)
            for name in ("one", "two", "stories")
        }
        assert len({answer["choices"][0]["message"]["content"] for answer in answers.values()}) == 3
        assert server.post("/v1/completions", {"model": "three", "prompt": "A"})[0] == 404
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            status, error = server.post(path, {"lora_name": "one", "lora_path": "one"})
            assert status == 403 and "--lora-folder" in error["error"]["message"]


def test_prefixes_are_those_of_one_adapter(stories, adapters):
    """A prompt that two adapters and the model have read: each goes on from its own keys and values."""
    folder, _ = adapters
    long = " ".join(["Once upon a time there was a little girl called Lily"] * 8)
    flags = ("--rows", 2, "--lora", f"one={folder / 'one'}", "--lora", f"two={folder / 'two'}")
    with Server(stories, *flags, "--prefix-cache-bytes", 0) as cold:
        expected = {name: ask(cold, name, long) for name in ("one", "two", "stories")}
    assert len(set(expected.values())) == 3
    with Server(stories, *flags) as warm:
        for _ in range(3):
            for name, text in expected.items():
                assert ask(warm, name, long) == text
        answer = warm.complete(long, model="two", max_tokens=1, temperature=0)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_adapters_come_and_go(stories, adapters):
    folder, texts = adapters
    with Server(stories, "--rows", 2, "--lora-folder", folder) as server:
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        assert ask(server, "stories") == texts["stories"]
        entry = server.good(load, lora_name="mine", lora_path="one")
        assert (entry["id"], entry["parent"]) == ("mine", "stories")
        assert ask(server, "mine") == texts["one"]
        status, error = server.post(load, {"lora_name": "mine", "lora_path": "two"})
        assert status == 400 and "already" in error["error"]["message"]
        assert ask(server, "mine") == texts["one"]
        server.good(load, lora_name="mine", lora_path="two", load_inplace=True, model="stories")
        assert ask(server, "mine") == texts["two"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:  # one that runs goes on
            running = pool.submit(server.complete, PROMPT, model="mine", max_tokens=400, ignore_eos=True)
            server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 1)
            server.good(unload, lora_name="mine")
            assert running.result()["usage"]["completion_tokens"] == 400
        assert server.post("/v1/completions", {"model": "mine", "prompt": "A"})[0] == 404
        assert server.post(unload, {"lora_name": "mine"})[0] == 404
        assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["stories"]
        shutil.copytree(folder / "one", folder / "broken", dirs_exist_ok=True)
        (folder / "broken" / "adapter_model.safetensors").write_bytes(b"no")
        for fields, status, message in (
            ({"lora_name": "a", "lora_path": "../adapters/one"}, 400, "within the folder"),
            ({"lora_name": "a", "lora_path": str(folder / "one")}, 400, "within the folder"),
            ({"lora_name": "a", "lora_path": ""}, 400, "within the folder"),
            ({"lora_name": "a", "lora_path": "nowhere"}, 404, "there is no adapter 'nowhere'"),
            ({"lora_name": "a", "lora_path": "broken"}, 400, "safetensors"),
            ({"lora_name": "a b", "lora_path": "one"}, 400, "letters, digits"),
            ({"lora_name": "stories", "lora_path": "one"}, 400, "already"),
            ({"lora_name": "a", "lora_path": "one", "model": "other"}, 404, "no model 'other'"),
            ({"lora_name": "a"}, 400, "lora_path"),
            ({"lora_name": "a", "lora_path": "one", "extra": 1}, 400, "extra"),
        ):
            found, error = server.post(load, fields)
            assert found == status and message in error["error"]["message"], (fields, error)
            assert str(folder) not in error["error"]["message"].replace(fields.get("lora_path") or "-", "")
        assert ask(server, "stories") == texts["stories"]


def generate(stories, *args):
    command = [binary(), "generate", str(stories), "--max-new-tokens", str(COUNT), "--ignore-eos", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_line(stories, adapters):
    folder, texts = adapters
    one, two = f"one={folder / 'one'}", f"two={folder / 'two'}"
    assert generate(stories, "--prompt", PROMPT, "--lora", one).stdout == texts["one"]
    assert generate(stories, "--prompt", PROMPT, "--lora", one, "--adapter", "-").stdout == texts["stories"]
    rows = generate(
        stories, *("--prompt", PROMPT) * 3, "--lora", one, "--lora", two, "--adapter", "two", "--adapter", "-", "--adapter", "one"
    )  # fmt: skip
    assert [part.split("\n", 1)[1].rstrip("\n") for part in rows.stdout.split("==> prompt ")[1:]] == [
        texts[name].rstrip("\n") for name in ("two", "stories", "one")
    ]
    talk = subprocess.run(
        [binary(), "chat", str(stories), "--max-new-tokens", "8", "--lora", one], input="Hello\n", capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert talk.returncode == 0 and talk.stdout.strip()
    for args, message in (
        (("--lora", one, "--lora", two), "which of the adapters"),
        (("--lora", one, "--adapter", "three"), "there is no 'three'"),
        (("--lora", "one"), "is not NAME=PATH"),
        (("--lora", one, "--lora", one), "two adapters have the name 'one'"),
        (("--lora", one, "--max-adapter-rank", "3"), "at most 3 (max_adapter_rank)"),
        (("--lora", "a=nowhere"), "there is no adapter 'nowhere'"),
        (("--lora", one, "--adapter", "one", "--adapter", "-"), "one for each of 1 prompts"),
    ):
        run = generate(stories, "--prompt", PROMPT, *args)
        assert run.returncode != 0 and message in run.stderr, (args, run.stderr)
    for args in (("--lora", "one"), ("--lora", "other/one=x"), ("--lora", f"stories={folder / 'one'}")):
        run = subprocess.run([binary(), "serve", str(stories), *args], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode != 0 and "--lora" in run.stderr


def test_a_model_that_cannot_be_loaded_with_its_adapter(stories, adapters, tmp_path):
    """The server says so at its start."""
    run = subprocess.run(
        [binary(), "serve", str(stories), "--port", "0", "--lora", f"a={tmp_path / 'nowhere'}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode != 0 and "there is no adapter" in run.stderr


