"""What `generate()` costs per token, on the shape of Qwen3-0.6B with random weights: graft beside eager PyTorch and
OpenVINO's OVModelForCausalLM, all in float32.

    python bench/generate.py [--tokens 64] [--prompt 128] [--layers 28] [--rounds 3]

The engines take turns, each time in a process of its own; times are medians of all steps of all rounds; the peak of memory
is the largest while generating, the weights included. graft has compiled the model before, so it is found on disk; what the
first compilation takes is printed beside. `added` is what `graft.compile` costs per step over its engine: milliseconds of
generate(), less those in the engine, less those of generate() with a model that does nothing. OpenVINO runs from the
environment that bench/run.py makes for the peers of language models, and is left out when that is not there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENGINES = ("nothing", "nothing, cold", "graft", "eager dynamic", "eager static", "openvino")
BENCH = Path(__file__).parent


def make(options: argparse.Namespace, engine: str):
    import torch
    import transformers

    if engine == "openvino":
        from optimum.intel import OVModelForCausalLM

        exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        return OVModelForCausalLM.from_pretrained(openvino_model(options), ov_config=exact), {}
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=1 if engine.startswith("nothing") else options.layers,
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
    if engine.startswith("nothing"):
        import numpy
        from transformers.modeling_outputs import CausalLMOutputWithPast

        class Nothing(type(model)):
            logits = torch.zeros(1, 1, config.vocab_size)
            read = numpy.ones(64 << 20 if engine == "nothing, cold" else 0, dtype=numpy.float32)
            reading: list[float] = []  # milliseconds of each call

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
                started = time.perf_counter()
                self.read.max(initial=0)
                self.reading.append((time.perf_counter() - started) * 1e3)
                # A copy, since each engine returns new logits.
                return CausalLMOutputWithPast(logits=self.logits.clone(), past_key_values=past_key_values)

        model.__class__ = Nothing
    return model, {}


def openvino_model(options: argparse.Namespace) -> Path:
    """The same weights as OpenVINO's files, made once."""
    from optimum.intel import OVModelForCausalLM

    folder = BENCH / "cache" / "generate" / f"{options.layers}-layers"
    if not (folder / "openvino").exists():
        make(options, "eager dynamic")[0].save_pretrained(folder / "torch")
        model = OVModelForCausalLM.from_pretrained(folder / "torch", export=True, load_in_8bit=False, compile=False)
        model.save_pretrained(folder / "unfinished")
        (folder / "unfinished").rename(folder / "openvino")
    return folder / "openvino"


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
    elif options.engine.startswith("nothing"):
        inside = model.reading

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
    found["outside_ms"] = median([a - b for a, b in zip(steps, engine)]) if engine else found["step_ms"]
    status = Path("/proc/self/status").read_text()
    found["peak_gb"] = int(status.split("VmHWM:")[1].split()[0]) / 1e6
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        measure(options)
        return
    pythons = dict.fromkeys(ENGINES, sys.executable)
    pythons["openvino"] = str(BENCH / ".venv-language" / "bin" / "python")
    if not Path(pythons["openvino"]).exists():
        del pythons["openvino"]
    numbers = [f"--{name}={getattr(options, name)}" for name in ("tokens", "prompt", "layers", "repeat")]

    def measured(engine: str) -> dict[str, float]:
        command = [pythons[engine], __file__, "--engine", engine, *numbers]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])

    first_compile = measured("graft")["compile_seconds"]
    if "openvino" in pythons:
        measured("openvino")
    rounds = [{engine: measured(engine) for engine in pythons} for _ in range(options.rounds)]
    results = {
        engine: {
            name: (max if name == "peak_gb" else statistics.median)(found[engine][name] for found in rounds)
            for name in rounds[0][engine]
        }
        for engine in pythons
    }
    print(f"{options.prompt} tokens of prompt, {options.tokens} steps, {options.layers} layers")
    print(f"{'':16}{'step ms':>10}{'in engine':>11}{'prompt ms':>11}{'peak GB':>9}")
    for engine, found in results.items():
        print(
            f"{engine:16}{found['step_ms']:10.2f}{found['engine_ms']:11.2f}{found['prompt_ms']:11.1f}{found['peak_gb']:9.2f}"
        )
    graft = results["graft"]
    for floor in ("nothing", "nothing, cold"):
        added = [found["graft"]["outside_ms"] - found[floor]["outside_ms"] for found in rounds]
        print(f'added per step, over "{floor}": {statistics.median(added):.2f} ms, by round {[round(n, 2) for n in added]}')
    print(f"tensors of caches made in the steps: {graft['tensors_of_caches']}")
    print(f"graft.compile: {first_compile:.1f} s at first, {graft['compile_seconds']:.2f} s from its cache on disk")


if __name__ == "__main__":
    main()
