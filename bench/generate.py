"""What `generate()` costs per token, on the shape of Qwen3-0.6B with random weights: graft beside eager PyTorch.

    python bench/generate.py [--tokens 64] [--prompt 128] [--layers 28]

Each engine runs in a process of its own; times are medians of all steps; the peak of memory is that of generating, the
weights included. `added` is what `graft.compile` costs per step over its engine: milliseconds of generate(), less those in
the engine, less those of generate() with a model that does nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENGINES = ("nothing", "graft", "eager dynamic", "eager static")


def make(options: argparse.Namespace, engine: str):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=1 if engine == "nothing" else options.layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if engine == "graft":
        import graft

        started = time.perf_counter()
        graft.compile(model)
        return model, {"compile_seconds": time.perf_counter() - started}
    if engine == "nothing":
        from transformers.modeling_outputs import CausalLMOutputWithPast

        class Nothing(type(model)):
            logits = torch.zeros(1, 1, config.vocab_size)

            def forward(
                self,
                input_ids=None,
                attention_mask=None,
                position_ids=None,
                past_key_values=None,
                use_cache=None,
                logits_to_keep=0,
                **_,
            ):
                # A copy, as each engine gives new logits.
                return CausalLMOutputWithPast(logits=self.logits.clone(), past_key_values=past_key_values)

        model.__class__ = Nothing
    return model, {}


def measure(options: argparse.Namespace) -> None:
    import torch

    model, found = make(options, options.engine)
    ids = torch.randint(3, 150000, (1, options.prompt))
    settings = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    if options.engine == "eager static":
        settings["cache_implementation"] = "static"
        settings["max_cache_len"] = options.prompt + options.tokens + 1

    inside: list[float] = []
    if options.engine == "graft":
        run = model.graft.run

        def timed(*args):
            started = time.perf_counter()
            logits = run(*args)
            inside.append((time.perf_counter() - started) * 1e3)
            return logits

        model.graft.run = timed

    class Clock:
        """A streamer: called with the prompt, then with each token."""

        def __init__(self) -> None:
            self.times = []

        def put(self, _) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    model.generate(ids, max_new_tokens=4, **settings)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    steps, prompts, engine = [], [], []
    before = model.graft.stats() if options.engine == "graft" else None
    for _ in range(options.repeat):
        clock = Clock()
        inside.clear()
        started = time.perf_counter()
        model.generate(ids, max_new_tokens=1 + options.tokens, streamer=clock, **settings)
        times = clock.times[1:]
        prompts.append((times[0] - started) * 1e3)
        steps += [(b - a) * 1e3 for a, b in zip(times, times[1:])]
        engine += inside[1:]
    if before is not None:
        after = model.graft.stats()
        names = ("materialized", "imported", "resized")
        found["tensors_of_caches"] = sum(after[name] - before[name] for name in names)
    median = statistics.median
    found.update(step_ms=median(steps), engine_ms=median(engine) if engine else 0.0, prompt_ms=median(prompts))
    status = Path("/proc/self/status").read_text()
    found["peak_gb"] = int(status.split("VmHWM:")[1].split()[0]) / 1e6
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        measure(options)
        return
    results = {}
    for engine in ENGINES:
        numbers = [f"--{name}={getattr(options, name)}" for name in ("tokens", "prompt", "layers", "repeat")]
        command = [sys.executable, __file__, "--engine", engine, *numbers]
        results[engine] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{options.prompt} tokens of prompt, {options.tokens} steps, {options.layers} layers")
    print(f"{'':16}{'step ms':>10}{'in engine':>11}{'prompt ms':>11}{'peak GB':>9}")
    for engine, found in results.items():
        print(
            f"{engine:16}{found['step_ms']:10.2f}{found['engine_ms']:11.2f}{found['prompt_ms']:11.1f}{found['peak_gb']:9.2f}"
        )
    graft, nothing = results["graft"], results["nothing"]
    print(f"added per step: {graft['step_ms'] - graft['engine_ms'] - nothing['step_ms']:.2f} ms")
    print(f"tensors of caches made in the steps: {graft['tensors_of_caches']}")
    print(f"graft.compile: {graft['compile_seconds']:.1f} s")


if __name__ == "__main__":
    main()
