"""Does for hours what a long-lived process does, and requires that it stays as it was: every result has the bits of the
first round's; memory, descriptors, threads and mappings stay flat.

    python test/soak/soak.py [--seconds S | --rounds N] [--packages FOLDER] [--folder FOLDER]

A round loads models and replaces their files, runs them at many sizes, in turn and at once, cancels and lets time run out,
saves, restores and forks sessions, generates text alone and in batches, gives wrong arguments, and unloads.
--packages: of soak_models.py; made, with torch, where they are missing. The soak itself runs without torch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import graft

GOLDEN = Path(__file__).resolve().parents[2] / "test" / "golden" / "golden.pte"
PACKAGES = ("first.pte", "second.pte", "chosen.pte", "language.pte", "quantized.pte")
WARM_UP = 0.1  # part of the rounds before the first that count
SAMPLES = 2000  # at most


class MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallInfo


@dataclass(frozen=True)
class Held:
    """What the process holds."""

    heap: int  # bytes that were allocated and not freed
    resident: int  # bytes
    objects: int  # of Python
    descriptors: int
    threads: int
    mappings: int

    @staticmethod
    def now() -> Held:
        gc.collect()
        info = mallinfo2()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Held(
            heap=info.uordblks + info.hblkhd,
            resident=pages * os.sysconf("SC_PAGESIZE"),
            objects=sys.getallocatedblocks(),
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
            mappings=len(Path("/proc/self/maps").read_text().splitlines()),
        )


# By how much the second half may hold more than the first, whatever the number of rounds: caches of Python and of the
# allocator come and go. A leak of one byte in 50 rounds a second for two hours is more.
ROOM = Held(heap=256 << 10, resident=8 << 20, objects=2000, descriptors=0, threads=0, mappings=8)


def grown(samples: Sequence[Held]) -> list[str]:
    """What grew from the first to the second half of the samples after the warm-up, by their medians."""
    counted = samples[int(len(samples) * WARM_UP) :]
    half = len(counted) // 2
    found = []
    for field in fields(Held):
        before, after = (
            statistics.median(getattr(sample, field.name) for sample in part) for part in (counted[:half], counted[half:])
        )
        if after > before + getattr(ROOM, field.name):
            found.append(f"{field.name} grew from {before:.0f} to {after:.0f}")
    return found


def digest(*values: Any) -> str:
    out = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            out.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            out.update(repr(value).encode())
    return out.hexdigest()


class Soak:
    def __init__(self, packages: Path, folder: Path) -> None:
        self.packages, self.folder = packages, folder
        self.seen: dict[str, str] = {}  # digests of results, of the first time
        self.results = 0
        random = np.random.default_rng(11)
        self.rows = [random.standard_normal((n, 32), dtype=np.float32) for n in range(1, 12)]
        self.ids = [random.integers(0, 20, (2, n)) for n in range(1, 12)]
        self.prompts = [" ".join(f"{i}w" for i in random.integers(3, 199, n)) for n in (3, 9, 30)]
        self.current = folder / "current.pte"
        # These live as long as the process does, beside those of a round.
        self.service = graft.TextGenerator(packages / "language.pte", threads=2, length=128)
        self.batch = graft.BatchGenerator(packages / "quantized.pte", threads=2, rows=3, length=128)
        self.golden = graft.load(GOLDEN, threads=2, options=graft.LoadOptions(max_plans=4))

    def same(self, name: str, *values: Any) -> None:
        found = digest(*values)
        self.results += 1
        if self.seen.setdefault(name, found) != found:
            raise SystemExit(f"SOAK failed: {name} is not what it was in the first round")

    def refused(self, error: type[Exception], call: Callable[[], Any]) -> None:
        self.results += 1
        try:
            call()
        except error:
            return
        raise SystemExit(f"SOAK failed: a call was not refused with {error.__name__}")

    def round(self, number: int) -> None:
        self.run_and_stop(number)
        self.replace(number)
        self.keep(number)
        self.generate(number)
        self.batches(number)
        self.text()
        for model in graft.models():
            if model.path == str(self.current) and not model.unloaded:
                graft.unload(model.id)

    def run_and_stop(self, number: int) -> None:
        """More sizes than there may be plans, in two threads and in a queue; runs that are cancelled or come too late."""
        other = graft.load(GOLDEN, threads=1, options=graft.LoadOptions(map=number % 2 == 0))

        def run(model: graft.Model) -> None:
            for n in range(4):
                at = (number + n) % len(self.ids)
                self.same(f"golden {at}", *_flat(model.encode(self.ids[at], np.ones_like(self.ids[at]))))

        beside = threading.Thread(target=run, args=(other,))
        beside.start()
        run(self.golden)
        beside.join()
        queued = [other.encode.submit(ids, np.ones_like(ids)) for ids in self.ids[:3]]
        for at, call in enumerate(queued):
            self.same(f"golden {at}", *_flat(call.result()))
        token = graft.CancelToken()
        token.cancel()
        ids = self.ids[number % len(self.ids)]
        self.refused(graft.Cancelled, lambda: self.golden.encode(ids, np.ones_like(ids), cancel=token))
        self.refused(graft.Cancelled, lambda: self.golden.encode(ids, np.ones_like(ids), timeout=1e-9))
        self.refused(graft.Error, lambda: self.golden.encode(ids[0], np.ones_like(ids)))
        chosen = graft.load(self.packages / "chosen.pte", threads=1)
        for rows in self.rows[:3]:
            self.same(f"chosen {len(rows)}", *_flat(chosen(np.ascontiguousarray(rows[0, : 9 + len(rows)]))))
        other.close()
        self.refused(graft.InvalidArgument, lambda: other.encode(ids, np.ones_like(ids)))

    def replace(self, number: int) -> None:
        """The file of a model that is in use becomes another model's, and back."""
        kept: list[tuple[str, graft.Model]] = []
        for name in ("first", "second", "first"):
            shutil.copyfile(self.packages / f"{name}.pte", self.folder / "new.pte")
            os.replace(self.folder / "new.pte", self.current)
            options = graft.LoadOptions(packed_folder=str(self.folder / "packed"), verify_hashes=number % 3 == 0)
            kept.append((name, graft.load(self.current, threads=1 + number % 2, options=options)))
            for of, model in kept:
                model.reset()
                self.same(f"replaced {of}", model(self.rows[4]), model(self.rows[5]))
        if number % 20 == 0:
            shutil.rmtree(self.folder / "packed", ignore_errors=True)
        broken = self.folder / "broken.pte"
        whole = self.current.read_bytes()
        broken.write_bytes(whole[: len(whole) * (number % 7) // 8])
        self.refused(graft.InvalidProgram, lambda: graft.load(broken))

    def keep(self, number: int) -> None:
        """Sessions saved and restored, with states and with a cache of keys and values."""
        path = self.folder / "states"
        model = graft.load(self.packages / "first.pte", threads=1)
        for rows in self.rows[:5]:
            model(rows)
        model.save(path)
        after = [model(rows) for rows in self.rows[5:8]]
        self.same("states", *after)
        again, fork = graft.load(self.packages / "first.pte", threads=2), None
        again.restore(path)
        fork = again.fork()
        self.same("states", *(again(rows) for rows in self.rows[5:8]))
        self.same("states", *(fork(rows) for rows in self.rows[5:8]))
        cut = path.read_bytes()
        path.write_bytes(cut[: len(cut) * (number % 5) // 6])
        self.refused(graft.InvalidProgram, lambda: again.restore(path))
        steps = graft.load(self.packages / "language.pte", threads=1, kv_length=64)
        self.same("cache", *self.step(steps, 0, 9))
        steps.save(path)
        logits = self.step(steps, 9, 3)
        other = graft.load(self.packages / "language.pte", threads=1, kv_length=64)
        other.restore(path)
        self.same("cache after", *logits)
        self.same("cache after", *self.step(other, 9, 3))
        other.kv_truncate(9)
        self.same("cache after", *self.step(other, 9, 3))

    def step(self, model: graft.Model, at: int, count: int) -> list[np.ndarray]:
        places = np.arange(at, at + count)[None]
        return _flat(model.step((places * 7 + 3) % 199, places, places, np.arange(count)))

    def generate(self, number: int) -> None:
        generators = [self.service]
        if number % 4 == 0:
            generators.append(graft.TextGenerator(self.packages / "language.pte", threads=1, length=128))
        for generator in generators:
            for at, prompt in enumerate(self.prompts):
                greedy = generator.generate(prompt, max_new_tokens=12, ignore_eos=True)
                self.same(f"greedy {at}", greedy.text, greedy.tokens)
            drawn = generator.generate(
                self.prompts[0], max_new_tokens=12, temperature=0.9, top_k=40, seed=3, do_sample=True, ignore_eos=True
            )
            self.same("drawn", drawn.text, drawn.tokens)
            token, heard = graft.CancelToken(), []

            def hear(text: str, token: Any = token, heard: list[str] = heard) -> None:
                heard.append(text)
                if len(heard) == 3:
                    token.cancel()

            ended = generator.generate(self.prompts[1], max_new_tokens=50, cancel=token, on_text=hear, ignore_eos=True)
            self.same("cancelled", ended.reason, ended.tokens)
            self.refused(graft.InvalidArgument, lambda g=generator: g.generate(" ".join(["3w"] * 200)))

    def batches(self, number: int) -> None:
        settings = {"max_new_tokens": 8, "ignore_eos": True}
        ids = [self.batch.submit(prompt, **settings) for prompt in (*self.prompts, *self.prompts[:2])]
        for _ in range(number % 4):
            self.batch.step()
        self.batch.cancel(ids[3])
        while self.batch.step():
            pass
        for at, request in enumerate(ids):
            made = self.batch.take(request)
            if at != 3:
                self.same(f"batch {at % 3}", made.text, made.tokens)

    def text(self) -> None:
        tokenizer = graft.Tokenizer.load(self.packages / "language.pte")
        chat = tokenizer.apply_chat_template([{"role": "user", "content": p} for p in self.prompts])
        ids = tokenizer.encode(chat)
        self.same("text", chat, ids, "".join(tokenizer.stream(ids)))
        self.refused(graft.InvalidProgram, lambda: tokenizer.apply_chat_template([], chat_template="{% for %}"))


def _flat(result: Any) -> list[np.ndarray]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def soak(packages: Path, folder: Path, *, seconds: float, rounds: int, say: Callable[[str], None] = print) -> list[Held]:
    """What the process held after each of at most SAMPLES equal numbers of rounds."""
    work = Soak(packages, folder)
    begin = time.monotonic()
    held = np.zeros((SAMPLES, len(fields(Held))), np.int64)  # memory of its own, which does not grow
    taken, spoken, done, spacing = 0, begin, 0, 1
    while done < rounds and time.monotonic() - begin < seconds:
        work.round(done)
        done += 1
        if done % spacing == 0:
            held[taken] = astuple(Held.now())
            taken += 1
            if taken == SAMPLES:
                taken, spacing = SAMPLES // 2, spacing * 2
                held[:taken] = held[1::2]
        if time.monotonic() - spoken >= 60:
            spoken = time.monotonic()
            say(f"SOAK {spoken - begin:.0f} s, {done} rounds, {work.results} results equal, {Held(*held[taken - 1].tolist())}")
    samples = [Held(*row.tolist()) for row in held[:taken]]
    say(f"SOAK ended: {time.monotonic() - begin:.0f} s, {done} rounds, {work.results} results equal")
    say(f"SOAK first {samples[int(len(samples) * WARM_UP)]}")
    say(f"SOAK last  {samples[-1]}")
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--folder", type=Path, help="for files that are written; a temporary one by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as own:
        packages = args.packages or Path(own) / "packages"
        if not all((packages / name).exists() for name in PACKAGES):
            subprocess.run([sys.executable, Path(__file__).with_name("soak_models.py"), packages], check=True)
        samples = soak(
            packages, Path(own), seconds=args.seconds, rounds=args.rounds, say=lambda text: print(text, flush=True)
        )
    found = grown(samples)
    for line in found:
        print(f"SOAK failed: {line}")
    if not found:
        print("SOAK passed: memory, descriptors, threads and mappings are flat")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
