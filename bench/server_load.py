"""`graft serve` beside llama-server under load: clients that stream texts, on the shape of Qwen3-0.6B with random weights in one
GGUF file of Q8_0 that both read.

    python bench/server_load.py [--clients 1,4,16,32] [--prompt 512] [--new 128] [--rounds 3] [--peers graft,llama-server] [--open 32]

A sample is one number of clients on one server: each client sends a prompt of its own and reads the stream of --new tokens, twice.
Servers take turns; all stay loaded, and one that has no request does nothing. Ratios are made round by round, and their medians
shown: tokens per second over all clients, and the median and 99th percentile of the time to the first token and of the time between
tokens. Every text must be as long as asked for, and the one that its server gives for the prompt alone (texts that differ are counted).

With --open N there are N requests more for each server, which arrive at random (Poisson) at 80 % of the most requests per second that it
answered before, whether it has answered others or not.

llama-server is the one in xllamacpp, in an environment of its own: --python names its interpreter (default: build/bench/server_load/venv, made
when it is missing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python"), str(BENCH.parent / "test" / "python" / "llm")]

from language import CONFIGS  # noqa: E402
from serving import Server  # noqa: E402  (of the tests)

TURNS = 2  # requests of each client in a sample
LLAMA_SERVER = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, context, slots, threads = sys.argv[1], *map(int, sys.argv[2:])
params.n_ctx, params.n_parallel, params.port, params.hostnames = context * slots, slots, 0, ["127.0.0.1"]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.cache_ram_mib, params.n_threads_http = 0, slots + 4
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
"""


def make(folder: Path) -> tuple[Path, Path]:
    """The GGUF file, and the package that reads its weights there."""
    gguf, package = folder / "qwen3-0.6b-q8_0.gguf", folder / "qwen3-0.6b.pte"
    if not package.exists():
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        import gguf_writer
        import graft

        torch.manual_seed(0)
        config = CONFIGS["qwen3-0.6b"]
        model = Qwen3ForCausalLM(Qwen3Config(**config)).to(torch.bfloat16)
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


@contextmanager
def graft_server(package: Path, rows: int, context: int, threads: int) -> Iterator[int]:
    arguments = package, "--rows", rows, "--context", context, "--threads", threads, "--no-request-log"
    with Server(*arguments, "--prefix-cache-bytes", 0) as server:
        yield server.port


@contextmanager
def llama_server(python: str, gguf: Path, slots: int, context: int, threads: int) -> Iterator[int]:
    arguments = [python, "-c", LLAMA_SERVER, str(gguf), str(context), str(slots), str(threads)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = process.stdout.readline()
            yield int(re.search(r":(\d+)\s*$", address)[1])
        finally:
            process.kill()


@dataclass
class Sample:
    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds, by request
    between: list[float] = field(default_factory=list)  # seconds, by token
    texts: dict[int, str] = field(default_factory=dict)  # by prompt


def prompt_of(number: int, length: int) -> list[int]:
    return np.random.default_rng(number).integers(3, 150_000, length).tolist()


async def stream(port: int, number: int, options: argparse.Namespace, sample: Sample) -> None:
    request = {
        "prompt": prompt_of(number, options.prompt), "max_tokens": options.new, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    body = json.dumps(request).encode()
    begin = last = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    text, usage = "", {}
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        usage = event.get("usage") or usage
        if event.get("choices") and event["choices"][0].get("text"):
            now = time.perf_counter()
            (sample.between if text else sample.first).append(now - (last if text else begin))
            text, last = text + event["choices"][0]["text"], now
    writer.close()
    if usage.get("completion_tokens") != options.new:
        raise RuntimeError(f"expected {options.new} tokens, found {usage}")
    sample.tokens += options.new
    sample.texts[number] = text


async def load(port: int, clients: int, first_prompt: int, options: argparse.Namespace) -> Sample:
    sample = Sample()

    async def client(i: int) -> None:
        for turn in range(TURNS):
            await stream(port, first_prompt + i * TURNS + turn, options, sample)

    begin = time.perf_counter()
    await asyncio.gather(*map(client, range(clients)))
    sample.seconds = time.perf_counter() - begin
    return sample


async def arrivals(port: int, rate: float, options: argparse.Namespace) -> Sample:
    """Requests that come at random, so many a second."""
    sample, random, running = Sample(), np.random.default_rng(0), []
    begin = time.perf_counter()
    for number in range(options.open):
        running.append(asyncio.create_task(stream(port, 2 * 10**6 + number, options, sample)))
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="graft,llama-server")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", type=int, default=2, help="texts of a sample that are compared with those of the prompt alone")
    parser.add_argument("--open", type=int, default=0, help="requests that arrive at random")
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "server_load")
    parser.add_argument("--python")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    counts = [int(count) for count in options.clients.split(",")]
    gguf, package = make(options.folder)
    context, most = options.prompt + options.new + 8, max(counts)
    peers = options.peers.split(",")
    python = options.python
    if "llama-server" in peers and python is None:
        python = str(options.folder / "venv" / "bin" / "python")
        if not Path(python).exists():
            subprocess.run([sys.executable, "-m", "venv", options.folder / "venv"], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "xllamacpp==2026.10.11549"], check=True)
    found: dict[tuple[int | str, str], list[dict[str, float]]] = {}
    differing = compared = 0
    with ExitStack() as stack:
        ports = {}
        if "graft" in peers:
            ports["graft"] = stack.enter_context(graft_server(package, most, context, options.threads))
        if "llama-server" in peers:
            ports["llama-server"] = stack.enter_context(llama_server(python, gguf, most, context, options.threads))
        for port in ports.values():
            asyncio.run(load(port, 1, 10**6, options))  # warm
        for round_ in range(options.rounds):
            order = list(ports) if round_ % 2 == 0 else list(ports)[::-1]
            for count in counts:
                for peer in order:
                    number = round_ * 10_000 + count * 100
                    sample = asyncio.run(load(ports[peer], count, number, options))
                    figures = {name: figure(sample) for name, figure in FIGURES.items()}
                    found.setdefault((count, peer), []).append(figures)
                    print(f"{count:3d} clients, {peer}: " + ", ".join(f"{v:.1f} {n}" for n, v in figures.items()), flush=True)
                    for i in list(sample.texts)[: options.alone if count > 1 else 0]:
                        alone = Sample()
                        asyncio.run(stream(ports[peer], i, options, alone))
                        compared += peer == "graft"
                        differing += peer == "graft" and alone.texts[i] != sample.texts[i]
        if options.open:
            for peer, port in ports.items():
                most_tokens = max(statistics.median(f["tokens/s"] for f in found[count, peer]) for count in counts)
                sample = asyncio.run(arrivals(port, 0.8 * most_tokens / options.new, options))
                found["open", peer] = [{name: figure(sample) for name, figure in FIGURES.items()}]
    print(f"\ngraft's texts under load that differ from those of their prompt alone: {differing} of {compared}")
    print("\n| clients | figure | " + " | ".join(ports) + " | graft / " + " | graft / ".join(p for p in ports if p != "graft") + " |")
    print("|---|---|" + "---|" * (2 * len(ports) - 1))
    for count in [*counts, "open"] if options.open else counts:
        for name in FIGURES:
            medians = [statistics.median(f[name] for f in found[count, peer]) for peer in ports]
            ratios = [
                statistics.median(a[name] / b[name] for a, b in zip(found[count, "graft"], found[count, peer], strict=True))
                for peer in ports if peer != "graft"
            ]  # fmt: skip
            print(f"| {count} | {name} | " + " | ".join(f"{m:.1f}" for m in medians) + " | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")


if __name__ == "__main__":
    main()
