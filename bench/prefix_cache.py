"""Time to the first token of `graft serve` for a prompt whose first tokens another request had, beside a prompt that is new, on the
shape of Qwen3-0.6B with random weights in Q8_0.

    python bench/prefix_cache.py [--prefix 2000] [--rounds 5] [--folder build/bench/prefix_cache]

A round has a prefix of its own. Cold: the prefix and a question of 20 tokens. Then a short prompt takes the server's only row of
the cache. Warm: the prefix and another question. Cold and warm take turns so, and their ratio is that of each round. The first
token of every answer is compared with that of a server without a prefix cache.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import time
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python")]

from language import _tokenizer  # noqa: E402
from language_models import CONFIGS  # noqa: E402
from serving import Server  # noqa: E402

QUESTION = 20  # tokens


def make(folder: Path) -> Path:
    package = folder / "qwen3-0.6b.pte"
    if package.exists():
        return package
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    import graft

    torch.manual_seed(0)
    hf = folder / "hf"
    Qwen3ForCausalLM(Qwen3Config(**CONFIGS["qwen3-0.6b"])).to(torch.bfloat16).save_pretrained(hf)
    _tokenizer(CONFIGS["qwen3-0.6b"]["vocab_size"]).save_pretrained(hf)
    graft.export_llm(hf, package, quantize="q8_0")
    return package


def first_token(server: Server, tokens: np.ndarray) -> tuple[float, str]:
    """Seconds from the request to the first event of the stream, and its text."""
    request = {"prompt": tokens.tolist(), "max_tokens": 1, "temperature": 0, "stream": True}
    body = json.dumps(request).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        begin = time.perf_counter()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: graft\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = b""
        while b"data: " not in answer:
            answer += connection.recv(65536)
        seconds = time.perf_counter() - begin
        while part := connection.recv(65536):
            answer += part
    first = answer[answer.index(b"data: ") + 6 :].split(b"\n")[0]
    return seconds, json.loads(first)["choices"][0]["text"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--prefix", type=int, default=2000, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "prefix_cache")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    package = make(options.folder)
    args = package, "--rows", 1, "--context", options.prefix + 200
    cold, warm, ratios, answers = [], [], [], []
    tokens = [np.random.default_rng(i).integers(3, 150_000, options.prefix + 2 * QUESTION) for i in range(options.rounds)]
    prompts = [(t[:-QUESTION], np.concatenate([t[: -2 * QUESTION], t[-QUESTION:]])) for t in tokens]
    with Server(*args) as server:
        for first, second in prompts:
            for prompt, times in ((first, cold), (second, warm)):
                seconds, text = first_token(server, prompt)
                times.append(seconds)
                answers.append(text)
                first_token(server, first[::-1][:QUESTION])
            ratios.append(warm[-1] / cold[-1])
    with Server(*args, "--prefix-cache-bytes", 0) as server:
        expected = [first_token(server, prompt)[1] for both in prompts for prompt in both]
    assert answers == expected, "another first token than without a prefix cache"
    print(f"time to the first token after {options.prefix} + {QUESTION} tokens, median of {options.rounds}:")
    print(f"  cold {statistics.median(cold):.3f} s, warm {statistics.median(warm):.3f} s")
    print(f"  warm / cold {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); all first tokens equal")


if __name__ == "__main__":
    main()
