"""Models in stages: the cut, the bits of the whole model, and what happens when a stage or the other side of a connection is
not what it should be."""

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import graft
import llm_models
import serving
import stages
from graft.errors import ExportError
from graft.exporter.serialize import StoredWeight
from graft.llm import stages as cutting
from graft.llm.lower import lower
from graft.llm.trace import trace

ROOT = Path(__file__).resolve().parents[3]
SECRET = "a secret of the tests"
# A run of several rows, prompts longer than a chunk and than the windows of layers, steps with drafts.
IDS = [int(i) for i in torch.randint(3, llm_models.VOCAB, (70,), generator=torch.Generator().manual_seed(1))]
OPTIONS = dict(threads=1, prefill_chunk_size=16)


def of_four_layers(name):
    small = llm_models.BY_NAME[name]
    config = small.config()
    known = {**config.to_dict(), "num_hidden_layers": 4, "layer_types": None}
    made = type(config)(**{key: value for key, value in known.items() if key != "transformers_version"})
    return llm_models.SmallModel(name, lambda: made).make()


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


@contextlib.contextmanager
def workers(first, count, folder, *, tcp=None):
    """The stages behind the first one, by Unix sockets; with the file of a secret by TCP."""
    stem = first.name.removesuffix(".stage0.pte")
    with contextlib.ExitStack() as stack:
        made = []
        for i in range(1, count):
            listen = "127.0.0.1:0" if tcp else f"unix:{folder / f's{i}'}"
            more = ["--secret-file", tcp] if tcp else []
            made.append(stages.Worker(first.with_name(f"{stem}.stage{i}.pte"), listen, "--threads", 1, *more))
            stack.enter_context(made[-1])
        yield made


def addresses(made):
    return [worker.address for worker in made]


def batch(generator, prompts, **settings):
    ids = [generator.submit(prompt, max_new_tokens=24, ignore_eos=True, **settings) for prompt in prompts]
    while generator.step():
        pass
    return [generator.take(id).tokens for id in ids]


def check_bits(whole, first, count, folder, drafts=True, **more):
    with workers(first, count, folder, **more) as made:
        connected = dict(stages=addresses(made), secret=SECRET if more else "")
        alone, cut = graft.TextGenerator(whole, **OPTIONS), graft.TextGenerator(first, **OPTIONS, **connected)
        expected = alone.logits(IDS)
        assert expected.isfinite().all() and torch.equal(cut.logits(IDS), expected)
        assert torch.equal(cut.logits(IDS[:1]), alone.logits(IDS[:1]))
        settings = dict(prompt_lookup_num_tokens=4 if drafts else 0, max_new_tokens=30, ignore_eos=True)
        repeating = IDS[:12] * 3
        found, wanted = cut.generate(repeating, **settings), alone.generate(repeating, **settings)
        assert found.tokens == wanted.tokens and cut.stats["drafted_tokens"] == alone.stats["drafted_tokens"]
        assert (alone.stats["drafted_tokens"] > 0) == drafts
        del cut
        # Equal numbers of rows in each run, so the same bits; a request that begins as another did goes on from there.
        prompts = [IDS[i : i + 20 + 3 * i] for i in (0, 1, 2)] + [IDS[:30]] + [IDS[i : 3 * i + 20] for i in (4, 5)]
        alone = graft.BatchGenerator(whole, rows=3, **OPTIONS)
        cut = graft.BatchGenerator(first, rows=3, **OPTIONS, **connected)
        assert batch(cut, prompts, temperature=1, seed=5) == batch(alone, prompts, temperature=1, seed=5)
        assert cut.stats["reused_tokens"] == alone.stats["reused_tokens"]
        # A prompt that is long enough to go through the stages in pieces, where those have the bits of one run.
        long = dict(threads=1), dict(temperature=1, seed=5, max_new_tokens=8, ignore_eos=True)
        cut, alone = graft.TextGenerator(first, **long[0], **connected), graft.TextGenerator(whole, **long[0])
        assert cut.generate(IDS * 3, **long[1]).tokens == alone.generate(IDS * 3, **long[1]).tokens
        return alone.stats["reused_tokens"]


# Attention biases, tied embeddings, windows of two sizes, experts, learned positions.
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mixtral", "gpt2"])
def test_stages_have_the_bits_of_the_whole(name, tmp_path):
    model = of_four_layers(name)
    whole = graft.export_llm(model, tmp_path / "model.pte")
    for count in (2, 4):
        first = graft.export_llm(model, tmp_path / f"model{count}.pte", stages=count)
        assert first == tmp_path / f"model{count}.stage0.pte"
        check_bits(whole, first, count, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("small", llm_models.CASES)
def test_every_architecture_in_stages(small, tmp_path):
    model = small.make()
    whole = graft.export_llm(model, tmp_path / "model.pte")
    cut = graft.export_llm(model, tmp_path / "cut.pte", stages=2)
    check_bits(whole, cut, 2, tmp_path, drafts=small not in llm_models.RECURRENT)


# Sizes that divide into blocks, and a tied embedding: packed panels, and rows that a lookup reads.
@pytest.mark.parametrize(("quantize", "dtype"), [("q8_0", torch.float32), ("q4_k", torch.float32), (None, torch.bfloat16)])
def test_stored_weights_in_stages(quantize, dtype, tmp_path):
    config = llm_models.BY_NAME["qwen3"].config()
    config.hidden_size, config.intermediate_size, config.head_dim, config.num_hidden_layers = 256, 512, 32, 4
    config.layer_types = ["full_attention"] * 4
    model = llm_models.SmallModel("qwen3", lambda: config).make().to(dtype)
    whole = graft.export_llm(model, tmp_path / "model.pte", quantize=quantize)
    first = graft.export_llm(model, tmp_path / "cut.pte", stages=2, quantize=quantize)
    check_bits(whole, first, 2, tmp_path)


def test_stages_over_tcp(tmp_path, secret):
    model = of_four_layers("llama")
    whole = graft.export_llm(model, tmp_path / "model.pte")
    first = graft.export_llm(model, tmp_path / "cut.pte", stages=3, weights="package")
    assert check_bits(whole, first, 3, tmp_path, tcp=secret) > 0


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
def test_prompts_in_pieces_have_the_bits_of_the_whole(kv_type, stories, tmp_path):
    """Of every length around that of a piece and its multiples. A context of 400 has the whole model read in runs of 400, 200,
    100, 50, 25 and 13 tokens."""
    whole, first = stories
    args = "--threads", 1, "--kv-type", kv_type, "--context", 400
    ids = [i % 500 + 3 for i in IDS * 4]
    with workers(first, 2, tmp_path) as [worker], serving.Server(whole, "--rows", 1, *args) as alone:
        with serving.Server(first, "--stages", worker.address, "--rows", 2, *args) as server:
            for length in range(60, 270):
                asked = dict(max_tokens=2, temperature=0, logprobs=3, ignore_eos=True)
                # The last tokens come first: no row holds the beginning of the next prompt.
                wanted = alone.complete(ids[:length][::-1], **asked)["choices"][0]["logprobs"]
                assert server.complete(ids[:length][::-1], **asked)["choices"][0]["logprobs"] == wanted


# --- the cut ----------------------------------------------------------------------------------------------------------


def lowered(model):
    weights = {n: StoredWeight(n, 4 * t.numel(), torch.float32) for n, t in model.state_dict().items()}
    program, _ = lower(trace(model, context=64), weights)
    return program, weights


def attentions(program):
    return [n.kwargs["layer"] for n in program.graph.nodes if n.target is torch.ops.graft.attention.default]


def test_what_crosses_and_what_is_computed_again():
    program, weights = lowered(of_four_layers("gemma3"))
    parts = cutting.split(program, 4, weights)
    assert [attentions(part.program) for part in parts] == [[0], [1], [2], [3]]  # with their states
    # One value of the hidden size crosses; positions come from the inputs, and rotary tables of them.
    assert [part.carried for part in parts] == [4 * 48] * 3 + [0]
    for i, part in enumerate(parts):
        names = part.program.graph_signature.user_inputs
        assert names == ("input_ids", "position_ids", "cache_position", "logits_to_keep", *(["carried_0"] if i else []))
        assert any(node.target is torch.ops.aten.cos.default for node in part.program.graph.nodes)
    held = [{spec.target for spec in part.program.graph_signature.input_specs if spec.target} for part in parts]
    layers = [{name.split(".")[2] for name in names if ".layers." in name} for names in held]
    tied = {"model.embed_tokens.weight", "lm_head.weight"}  # the first and the last stage need the table
    assert [bool(names & tied) for names in held] == [True, False, False, True]
    assert sum(map(len, layers)) <= 4 + 3  # a layer whose parts are in two stages counts twice


def test_the_cut_is_balanced_by_what_a_step_reads():
    config = llm_models.BY_NAME["llama"].config()
    config.num_hidden_layers, config.vocab_size = 8, 2000  # a head of 8 layers' weight: the last stage has few of them
    program, weights = lowered(llm_models.SmallModel("llama", lambda: config).make())
    parts = cutting.split(program, 2, weights)

    def read(part):  # the table of embeddings is read by row
        names = {spec.target for spec in part.program.graph_signature.input_specs if spec.target in weights}
        return sum(weights[name].byte_size for name in names if "embed_tokens" not in name)

    costs = [read(part) for part in parts]
    assert len(attentions(parts[0].program)) > len(attentions(parts[1].program)) >= 1
    assert max(costs) < 1.1 * sum(costs) / 2


def test_keys_and_values_count_where_layers_are_small():
    """By weights of 96 KB in a layer the first stage would have five attentions; each reads 131 KB of keys and values."""
    config = llm_models.BY_NAME["llama"].config()
    config.num_hidden_layers, config.vocab_size = 8, 500  # a head of one layer's weight
    program, weights = lowered(llm_models.SmallModel("llama", lambda: config).make())
    assert [len(attentions(part.program)) for part in cutting.split(program, 2, weights)] == [4, 4]


@pytest.mark.parametrize(
    ("count", "options", "text"),
    [
        (4, {}, "expected at most as many stages as layers with a cache, 3, found 4"),
        (0, {}, "expected from 1 to 1024 stages, found 0"),
        (2, {"plans": ["seq=1"]}, "expected no plans with stages"),
    ],
)
def test_refused_counts(count, options, text, tmp_path):
    with pytest.raises(ExportError, match=text):
        graft.export_llm(llm_models.BY_NAME["llama"].make(), tmp_path / "m.pte", stages=count, **options)
    assert list(tmp_path.iterdir()) == []


def test_models_that_cannot_be_cut(tmp_path):
    t5 = llm_models.SEQ2SEQ[0]
    with pytest.raises(ExportError, match=r"cannot be cut into stages: each layer of its decoder reads"):
        graft.export_llm(t5.make(), tmp_path / "m.pte", stages=2)


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """The whole package, and the first of two stages."""
    folder = tmp_path_factory.mktemp("stories")
    whole = serving.export_stories(folder)
    return whole, graft.export_llm(folder / "stories", folder / "cut.pte", stages=2)


def header(kind, meta, payload=0, magic=b"GRTS", version=3):
    return magic + struct.pack("<HHIIQ", version, kind, meta, 0, payload)


CHALLENGE, PROOF, WELCOME, OPEN, PREPARE, RUN, WORKING, DONE, FAILED = range(1, 10)


class Peer:
    """A driver made of bytes."""

    def __init__(self, worker):
        host, port = worker.address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=serving.PATIENCE)
        self.name = "{}:{}".format(*self.socket.getsockname())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def read(self, count):
        data = b""
        while len(data) < count and (part := self.socket.recv(count - len(data))):
            data += part
        return data

    def message(self):
        head = self.read(24)
        if len(head) < 24:
            return None, b""
        kind, meta, payload = struct.unpack("<HII", head[6:16])[0], *struct.unpack("<IIQ", head[8:24])[::2]
        return self.message() if kind == WORKING else (kind, self.read(meta + payload))

    def prove(self, secret=SECRET):
        kind, nonce = self.message()
        assert kind == CHALLENGE and len(nonce) == 32
        own = bytes(32)
        proof = hmac.new(secret.encode(), b"graft stage: driver" + nonce + own, hashlib.sha256).digest()
        self.send(header(PROOF, 64) + own + proof)
        kind, answer = self.message()
        if kind == WELCOME:
            assert answer == hmac.new(secret.encode(), b"graft stage: stage" + nonce + own, hashlib.sha256).digest()
        return kind, answer

    def open(self, model, **other):
        asked = dict(stage=1, stages=2, model=model, rows=2, length=64, kv_type="computed", slack=16) | other
        text = json.dumps(asked).encode()
        self.send(header(OPEN, len(text)) + text)
        return self.message()


@pytest.fixture(scope="module")
def worker(stories, secret):
    with stages.Worker(stories[1].with_name("cut.stage1.pte"), "127.0.0.1:0", "--secret-file", secret) as made:
        yield made


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: stage\r\n\r\n", "no message of a stage"),
        (bytes(range(256)) * 40, "no message of a stage"),
        (header(PROOF, 64, version=9) + bytes(64), "version 3 was expected, found 9"),
        (header(77, 64) + bytes(64), "no message of kind 77"),
        (header(PROOF, 1 << 31), "at most 256 and 0 bytes"),
        (header(PROOF, 64, 1 << 40), "at most 256 and 0 bytes"),
        (header(RUN, 8) + bytes(8), "does not keep to the handshake"),
        (header(PROOF, 63) + bytes(63), "does not keep to the handshake"),
        (header(PROOF, 64) + bytes(64), "the secret is another one"),
    ],
)
def test_garbage_is_refused_and_logged(data, reason, worker, stories):
    with Peer(worker) as peer:
        peer.send(data)
        assert reason in worker.wait_for("refused", peer.name)["reason"]
    # The worker goes on.
    assert graft.TextGenerator(stories[1], stages=[worker.address], secret=SECRET).generate("Once", max_new_tokens=3).text


def test_a_message_that_ends_early(worker):
    with Peer(worker) as peer:
        peer.send(header(PROOF, 64) + bytes(10))
        peer.socket.shutdown(socket.SHUT_WR)
        worker.wait_for("closed", peer.name)


def test_silence_before_the_proof_ends(worker):
    with Peer(worker) as peer:
        assert "has not answered in time" in worker.wait_for("refused", peer.name)["reason"]


def identity(package):
    found = json.loads(graft_inspect(package))["stage"]
    return found["model"]


def graft_inspect(package):
    return subprocess.run(
        [serving.binary(), "inspect", "--json", package], capture_output=True, text=True, check=True
    ).stdout


def numbers(*values):
    return struct.pack(f"<{len(values)}q", *values)


@pytest.mark.parametrize(
    ("meta", "payload", "reason"),
    [
        (b"1234567", b"", "no numbers of 64 bits"),
        (numbers(), b"", "more numbers were expected"),
        (numbers(0, 1, 1), b"", "a number from 1 to"),
        (numbers(1 << 62, 1, 1), b"", "a number from 1 to"),
        (numbers(1, 1 << 60, 1), b"", "a number from 1 to"),
        (numbers(2, 1, 1, 0), b"", "more numbers were expected"),
        (numbers(1, 1, 1, 0, 5, 0, 0, 1 << 40), b"", "a number from 0 to 1024"),
        (numbers(1, 1, 1, 0, 5, 0, 0, 1, 77, 0), b"", "a number from 0 to 9"),
        (numbers(1, 1, 1, 0, 5, 0, 0, 1, 0, 2, -1, 4), b"", "negative"),
        (numbers(1, 1, 1, 0, 5, 0, 0, 1, 0, 2, 1 << 40, 1 << 40), b"", ""),
        (numbers(1, 1, 1, 0, 5, 0, 0, 1, 0, 3, 1, 1, 64), b"x" * 100, "tensors of 256 bytes were expected, found 100"),
        (numbers(1, 1, 1, 0, 5, 0, 0, 0, 7), b"", "1 numbers too many"),
    ],
)
def test_runs_that_say_nonsense(meta, payload, reason, worker, stories):
    with Peer(worker) as peer:
        assert peer.prove()[0] == WELCOME
        assert peer.open(identity(stories[1]))[0] == DONE
        peer.send(header(RUN, len(meta), len(payload)) + meta + payload)
        kind, text = peer.message()
        assert kind == FAILED and reason in text.decode(errors="replace")
        assert reason in worker.wait_for("refused", peer.name)["reason"]


def test_runs_that_the_program_refuses_leave_the_connection(worker, stories):
    with Peer(worker) as peer:
        assert peer.prove()[0] == WELCOME and peer.open(identity(stories[1]))[0] == DONE
        no_tensor, another_row = (1, 1, 1, 0, 5, 0, 0, 0), (1, 1, 1, 9, 5, 0, 0, 1, 0, 3, 1, 1, 64)
        for values in (no_tensor, another_row, (1, 1, 1, 0, 5, 0, 0, 1, 0, 2, 3, 5)):
            size = 0 if values[7] == 0 else 256 if len(values) == 13 else 64
            peer.send(header(RUN, 8 * len(values), size) + numbers(*values) + bytes(size))
            assert peer.message()[0] == FAILED
        good = (1, 1, 1, 0, 5, 0, 0, 1, 0, 3, 1, 1, 64)
        peer.send(header(RUN, 8 * len(good), 256) + numbers(*good) + bytes(256))
        kind, answer = peer.message()
        assert kind == DONE and len(answer) > 512 * 4


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": "0" * 64}, "a stage of another export"),
        ({"stage": 2, "stages": 3}, "this is stage 1 of 2, the driver wants stage 2 of 3"),
        ({"rows": "many"}, "cannot be read"),
        ({"rows": 0}, "a cache has 1 to"),
    ],
)
def test_openings_that_are_refused(other, reason, worker, stories):
    with Peer(worker) as peer:
        assert peer.prove()[0] == WELCOME
        kind, text = peer.open(**{"model": identity(stories[1])} | other)
        assert kind == FAILED and reason in text.decode()


def test_drivers_that_are_refused(worker, stories, tmp_path):
    whole, first = stories
    options = dict(stages=[worker.address], secret=SECRET)
    with pytest.raises(graft.InvalidArgument, match=r"stage 1 of 2 at '127.0.0.1:\d+': .*the secret is another one"):
        graft.TextGenerator(first, **options | {"secret": "not this one, really"})
    with pytest.raises(graft.InvalidArgument, match="the model is in 2 stages: the addresses of 1 were expected, found 0"):
        graft.TextGenerator(first)
    with pytest.raises(graft.InvalidArgument, match="the model is in one piece"):
        graft.TextGenerator(whole, **options)
    with pytest.raises(graft.InvalidArgument, match="is stage 1 of 2, which `graft stage` runs"):
        graft.TextGenerator(first.with_name("cut.stage1.pte"), **options)
    with pytest.raises(graft.InvalidArgument, match="no address of a stage"):
        graft.TextGenerator(first, stages=["somewhere"], secret=SECRET)
    with pytest.raises(graft.Unsupported, match="no prefix cache"):
        graft.BatchGenerator(first, prefix_cache_bytes=1 << 20, **options)
    other = graft.export_llm(llm_models.BY_NAME["llama"].make(), tmp_path / "other.pte", stages=2)
    with pytest.raises(graft.InvalidArgument, match="a stage of another export"):
        graft.TextGenerator(other, **options)


def test_addresses_and_secrets_of_the_command_line(stories, secret, tmp_path):
    second = stories[1].with_name("cut.stage1.pte")
    weak, open_file = tmp_path / "weak", tmp_path / "open"
    weak.write_text("short\n")
    open_file.write_text(SECRET)
    weak.chmod(0o600)
    open_file.chmod(0o644)

    def said(*args):
        ran = subprocess.run([serving.binary(), "stage", *map(str, args)], capture_output=True, text=True, timeout=60)
        assert ran.returncode != 0
        return ran.stderr

    assert "needs a secret" in said(second, "--listen", "127.0.0.1:0")
    assert "a secret of 16 to" in said(second, "--listen", "127.0.0.1:0", "--secret-file", weak)
    assert "its owner alone" in said(second, "--listen", "127.0.0.1:0", "--secret-file", open_file)
    assert "is the first of 2 stages" in said(stories[1], "--listen", "127.0.0.1:0", "--secret-file", secret)
    assert "is no stage of a model" in said(stories[0], "--listen", "127.0.0.1:0", "--secret-file", secret)
    with stages.Worker(second, f"unix:{tmp_path / 's'}"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        assert "another process does" in said(second, "--listen", f"unix:{tmp_path / 's'}")
    assert not (tmp_path / "s").exists()


# --- a stage that is lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [True, False])
def test_a_lost_stage_ends_its_sequences_and_no_others(tcp, stories, secret, tmp_path):
    whole, first = stories
    with workers(first, 2, tmp_path, tcp=secret if tcp else None) as [worker]:
        options = dict(stages=[worker.address], secret=SECRET if tcp else "", threads=1)
        generator = graft.BatchGenerator(first, rows=2, **options)
        ids = [generator.submit("Once upon a time", max_new_tokens=300, ignore_eos=True) for _ in range(3)]
        for _ in range(5):
            generator.step()
        worker.kill()
        begun = time.monotonic()
        with pytest.raises(graft.Unavailable, match="stage 1 of 2 at"):
            generator.step()
        assert time.monotonic() - begun < 2
        assert [generator.take(i).reason for i in ids[:2]] == ["cancelled"] * 2
        with pytest.raises(graft.Unavailable):  # and the third waits
            generator.step()
        assert generator.waiting == 1
        worker.command[worker.command.index("--listen") + 1] = worker.address
        worker.start()
        while generator.step():
            pass
        expected = graft.TextGenerator(whole, threads=1).generate("Once upon a time", max_new_tokens=300, ignore_eos=True)
        assert generator.take(ids[2]).tokens == expected.tokens


@pytest.mark.parametrize("tcp", [True, False])
def test_a_stage_that_stops_is_lost(tcp, stories, secret, tmp_path):
    """Its host answers for it, but it no longer says that it is at work."""
    whole, first = stories
    settings = dict(max_new_tokens=8, ignore_eos=True)
    expected = graft.TextGenerator(whole, threads=1).generate("The dog", **settings).tokens
    with workers(first, 2, tmp_path, tcp=secret if tcp else None) as [worker]:
        generator = graft.TextGenerator(first, threads=1, stages=[worker.address], secret=SECRET if tcp else "")
        assert generator.generate("The dog", **settings).tokens == expected
        worker.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with pytest.raises(graft.Unavailable, match="stage 1 of 2 at .* has said nothing for 5 seconds"):
                generator.generate("The dog", **settings)
        finally:
            worker.process.send_signal(signal.SIGCONT)
        assert generator.generate("The dog", **settings).tokens == expected


def test_a_stage_that_is_lost_while_it_owes_an_answer(stories, tmp_path):
    """To a run that was cancelled: what the rows of the first stage hold is worth nothing then."""
    whole, first = stories
    settings = dict(max_new_tokens=40, ignore_eos=True)
    expected = graft.TextGenerator(whole, threads=1).generate("Lily had a dog", **settings).tokens
    with workers(first, 2, tmp_path) as [worker]:
        generator = graft.BatchGenerator(first, rows=1, threads=1, stages=[worker.address])

        def tokens():
            number = generator.submit("Lily had a dog", **settings)
            while generator.step():
                pass
            return generator.take(number).tokens

        assert tokens() == expected
        worker.process.send_signal(signal.SIGSTOP)
        ended = generator.submit("Lily had a dog", **settings)
        cancel = graft.CancelToken()
        timer = threading.Timer(0.3, cancel.cancel)
        timer.start()
        with pytest.raises(graft.Cancelled):
            generator.step(cancel=cancel)
        timer.join()
        worker.kill()
        worker.start()
        with pytest.raises(graft.Unavailable, match="stage 1 of 2 at"):
            generator.step()
        assert generator.take(ended).reason == "cancelled"
        assert tokens() == expected


@pytest.mark.parametrize("cancelled", ["Once upon a time", "Once upon a time there was a dog. " * 25], ids=["steps", "pieces"])
def test_a_cancelled_run_leaves_the_sequences(cancelled, stories, tmp_path):
    """Wherever it is cancelled: before its first stage has run, or while the second one owes an answer, to a step or to pieces of
    a prompt."""
    whole, first = stories
    settings = dict(max_new_tokens=40, ignore_eos=True)
    expected = graft.TextGenerator(whole, threads=1).generate("Lily had a dog", **settings).tokens
    with workers(first, 2, tmp_path) as [worker]:
        generator = graft.TextGenerator(first, threads=1, stages=[worker.address])
        reasons = set()
        for delay in range(20):
            cancel = graft.CancelToken()
            timer = threading.Timer(0.0011 * delay, cancel.cancel)
            timer.start()
            reasons.add(generator.generate(cancelled, max_new_tokens=200, ignore_eos=True, cancel=cancel).reason)
            timer.join()
            assert generator.generate("Lily had a dog", **settings).tokens == expected
        assert "cancelled" in reasons


# --- graft serve ------------------------------------------------------------------------------------------------------


def test_a_server_over_stages(stories, secret, tmp_path):
    whole, first = stories
    prompts = ["Once upon a time", "The dog", "Lily and Tom went to the park because"]
    with workers(first, 2, tmp_path, tcp=secret) as [worker], serving.Server(whole, "--rows", 1, "--threads", 1) as alone:
        args = ["--stages", worker.address, "--secret-file", secret, "--rows", 2, "--threads", 1]
        with serving.Server(first, *args) as server:
            for prompt in prompts:
                wanted = alone.complete(prompt, max_tokens=40, temperature=0)["choices"]
                assert server.complete(prompt, max_tokens=40, temperature=0)["choices"] == wanted
            answers = {}

            def ask(i):
                status, _ = server.post("/v1/completions", dict(prompt=prompts[0], max_tokens=400, ignore_eos=True))
                answers[i] = status, time.monotonic()

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 2)
            worker.kill()
            killed = time.monotonic()
            server.wait_for(lambda: len(answers) == 2)
            assert all(status == 503 and at - killed < 2 for status, at in answers.values())
            worker.command[worker.command.index("--listen") + 1] = worker.address
            worker.start()
            for thread in threads:
                thread.join()
            assert sorted(status for status, _ in answers.values()) == [200, 200, 503, 503]  # two had waited


def test_a_stage_that_hangs_does_not_hold_up_the_end(stories, tmp_path):
    with workers(stories[1], 2, tmp_path) as [worker]:
        server = serving.Server(stories[1], "--stages", worker.address, "--rows", 2, "--threads", 1)
        server.wait_for(lambda: server.get("/health")[0] == 200)
        try:
            fields = dict(prompt="Once upon a time", max_tokens=400, ignore_eos=True)

            def ask():
                with contextlib.suppress(OSError, http.client.HTTPException):  # the server ends
                    server.post("/v1/completions", fields)

            asking = threading.Thread(target=ask)
            worker.process.send_signal(signal.SIGSTOP)
            asking.start()
            time.sleep(1)
            assert asking.is_alive()
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(serving.PATIENCE) == 0 and time.monotonic() - begun < 10
            asking.join()
        finally:
            server.process.kill()
            worker.process.send_signal(signal.SIGCONT)


def test_the_page_of_the_documentation(stories, tmp_path):
    sys.path.insert(0, str(ROOT / "test" / "python" / "docs"))
    import tutorial

    sys.path.pop(0)
    shutil.copytree(stories[0].parent / "stories", tmp_path / "model")
    try:
        assert tutorial.run(ROOT / "docs" / "stages.md", tmp_path) == 4
    finally:
        for file in tmp_path.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
