"""Embeddings under load: clients that ask for the vectors of texts of MiniLM, from `graft serve` and from infinity.

    python bench/embed_load.py [--clients 64] [--texts 1] [--tokens 64] [--requests 8] [--rounds 5] [--peers graft,infinity,...]

Each client asks --requests times for --texts texts of about --tokens tokens, over a connection of its own. Servers take turns; one that has no
request does nothing. Ratios are made round by round. The vectors of all servers must agree.

infinity-torch is infinity-emb with its engine torch (others by their names): --python names the interpreter of its environment (default:
build/bench/embed_load/infinity, made when it is missing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python")]

from peer_servers import environment, free_port, listening  # noqa: E402
from serving import Server, export_minilm  # noqa: E402

PACKAGES = ["infinity-emb[server,torch,optimum]==0.0.78", "transformers<5", "click<8.2"]
WORDS = "the of and to in a is that for it was on are as with his they at be this from have or by one had not but what all".split()


@contextmanager
def graft_server(folder: Path, threads: int) -> Iterator[int]:
    package, source = folder / "minilm.pte", folder / "model"
    if not package.exists():
        from torch.export import Dim

        found, _ = export_minilm(package, {0: Dim("rows", min=1, max=64), 1: Dim("tokens", min=2, max=512)})
        shutil.copytree(found, source, dirs_exist_ok=True)
    with Server(f"m={package}", "--tokenizer", f"m={source / 'tokenizer.json'}", "--threads", threads, "--no-request-log") as server:
        yield server.port


@contextmanager
def infinity(folder: Path, python: Path, engine: str, threads: int) -> Iterator[int]:
    port = free_port()
    arguments = [python.with_name("infinity_emb"), "v2", "--model-id", folder / "model", "--served-model-name", "m", "--engine", engine,
                 "--device", "cpu", "--port", port, "--no-bettertransformer"]  # fmt: skip
    more = {"OMP_NUM_THREADS": str(threads), "ANONYMIZED_TELEMETRY": "0", "DO_NOT_TRACK": "1"}
    with listening(arguments, port, more):
        yield port


def texts_of(number: int, options: argparse.Namespace) -> list[str]:
    random = np.random.default_rng(number)
    return [" ".join(random.choice(WORDS, options.tokens - 2)) for _ in range(options.texts)]


async def client(port: int, number: int, options: argparse.Namespace, times: list[float], vectors: dict) -> None:
    path = b"/v1/embeddings" if options.prefixed[port] else b"/embeddings"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    for turn in range(options.requests):
        body = json.dumps({"model": "m", "input": texts_of(number * 1000 + turn, options)}).encode()
        begin = time.perf_counter()
        writer.write(
            b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))[15:])
        answer = await reader.readexactly(length)
        times.append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:300])
        if number == 0:
            vectors[turn] = np.array([entry["embedding"] for entry in json.loads(answer)["data"]])
    writer.close()


async def load(port: int, round_: int, options: argparse.Namespace) -> tuple[float, list[float], dict]:
    times: list[float] = []
    vectors: dict = {}
    begin = time.perf_counter()
    await asyncio.gather(*(client(port, i and i + round_ * 100, options, times, vectors) for i in range(options.clients)))
    return options.clients * options.requests * options.texts / (time.perf_counter() - begin), times, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=1, help="of a request")
    parser.add_argument("--tokens", type=int, default=64, help="of a text")
    parser.add_argument("--requests", type=int, default=8, help="of a client in a sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="graft,infinity-torch")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "embed_load")
    parser.add_argument("--python", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    peers = options.peers.split(",")
    python = options.python or environment(options.folder / "infinity", PACKAGES)
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    latencies: dict[str, list[float]] = {peer: [] for peer in peers}
    with ExitStack() as stack:
        ports = {}
        for peer in peers:
            server = graft_server(options.folder, options.threads) if peer == "graft" else \
                infinity(options.folder, python, peer.partition("-")[2], options.threads)  # fmt: skip
            ports[peer] = stack.enter_context(server)
        options.prefixed = {port: peer == "graft" for peer, port in ports.items()}
        for port in ports.values():
            asyncio.run(load(port, 99, options))  # warm
        for round_ in range(options.rounds):
            found = {}
            for peer in peers if round_ % 2 == 0 else peers[::-1]:
                rate, times, found[peer] = asyncio.run(load(ports[peer], round_, options))
                rates[peer].append(rate)
                latencies[peer] += times
            for peer in peers[1:]:
                for turn, vectors in found[peer].items():
                    np.testing.assert_allclose(found["graft"][turn], vectors, atol=2e-3)
    print(f"{options.clients} clients, {options.texts} texts of {options.tokens} tokens a request; vectors agree within 0.002\n")
    print("| server | texts/s | median ms | p99 ms | graft / it |\n|---|---:|---:|---:|---:|")
    for peer in peers:
        ratio = statistics.median(a / b for a, b in zip(rates["graft"], rates[peer], strict=True))
        middle, late = 1e3 * np.percentile(latencies[peer], [50, 99])
        print(f"| {peer} | {statistics.median(rates[peer]):.1f} | {middle:.0f} | {late:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
