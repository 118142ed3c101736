"""What LoRA adapters cost: a prompt of 512 tokens and steps after it, by a program without room for adapters, by one
with room and none chosen, and with one of rank 16 on all linear layers; random weights in Q8_0 and bf16.

    python bench/adapters.py [--rounds 7] [--threads 2] [--layers 12] [--folder build/bench/adapters]

The three take turns in each round, with a prompt of its own; ratios are those of each round to the first of these, and
their medians are shown with the 10th to 90th percentile. Logits of the first two are compared with each other, those of
the third with eager peft's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH.parent / "test" / "python" / "llm")]

PROMPT, STEPS, RANK = 512, 32, 16
CLOSE = {"bf16": 2e-3, "q8_0": 5e-2}  # of the largest logit: what the base product rounds


def make(folder: Path, layers: int):
    """The packages by type, the folder of the adapter, and the eager model with it."""
    import torch
    import transformers

    import graft
    import lora

    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).float().eval().requires_grad_(False)
    packages = {kind: graft.export_llm(model, folder / f"{kind}.pte", quantize=kind) for kind in CLOSE}
    adapted = lora.adapted(model, "llama", 1, r=RANK, lora_alpha=RANK)
    return packages, lora.saved(adapted, folder / "adapter"), adapted


def turn(generator, prompt, adapter):
    """Milliseconds of the prompt and of a step, and the tokens."""
    result = generator.generate(prompt, max_new_tokens=STEPS, ignore_eos=True, adapter=adapter)
    stats = generator.stats
    assert stats["reused_tokens"] == 0, stats
    return 1e3 * stats["prefill_seconds"], 1e3 * stats["decode_seconds"] / (STEPS - 1), result.tokens


def difference(expected, found) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def shown(ratios: list[float]) -> str:
    parts = statistics.quantiles(ratios, n=10, method="inclusive")
    return f"{statistics.median(ratios):.3f} ({parts[0]:.3f} to {parts[-1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "adapters")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    import graft

    packages, adapter, eager = make(options.folder, options.layers)
    for kind, package in packages.items():
        without = graft.TextGenerator(package, threads=options.threads)
        room = graft.TextGenerator(package, threads=options.threads, adapters={"a": adapter})
        ids = [(7 * i + 3) % 7000 for i in range(24)]
        with torch.no_grad():
            expected = eager(torch.tensor([ids])).logits[0]
        error = difference(expected, room.logits(ids, adapter="a"))
        others = difference(without.logits(ids), room.logits(ids))
        assert max(error, others) <= CLOSE[kind], (kind, error, others)
        sides = {"without": (without, None), "room": (room, None), "rank 16": (room, "a")}
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for number in range(-1, options.rounds):  # the first warms up
            prompt = [random.Random(number).randrange(7000)] + [(i * 13 + number) % 7000 for i in range(PROMPT - 1)]
            tokens = {}
            for side in random.Random(number).sample(sorted(sides), len(sides)):
                prefill, step, tokens[side] = turn(sides[side][0], prompt, sides[side][1])
                if number >= 0:
                    times[side].append((prefill, step))
            assert tokens["room"] != tokens["rank 16"]
        print(f"{kind}, {options.threads} threads: logits with the adapter are within {error:.1e} of eager peft's,")
        print(f"  those without one within {others:.1e} of those of a program that has no room for any")
        for part, name in enumerate((f"prompt of {PROMPT}", "step")):
            base = [entry[part] for entry in times["without"]]
            print(f"  {name}: {statistics.median(base):.2f} ms without")
            for side in ("room", "rank 16"):
                print(f"    {side}: {shown([entry[part] / b for entry, b in zip(times[side], base)])}")


if __name__ == "__main__":
    main()
