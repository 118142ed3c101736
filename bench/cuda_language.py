"""Qwen3-0.6B's shape on a GPU: graft beside llama.cpp, and beside PyTorch in bf16.

    python bench/cuda_language.py --export PROGRAMS              # once, where executorch is; a GPU is not needed
    python bench/cuda_language.py --programs PROGRAMS FOLDER     # where the GPU is: numpy, torch, transformers, llama_cpp, graft

The second command writes GGUF files of random weights to FOLDER, one for each type, 1.2 GB at most. Engines take turns
in every round, with the same tokens, which are given, not sampled; a turn ends when the logits are in the CPU's memory.
They are compared with PyTorch's in f32 on the weights as they are in the file. The time is the median of the rounds: of
a prompt, or of one step of all sequences. In every turn of every engine 4 steps that are not timed come before those
that are, so that graphs which a backend captures anew are captured, and before a prompt that is timed, the same prompt.

llama.cpp runs in a process of its own, which sleeps while others have their turns. graft's libggml-cuda.so has kernels
of graft's; `--llama-module` names the one that llama.cpp is to use, such as ggml's unchanged one, which the project
cmake/cuda builds with -DGRAFT_CUDA_KERNELS=OFF. Without it, llama.cpp uses graft's.

`--tiny --device cpu` tries the script out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cuda_files
from cuda_engine import Case, Engine
from cuda_engines import Graft, Torch, module_of
from cuda_llama import LlamaCpp

CASES = (
    Case("prompt of 512", 1, 512, 0),
    Case("prompt of 4096", 1, 4096, 0),
    Case("decode, 1 sequence", 1, 16, 64),
    Case("decode, 8 sequences", 8, 16, 64),
    Case("decode, 64 sequences", 64, 16, 64),
)
ENGINES = ("graft", "graft call", "llama.cpp", "torch", "torch.compile")
COMPILED = ("prompt of 512", "decode, 1 sequence")  # others take minutes to compile


def main() -> None:
    options = _options()
    if options.export:
        cuda_files.export(options.export, tiny=options.tiny)
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    gpu = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.folder.mkdir(parents=True, exist_ok=True)
    config = cuda_files.config(options.tiny)
    _say_machine(options)
    say("making weights")
    model = cuda_files.torch_model(config, gpu)
    weights = cuda_files.random_weights(config, gpu)
    results: list[dict[str, Any]] = []
    columns = f"{'ms':>9} {'of graft':>9} {'error, prompt':>14} {'error, end':>11}"
    head = f"{'weights':8} {'case':22} {'engine':14} {columns}  setting"
    for kind in options.kinds:
        path = options.folder / f"{cuda_files.stem(options.tiny, kind)}.gguf"
        start = time.perf_counter()
        _fill(model, cuda_files.write(path, config, kind, weights))
        say(f"{path.name}: {path.stat().st_size >> 20} MiB in {time.perf_counter() - start:.1f} s")
        # The package looks for its weights beside itself.
        program = shutil.copy(options.programs / path.with_suffix(".pte").name, options.folder)
        references = {case.name: _reference(model, case, config.vocab_size) for case in options.cases}
        engines = _engines(options, kind, model, Path(program), path, config.vocab_size)
        if not results:
            _show_modules(engines)
            print(head)
        for case in options.cases:
            able = [engine for engine in engines if _runs(engine, case)]
            found = _measure(case, able, references[case.name], config.vocab_size, options)
            results += [{"weights": kind, "case": case.name, **one} for one in found]
            _show(kind, case, found)
            if options.results:
                options.results.write_text(json.dumps(results, indent=1))
        for engine in engines:
            engine.free()
        if not options.keep:
            path.unlink()
    _show_beside(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="for GGUF files")
    parser.add_argument("--export", type=Path, metavar="PROGRAMS", help="write the programs, and measure nothing")
    programs = os.environ.get("GRAFT_CUDA_PROGRAMS")
    parser.add_argument("--programs", type=Path, default=programs, help="what --export wrote")
    parser.add_argument("--device", default="cuda0", help="of graft; with cpu, llama.cpp computes on the CPU too")
    parser.add_argument("--llama-module", type=Path, metavar="PATH", help="libggml-cuda.so of llama.cpp, else graft's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="3 rounds, and nothing compiled")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script out")
    parser.add_argument("--kinds", type=_listed, default=list(cuda_files.KINDS), help="of weights: bf16,q8_0,q4_K")
    parser.add_argument("--cases", type=_listed, default=[""], help="parts of cases' names: decode,512")
    parser.add_argument("--engines", type=_listed, default=["graft", "llama.cpp", "torch", "torch.compile"],
                        help=", ".join(ENGINES))  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="the GGUF files")
    parser.add_argument("--results", type=Path, help="JSON of all rounds")
    options = parser.parse_args()
    if not options.export and not (options.folder and options.programs):
        parser.error("expected --export PROGRAMS, or --programs PROGRAMS (or GRAFT_CUDA_PROGRAMS) and a folder")
    options.programs = Path(options.programs or "")
    options.cases = [case for case in CASES if any(part in case.name for part in options.cases)]
    if options.llama_module and not options.llama_module.is_file():
        parser.error(f"expected a library as --llama-module, found no file {options.llama_module}")
    if options.llama_module and options.device == "cpu":
        parser.error("expected no --llama-module with --device cpu, which has no modules")
    if options.quick:
        options.rounds = 3
        options.engines = [name for name in options.engines if name != "torch.compile"]
    return options


def _listed(text: str) -> list[str]:
    return text.split(",")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_machine(options: argparse.Namespace) -> None:
    import graft

    known = {name: description for name, description, *_ in graft.devices()}  # loads the modules of ggml's backends
    if options.device not in {name.lower() for name in known}:
        raise SystemExit(f"expected a device of {sorted(known)}, found {options.device!r}")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU of PyTorch"
    print(f"{gpu}; graft {graft.version()} on {options.device}: {known}; torch {torch.__version__}")


def _fill(model: Any, weights: Any) -> None:
    parameters = dict(model.named_parameters())
    for name, values in weights:
        parameters[name].copy_(values)


def _tokens(case: Case, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(case.length).integers(3, vocabulary, (case.sequences, case.length), dtype=np.int64)


def _reference(model: Any, case: Case, vocabulary: int) -> np.ndarray:
    """[2, sequences, vocabulary]: after the prompt, and after the steps."""
    tokens = torch.from_numpy(_tokens(case, vocabulary)).to(model.device)
    keep = torch.tensor([case.prompt - 1, case.length - 1], device=model.device)
    with torch.no_grad():
        logits = [model(row, logits_to_keep=keep, use_cache=False).logits.float().cpu() for row in tokens.split(8)]
    return torch.cat(logits).transpose(0, 1).numpy()


def _engines(
    options: argparse.Namespace, kind: str, model: Any, program: Path, path: Path, vocabulary: int
) -> list[Engine]:
    engines: list[Engine] = []
    for name in options.engines:
        if name in ("graft", "graft call"):
            engines.append(Graft(program, path, vocabulary, options.device, fresh=name == "graft call"))
        elif name == "llama.cpp":
            llama = LlamaCpp(path, str(options.llama_module or module_of(options.device)))
            say("\n".join(llama.loaded))
            engines.append(llama)
        elif kind == "bf16":
            halves = cuda_files.torch_model(model.config, model.device).to(torch.bfloat16)
            _fill(halves, model.named_parameters())
            engines.append(Torch(halves, compiled=name == "torch.compile"))
    return engines


def _runs(engine: Engine, case: Case) -> bool:
    return engine.name != "torch.compile" or case.name in COMPILED


def _measure(
    case: Case, engines: list[Engine], reference: np.ndarray, vocabulary: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """What each engine needs for a case. One that fails says why, and the others go on."""
    tokens = _tokens(case, vocabulary)
    found: dict[str, dict[str, Any]] = {}
    for engine in engines:
        start = time.perf_counter()
        one: dict[str, Any] = {"engine": engine.name, "module": engine.module, "ms": []}
        found[engine.name] = one
        try:
            one["setting"], one["tried"] = _fastest(engine, case, tokens)
            one["errors"] = _errors(engine.turn(case, tokens, compare=True)[1], reference)
        except Exception as e:
            one["failure"] = f"{type(e).__name__}: {e}"
        say(f"   {case.name}, {engine.name}: ready in {time.perf_counter() - start:.1f} s")
    ready = [engine for engine in engines if "failure" not in found[engine.name]]
    before = {engine.name: engine.counters() for engine in ready}
    for number in range(options.rounds):
        for engine in ready if number % 2 else reversed(ready):
            found[engine.name]["ms"].append(engine.turn(case, tokens)[0] * 1e3)
    for engine in ready:
        after = engine.counters()
        changed = {name: after[name] - count for name, count in before[engine.name].items() if after[name] != count}
        if changed:
            found[engine.name]["counters"] = changed
            say(f"   {case.name}, {engine.name}: {changed}")
        engine.close()
    return list(found.values())


def _fastest(engine: Engine, case: Case, tokens: np.ndarray) -> tuple[Any, dict[str, float]]:
    """Leaves the engine open with its fastest setting."""
    settings, tried = engine.settings(case), {}
    for setting in settings:
        engine.open(case, setting)
        engine.turn(case, tokens)
        if len(settings) == 1:
            return setting, {}
        engine.turn(case, tokens)
        tried[setting] = engine.turn(case, tokens)[0] * 1e3
        engine.close()
    best = min(tried, key=tried.__getitem__)
    engine.open(case, best)
    engine.turn(case, tokens)
    return best, {str(setting): round(ms, 3) for setting, ms in tried.items()}


def _errors(logits: list[np.ndarray], reference: np.ndarray) -> list[float]:
    """The largest difference, as a share of the largest logit."""
    return [float(np.abs(ours - exact).max() / np.abs(exact).max()) for ours, exact in zip(logits, reference)]


def _show_modules(engines: list[Engine]) -> None:
    for engine in engines:
        print(f"{engine.name}: {engine.module or 'no module of ggml'}")


def _show(kind: str, case: Case, found: list[dict[str, Any]]) -> None:
    medians = {one["engine"]: statistics.median(one["ms"]) for one in found if one["ms"]}
    graft = medians.get("graft")
    for one in found:
        if "failure" in one:
            print(f"{kind:8} {case.name:22} {one['engine']:14} {one['failure']}", flush=True)
            continue
        ms, (prompt, end) = medians[one["engine"]], one["errors"]
        ratio = f"{ms / graft:9.3f}" if graft else ""
        setting = f"{one['setting'] or ''} {one['tried'] or ''}"
        columns = f"{ms:9.3f} {ratio:>9} {prompt:14.2e} {end:11.2e}"
        print(f"{kind:8} {case.name:22} {one['engine']:14} {columns}  {setting}", flush=True)


def _show_beside(results: list[dict[str, Any]]) -> None:
    """A line for each case. "in rounds" is the least and the largest ratio of a round."""
    columns = f"{'graft, ms':>10} {'llama.cpp':>10} {'of graft':>9} {'in rounds':>14} {'torch':>10} {'compiled':>10}"
    print(f"\n{'weights':8} {'case':22} {columns}")
    for kind, case, rounds in _by_case(results):
        medians = {name: statistics.median(ms) for name, ms in rounds.items()}
        ratio = least = ""
        if "graft" in rounds and "llama.cpp" in rounds:
            ratio = f"{medians['llama.cpp'] / medians['graft']:.3f}"
            each = [theirs / ours for theirs, ours in zip(rounds["llama.cpp"], rounds["graft"])]
            least = f"{min(each):.3f}-{max(each):.3f}"
        graft, llama, torch_ms, compiled = (
            f"{medians[name]:10.3f}" if name in medians else f"{'-':>10}"
            for name in ("graft", "llama.cpp", "torch", "torch.compile")
        )
        print(f"{kind:8} {case:22} {graft} {llama} {ratio or '-':>9} {least or '-':>14} {torch_ms} {compiled}")


def _by_case(results: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Weights, case, and the milliseconds of each round by engine."""
    for kind, case in dict.fromkeys((one["weights"], one["case"]) for one in results):
        yield kind, case, {
            one["engine"]: one["ms"] for one in results if (one["weights"], one["case"]) == (kind, case) and one["ms"]
        }


if __name__ == "__main__":
    main()
