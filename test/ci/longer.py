"""The longer tests of continuous integration: one slice of them at each landing, all of them in turn.

    python test/ci/longer.py [--landing N] [--seconds S] [--list]

Which slice is chosen by the number in `.ci/landing`, which each change that lands raises by one. Fails when a test
fails, and when the time is over before all have run; prints what ran and what comes with the next landings. Where enough
time is left then, one of the searches runs that have no end of their own: fuzzing, the soak, coverage.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "test/python/llm/package_test.py",
    "test/python/llm/seq2seq_test.py",
    "test/python/llm/qwen3_full_test.py",
    "test/python/llm/llama_cpp_kl_test.py",
    "test/python/llm/decoder_test.py",
    "test/python/programs/memory_test.py",
    "test/python/programs/quantized_conv_test.py",
    "test/python/programs/torchao_test.py",
    "test/python/programs/fallback_test.py",
)
POPULATION = "test/python/hf/population_test.py"
ARCHITECTURES = "test/python/hf/architectures_test.py"
WHOLE = (*PACKAGES, POPULATION, ARCHITECTURES)
PARTS = 4  # of the other tests marked slow


@dataclasses.dataclass(frozen=True)
class Slice:
    name: str
    command: tuple[str, ...]  # run in the root of the tree
    before: tuple[str, ...] = ()  # run first, if any, in the same time
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    needs: float = 0  # seconds: of a search, which begins only where so many are left


LLAMA_CPP = "make", ".venv/.stamp/llama-cpp"


def _slow(part: int) -> Slice:
    pytest = sys.executable, "-m", "pytest", "-q", "-n", "2", "--slow", "-m", "slow"
    left_out = tuple(f"--ignore={file}" for file in WHOLE)
    return Slice(f"tests marked slow, part {part} of {PARTS}", (*pytest, f"--part={part}/{PARTS}", *left_out), LLAMA_CPP)


def _whole(*words: str) -> tuple[str, ...]:
    return sys.executable, "-m", "pytest", "-q", "--slow", *words


def _causal(half: int) -> Slice:
    return Slice(f"causal classes of transformers, half {half}", _whole("-n", "2", f"--part={half}/2", POPULATION))


def _tsan(half: int) -> Slice:
    shard = {"GTEST_TOTAL_SHARDS": "2", "GTEST_SHARD_INDEX": str(half - 1)}
    return Slice(f"C++ tests under the thread sanitizer, half {half}", ("make", "tsan"), environment=shard)


SLICES = (
    Slice("packages of language models, memory, quantized and cut programs", _whole("-m", "slow", *PACKAGES), LLAMA_CPP),
    _slow(1),
    _tsan(1),
    _causal(1),
    _slow(2),
    Slice(
        "operator tests that ExecuTorch ships for backends, pages in a browser, documentation, types",
        ("make", "executorch-suite", "pages-test", "docs", "types"),
        environment={"DOCS_LINKS": "--external"},  # reported where there is a network
    ),
    _slow(3),
    Slice("C++ tests under the address and undefined-behaviour sanitizers", ("make", "asan")),
    Slice("architectures under generate()", _whole(ARCHITECTURES)),
    _slow(4),
    _tsan(2),
    Slice("known bugs, put into a copy of the tree", ("make", "mutations")),
    Slice("operators and models on a Vulkan device", ("make", "vulkan-test")),
    _causal(2),
)


def _fuzz(kinds: str) -> Slice:
    seconds = 600 // len(kinds.split())
    command = ("make", "fuzz", f"FUZZ_SECONDS={seconds}", f"FUZZ={kinds}")
    return Slice(f"mutated files under libFuzzer and sanitizers: {kinds}", command, needs=2400)


SEARCHES = (
    Slice("faults at every call", ("make", "reliability"), needs=2400),
    _fuzz("ir package"),
    Slice("soak, 10 minutes", ("make", "soak", "SOAK_SECONDS=300"), needs=900),
    _fuzz("tokenizer template"),
    Slice("lines that the tests reach", ("make", "coverage"), needs=3000),
    _fuzz("plan states packed gguf safetensors ptd npz audio image message request"),
)


def in_part(nodeid: str, part: int, parts: int) -> bool:
    """Whether a test belongs to a part, 1 to `parts`: each belongs to one, whatever other tests there are."""
    return zlib.crc32(nodeid.encode()) % parts == part - 1


def run(chosen: Slice, seconds: float | None) -> int | None:
    """The command's exit status; none when its time was over first, with all its processes ended."""
    end = None if seconds is None else time.monotonic() + seconds
    for command in filter(None, (chosen.before, chosen.command)):
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | chosen.environment, start_new_session=True)
        try:
            status = process.wait(timeout=None if end is None else max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        if status != 0:
            return status
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--landing", type=int, default=int((ROOT / ".ci" / "landing").read_text()))
    parser.add_argument("--seconds", type=float, help="time limit; none without it")
    parser.add_argument("--list", action="store_true", help="print what each landing runs, and run nothing")
    args = parser.parse_args()
    if args.list:
        for number, each in enumerate(SLICES):
            print(f"{number:3}  {each.name}: {' '.join(each.command)}")
        for each in SEARCHES:
            print(f"  -  {each.name}: {' '.join(each.command)}")
        return 0
    number = args.landing % len(SLICES)
    chosen = SLICES[number]
    print(f"== longer tests, slice {number} of {len(SLICES)} (landing {args.landing}): {chosen.name}", flush=True)
    begin = time.monotonic()
    status = run(chosen, args.seconds)
    ended = {None: "did not end in time", 0: "passed"}.get(status, f"failed with status {status}")
    print(f"== {chosen.name}: {ended}, {time.monotonic() - begin:.0f} s")
    for ahead in range(1, len(SLICES)):
        print(f"== due in {ahead:2} landings: {SLICES[(number + ahead) % len(SLICES)].name}", flush=True)
    if status != 0:
        return status if status is not None else 1
    left = None if args.seconds is None else args.seconds - (time.monotonic() - begin)
    return search(SEARCHES[args.landing % len(SEARCHES)], left)


def search(chosen: Slice, left: float | None) -> int:
    """The exit status; 0 where too little time is left to begin."""
    if left is not None and left < chosen.needs:
        print(f"== not run: {chosen.name}; {left:.0f} s are left, it needs {chosen.needs:.0f}")
        return 0
    print(f"== {chosen.name}", flush=True)
    status = run(chosen, left)
    print(f"== {chosen.name}: {'did not end in time' if status is None else f'ended with status {status}'}")
    return status if status is not None else 1


if __name__ == "__main__":
    sys.exit(main())
