"""What bench/cuda_language.py measures, and how: cases, and turns of an engine. llama.cpp's process reads this too, so it needs
neither graft nor PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WARM = 4  # steps before those that are timed


@dataclass(frozen=True)
class Case:
    name: str
    sequences: int
    prompt: int
    steps: int  # 0: the prompt is timed, else these steps after it

    @property
    def warm(self) -> int:
        return self.prompt + (WARM if self.steps else 0)

    @property
    def length(self) -> int:
        return self.warm + self.steps


class Engine:
    """Opens a model for a case and a setting, and appends tokens [sequences, n] to its sequences; the logits of the
    last tokens are then in the CPU's memory, as a sampler needs them."""

    name = ""
    module = ""  # the file of ggml's backend, if it uses one

    def settings(self, case: Case) -> list[Any]:
        """What is tried for a case; the fastest counts."""
        return [None]

    def open(self, case: Case, setting: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets the sequences; the device has nothing to do when it returns."""
        raise NotImplementedError

    def feed(self, tokens: np.ndarray, past: int) -> Any:
        """The logits [sequences, vocabulary], an array or a tensor on the CPU, valid until the next call."""
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        return {}

    def free(self) -> None:
        """The model, too."""

    def turn(self, case: Case, tokens: np.ndarray, compare: bool = False) -> tuple[float, list[np.ndarray]]:
        """Seconds of the prompt, or of a step; and, to compare, the logits after the prompt and at the end."""
        if not case.steps:  # what was timed before may have been another process, whose context the GPU still has
            self.clear()
            self.feed(tokens[:, : case.prompt], 0)
        self.clear()
        start = time.perf_counter()
        out = self.feed(tokens[:, : case.prompt], 0)
        seconds = time.perf_counter() - start
        logits = [_copy(out)] if compare else []
        for past in range(case.prompt, case.warm):
            out = self.feed(tokens[:, past : past + 1], past)
        if case.steps:
            start = time.perf_counter()
            for past in range(case.warm, case.length):
                out = self.feed(tokens[:, past : past + 1], past)
            seconds = (time.perf_counter() - start) / case.steps
        return seconds, [*logits, _copy(out)] if compare else []


def _copy(logits: Any) -> np.ndarray:
    return np.array(logits if isinstance(logits, np.ndarray) else logits.float().numpy())


def chunks(case: Case) -> list[int]:
    """Tokens of a long prompt that are computed at a time."""
    if case.steps or case.prompt <= 512:
        return [512 if case.steps else case.prompt]
    return [n for n in (512, 1024, 2048, 4096) if n <= case.prompt]


def mapped(start: str) -> list[str]:
    """Files in this process's memory whose names start so."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    paths = {line[5] for line in lines if len(line) == 6}
    return sorted(path for path in paths if path.rpartition("/")[2].startswith(start))


def module_name(device: str) -> str:
    """The file of ggml's backend for a device such as cuda0; empty for the CPU, which has no module."""
    kind = device.lower().rstrip("0123456789")
    return "" if kind == "cpu" else f"libggml-{kind}.so"
