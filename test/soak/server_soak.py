"""Does for hours what clients do to `graft serve`, and requires that answers stay as they were and that the server's memory,
descriptors, threads and mappings stay flat (soak.py says how much they may differ).

    python test/soak/server_soak.py [--seconds S | --rounds N] [--idle CONNECTIONS] [--folder FOLDER]

A round is 64 requests by 8 clients in a random order: texts, streams that are read to their end or left, texts that have a form,
calls of any model, loads and unloads, wrong requests, bytes that are none, clients that send a byte a second. All the while
--idle connections say nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "python"), str(Path(__file__).parent)]

import soak_models  # noqa: E402
from serving import Server  # noqa: E402
from soak import Held, grown  # noqa: E402

import graft  # noqa: E402

CLIENTS, TASKS = 8, 64
IDLE_SECONDS = 50  # less than the server gives a connection between requests
PROMPTS = [" ".join(f"{(3 + 7 * i * k) % 60 + 3}w" for i in range(4 + 9 * k)) for k in range(6)]


def held(pid: int, connections: int) -> Held:
    process = Path("/proc", str(pid))
    resident = int((process / "statm").read_text().split()[1]) * resource.getpagesize()
    descriptors = len(os.listdir(process / "fd")) - connections
    threads, mappings = len(os.listdir(process / "task")), (process / "maps").read_text().count("\n")
    return Held(heap=0, resident=resident, objects=0, descriptors=descriptors, threads=threads, mappings=mappings)


class Load:
    """What clients do. Answers that must be the same each time are remembered by their request."""

    def __init__(self, server: Server) -> None:
        self.server, self.seen, self.lock = server, {}, threading.Lock()
        self.done: dict[str, int] = {}

    def same(self, name: str, answer: object) -> None:
        with self.lock:
            if self.seen.setdefault(name, answer) != answer:
                raise SystemExit(f"{name} is not what it was: {self.seen[name]!r}, {answer!r}")

    def count(self, name: str) -> None:
        with self.lock:
            self.done[name] = self.done.get(name, 0) + 1

    def task(self, kind: int, number: int) -> None:
        draw = random.Random(number)
        kinds = [self.text, self.text, self.stream, self.leave, self.form, self.infer, self.infer, self.wrong, self.noise, self.drip,
                 self.control, self.look]  # fmt: skip
        kinds[kind % len(kinds)](draw)
        self.count(kinds[kind % len(kinds)].__name__)

    def settings(self, draw: random.Random) -> dict:
        return {"model": "words", "prompt": draw.choice(PROMPTS), "max_tokens": 24, "ignore_eos": True, "seed": draw.randrange(3),
                "temperature": draw.choice([0, 1])}  # fmt: skip

    def text(self, draw: random.Random) -> None:
        settings = self.settings(draw)
        self.same(json.dumps(settings), self.server.good("/v1/completions", **settings)["choices"][0]["text"])

    def stream(self, draw: random.Random) -> None:
        settings = self.settings(draw)
        events = self.server.events("/v1/completions", **settings)
        self.same(json.dumps(settings), "".join(e["choices"][0]["text"] for e in events[:-1]))

    def leave(self, draw: random.Random) -> None:
        body = json.dumps({**self.settings(draw), "max_tokens": 100, "stream": True}).encode()
        with self.connection() as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            client.sendall(body)
            client.recv(draw.randrange(1, 2000))

    def form(self, draw: random.Random) -> None:
        fields = {"model": "words", "prompt": draw.choice(PROMPTS), "temperature": 0, "max_tokens": 6, "structured_outputs": {"regex": "[ 3-5w]+"}}
        self.same(json.dumps(fields), self.server.good("/v1/completions", **fields)["choices"][0]["text"])

    def infer(self, draw: random.Random) -> None:
        rows = draw.randrange(1, 9)
        values = [draw.randrange(9) / 8 for _ in range(32 * rows)]
        inputs = [{"name": "x", "shape": [rows, 32], "datatype": "FP32", "data": values}]
        status, answer = self.server.post("/v2/models/first/infer", {"inputs": inputs})
        if status != 200:
            raise SystemExit(f"infer: {status} {answer}")

    def wrong(self, draw: random.Random) -> None:
        change = draw.choice([{"max_tokens": -1}, {"temperature": "x"}, {"prompt": None}, {"n": 10**6}, {"model": "none"}, {"x": 1}])
        status, answer = self.server.post("/v1/completions", {**self.settings(draw), **change})
        if status not in (400, 404):
            raise SystemExit(f"wrong request {change}: {status} {answer}")

    def noise(self, draw: random.Random) -> None:
        with self.connection() as client, contextlib.suppress(OSError):
            client.sendall(draw.randbytes(draw.randrange(1, 3000)))
            client.recv(1000)

    def drip(self, draw: random.Random) -> None:
        with self.connection() as client:
            for byte in b"GET"[: draw.randrange(1, 4)]:
                client.sendall(bytes([byte]))
                time.sleep(1)

    def control(self, draw: random.Random) -> None:
        path = draw.choice(["load", "unload"])
        status, answer = self.server.post(f"/v1/models/{path}", {"model": "second"})
        if status not in (200, 404, 409):
            raise SystemExit(f"{path}: {status} {answer}")

    def look(self, draw: random.Random) -> None:
        for path in ("/metrics", "/health", "/v1/models", "/openapi.json"):
            if self.server.request("GET", path)[0].status != 200:
                raise SystemExit(f"{path} failed")

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=60)


def open_idle(server: Server, count: int) -> list[socket.socket]:
    out = []
    for _ in range(count):
        out.append(socket.create_connection(("127.0.0.1", server.port)))
    return out


def soak(folder: Path, *, seconds: float, rounds: int, idle: int) -> list[Held]:
    soak_models.make(folder)
    soak_models.language_model(folder / "words")
    graft.export_llm(folder / "words", folder / "words.pte", context=256)
    models = [f"words={folder / 'words.pte'}", f"first={folder / 'first.pte'}", f"second={folder / 'second.pte'}"]
    options = ["--rows", 4, "--threads", 1, "--model-control", "--no-request-log", "--prefix-cache-file", f"words={folder / 'prefixes'}",
               "--prefix-cache-bytes", 1 << 24]  # fmt: skip
    samples: list[Held] = []
    with Server(*models, *options) as server:
        load, number = Load(server), 0
        begin = opened = time.monotonic()
        connections = open_idle(server, idle)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            while time.monotonic() - begin < seconds if seconds else len(samples) < rounds:
                tasks = [clients.submit(load.task, number + i, number + i) for i in range(TASKS)]
                number += TASKS
                for task in tasks:
                    task.result()
                if time.monotonic() - opened > IDLE_SECONDS:
                    for connection in connections:
                        connection.close()
                    connections, opened = open_idle(server, idle), time.monotonic()
                # What may be there or not: a model, connections that were closed and are noticed soon.
                server.post("/v1/models/unload", {"model": "second"})
                least = held(server.process.pid, idle)
                for _ in range(20):
                    time.sleep(0.02)
                    now = held(server.process.pid, idle)
                    if (now.threads, now.descriptors) <= (least.threads, least.descriptors):
                        least = now
                samples.append(least)
        for connection in connections:
            connection.close()
        print(f"{len(samples)} rounds, {number} requests in {time.monotonic() - begin:.0f} s beside {idle} idle connections: {load.done}")
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        samples = soak(folder, seconds=options.seconds, rounds=options.rounds, idle=options.idle)
    print("first", samples[0], "last", samples[-1], sep="\n")
    found = grown(samples)
    print("SERVER SOAK " + ("failed: " + "; ".join(found) if found else "passed"))
    return len(found) > 0


if __name__ == "__main__":
    raise SystemExit(main())
