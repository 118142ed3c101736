"""A model in two stages beside one process: clients that stream texts, on Llamas of several sizes with random weights.

    python bench/stage_load.py [--sizes 5M,34M,150M] [--weights q8_0] [--clients 8] [--prompt 32] [--new 64] [--rounds 7]

whole is `graft serve` with a thread on each of two cores. stages is `graft serve` with the first stage, pinned to one core, and `graft stage`
with the other, pinned to the other core, of one thread each, through shared memory. cores is the most that two stages can reach: a `graft serve`
of the whole model on each core for half of the clients. As in stages, a core runs half of the rows at once and reads as many weights for
them, but nothing waits. All stay loaded and take turns; one that has no request does nothing. Ratios are made round by round, and all texts
must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python")]

import graft  # noqa: E402
from server_load import Endpoint, Sample, load  # noqa: E402
from serving import Server  # noqa: E402  (of the tests)
from stages import Worker  # noqa: E402  (of the tests)

VOCABULARY = 4096
# Hidden size, layers. The MLP has three times the hidden size; a head has 64 numbers.
SIZES = {"5M": (256, 4), "14M": (384, 6), "34M": (512, 8), "150M": (1024, 12), "600M": (1536, 20)}


def make(folder: Path, size: str, weights: str) -> tuple[Path, Path]:
    """The package of the whole model, and the one of the first of two stages."""
    whole, first = folder / f"{size}-{weights}.pte", folder / f"{size}-{weights}-cut.stage0.pte"
    if not first.exists():
        import torch
        from language import _tokenizer
        from transformers import LlamaConfig, LlamaForCausalLM

        hidden, layers = SIZES[size]
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
                             num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=4096,
                             tie_word_embeddings=False)  # fmt: skip
        hf = folder / f"{size}-hf"
        LlamaForCausalLM(config).save_pretrained(hf)
        _tokenizer(VOCABULARY).save_pretrained(hf)
        quantize = None if weights == "f32" else weights
        graft.export_llm(hf, whole, quantize=quantize)
        graft.export_llm(hf, folder / f"{size}-{weights}-cut.pte", quantize=quantize, stages=2)
    return whole, first


async def sampled(servers: list[Server], first_prompt: int, options: argparse.Namespace) -> Sample:
    """The clients, divided among servers that run at once."""
    clients, turns = options.clients // len(servers), options.turns
    parts = [load(Endpoint(server.port), clients, first_prompt + i * clients * turns, options) for i, server in enumerate(servers)]
    samples = await asyncio.gather(*parts)
    texts = {number: text for sample in samples for number, text in sample.texts.items()}
    return Sample(max(s.seconds for s in samples), sum(s.tokens for s in samples), texts=texts)


def ratio(found: dict[str, list[float]], name: str) -> str:
    ratios = sorted(b / a for a, b in zip(found["whole"], found[name], strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def measure(size: str, cores: list[int], options: argparse.Namespace) -> None:
    whole, first = make(options.folder, size, options.weights)
    shared = "--rows", options.clients, "--context", options.prompt + options.new + 8, "--no-request-log", "--prefix-cache-bytes", 0
    found: dict[str, list[float]] = {"whole": [], "stages": [], "cores": []}
    with ExitStack() as stack:
        both, one, other = ([*("taskset", "-c"), ",".join(map(str, c))] for c in (cores, cores[:1], cores[1:]))

        def start(package: Path, *more: object, launcher: list[str]) -> Server:
            return stack.enter_context(Server(package, *shared, *more, launcher=launcher))

        second = first.with_name(first.name.replace("stage0", "stage1"))
        worker = stack.enter_context(Worker(second, f"unix:{options.folder / 'socket'}", "--threads", 1, launcher=other))
        servers = {
            "whole": [start(whole, "--threads", 2, launcher=both)],
            "stages": [start(first, "--threads", 1, "--stages", worker.address, launcher=one)],
            "cores": [start(whole, "--threads", 1, launcher=core) for core in (one, other)],
        }
        for running in servers.values():
            asyncio.run(sampled(running, 10**6, options))  # warm
        for round_ in range(options.rounds):
            texts = []
            for name in list(servers)[:: 1 if round_ % 2 else -1]:
                sample = asyncio.run(sampled(servers[name], round_ * 10_000, options))
                found[name].append(sample.tokens / sample.seconds)
                texts.append(sample.texts)
            if any(found_texts != texts[0] for found_texts in texts):
                raise RuntimeError(f"{size}: texts of round {round_} differ")
    speed = statistics.median(found["whole"])
    print(
        f"| {size} | {options.weights} | {options.prompt}, {options.new} | {speed:.0f} | {ratio(found, 'stages')} | {ratio(found, 'cores')} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--sizes", default="5M,34M,150M", help=", ".join(SIZES))
    parser.add_argument("--weights", default="q8_0", help="f32, or what graft.export_llm quantizes to")
    parser.add_argument("--clients", type=int, default=8, help="an even number")
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--new", type=int, default=64, help="tokens")
    parser.add_argument("--turns", type=int, default=4, help="requests of each client in a sample")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "stage_load")
    parser.set_defaults(vocabulary=VOCABULARY)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        parser.error("expected two cores, found one")
    options.folder.mkdir(parents=True, exist_ok=True)
    print("| weights | stored as | prompt, answer | whole, tokens/s | stages / whole | cores / whole |")
    print("|---|---|---|---|---|---|")
    for size in options.sizes.split(","):
        measure(size, cores, options)


if __name__ == "__main__":
    main()
