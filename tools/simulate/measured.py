"""Real processes of `graft serve`: the times of their steps, and talks with them through the same router."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from events import TOKENS, Request, Times
from graft.ray.affinity import Affinity
from graft.ray.process import ServerProcess

TICKS = os.sysconf("SC_CLK_TCK")


class Server(ServerProcess):
    """A process with one thread."""

    def __init__(self, package: Path, rows: int) -> None:
        super().__init__({"m": str(package)}, ["--rows", str(rows)], threads=1)
        while self.ask("GET", "/health")[0] != 200:
            time.sleep(0.05)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def ask(self, method: str, path: str, fields: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        body = None if fields is None else json.dumps(fields)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def scheduled(self) -> np.ndarray[Any, Any]:
        """Nanoseconds that its threads ran, and that they waited for a CPU while they could have."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return np.sum([[int(w) for w in (task / "schedstat").read_text().split()[:2]] for task in tasks], axis=0)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> int:
        """Tokens of the prompts that it knew."""
        fields = {"prompt": [list(p) for p in prompts], "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        status, answer = self.ask("POST", "/v1/completions", fields)
        if status != 200:
            raise SystemExit(f"graft serve: {answer}")
        return answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def ids(count: int, draw: random.Random, vocabulary: int) -> list[int]:
    return [draw.randrange(3, vocabulary) for _ in range(count)]


def times(package: Path, vocabulary: int, rounds: int = 5) -> Times:
    """From CPU seconds of a process under four kinds of load, by least squares: they do not depend on what else the CPUs do,
    but for what it leaves in their caches."""
    server, draw = Server(package, 8), random.Random(1)
    kinds = [(1, 65, 2), (1, 65, 66), (8, 65, 66), (1, 449, 2)]  # prompts, tokens of each, tokens generated
    equations, seconds = [], []
    for prompts, length, tokens in [*kinds, *kinds]:  # the first time for its plans
        began = server.cpu()
        for _ in range(rounds):
            server.generate([ids(length, draw, vocabulary) for _ in range(prompts)], tokens)
        steps = prompts + tokens - 1
        rows = prompts * (tokens - 1)
        equations.append([steps, rows, prompts * length, prompts])
        seconds.append((server.cpu() - began) / rounds)
    server.stop()
    half = len(kinds)
    found = np.linalg.solve(np.array(equations[half:], float), np.array(seconds[half:]))
    return Times(*(max(0.0, float(value)) for value in found))


async def talk(servers: Sequence[Server], first: Sequence[Request], vocabulary: int, rows: int) -> list[Request]:
    """The requests as `Simulation.run` gives them, but they happened: tokens are drawn so that equal blocks are equal."""
    named = {f"r{i}": server for i, server in enumerate(servers)}
    router, loads, done, began = Affinity(named, free=max(1, rows // 2)), dict.fromkeys(named, 0), [], time.monotonic()

    async def run(request: Request | None) -> None:
        while request is not None:
            await asyncio.sleep(max(0.0, began + request.at - time.monotonic()))
            name = router.choose(request.blocks, loads.__getitem__, sum(loads.values()), request.talk)
            assert name is not None
            router.record(request.blocks, name)
            loads[name] += 1
            tokens = [token for block in request.blocks for token in ids(TOKENS, random.Random(block), vocabulary)]
            tokens += ids(request.tokens - len(tokens), random.Random(request.talk), vocabulary)
            fields = {"prompt": tokens, "max_tokens": request.answer, "ignore_eos": True, "temperature": 0}
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
            first, usage = await _stream(named[name].port, json.dumps(fields).encode())
            loads[name] -= 1
            now = time.monotonic() - began
            known = usage["prompt_tokens_details"]["cached_tokens"]
            done.append(replace(request, first=first - began, end=now, cached=known))
            request = request.follow(now)

    await asyncio.gather(*(run(request) for request in first))
    return done


async def _stream(port: int, body: bytes) -> tuple[float, dict[str, Any]]:
    """When the first token came, and the usage."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    first, usage = 0.0, None
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            first = first or time.monotonic()
            usage = json.loads(line[6:]).get("usage") or usage
    writer.close()
    if usage is None:
        raise SystemExit("graft serve: a stream ended without its usage")
    return first, usage


__all__ = ["Server", "talk", "times"]
