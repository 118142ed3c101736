"""Who is measured. One small module per peer, named as the peer is in workloads.toml with "_" for "-" and "."; each is
optional and imports what it needs only when asked to."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

class Peer:
    """A way to run a model.

    `prepare` runs in a process of its own and leaves files in a folder; `load` and all after it run in the worker, whose
    memory is what is reported. Only `run` is timed, from bound inputs to results that can be read.
    """

    packages: tuple[str, ...] = ()  # whose versions identify it
    reads_folder = False  # of Hugging Face, of a language model; otherwise the GGUF file
    environment = "project"  # or "peers", "language": the virtual environments of bench/
    peak_mb: float | None = None  # where the memory that counts is not the worker's
    # Of a language model, given before prepare() and load(): tokens of a sequence and sequences that it must hold.
    context = 0
    sequences = 1
    seconds: float | None = None  # of the last `run`, where the peer's own clock says it better

    def prepare(self, source: Any, folder: Path) -> None:
        """Writes what `load` reads. `source`: models.Source."""

    def fingerprint(self) -> str:
        """What, besides the packages' versions, decides whether earlier samples still count."""
        return ""

    def import_runtime(self) -> None:
        """Imports, so that the memory they take can be told from the model's."""
        raise NotImplementedError

    def load(self, model: str, folder: Path, threads: int) -> None:
        raise NotImplementedError

    def bind(self, arrays: list[np.ndarray]) -> Any:
        """Inputs in the peer's own form."""
        return arrays

    def before(self, bound: Any) -> None:
        """Ahead of every run that counts, and not timed."""

    def run(self, bound: Any) -> Any:
        raise NotImplementedError

    def result(self, output: Any) -> np.ndarray:
        """The output of `run` as an array."""
        return np.asarray(output)


def module_of(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


def get(name: str) -> Peer:
    return importlib.import_module(f"peers.{module_of(name)}").PEER
