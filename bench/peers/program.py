"""Programs in C and C++ that start, load a model, run a prompt, and end: what counts is the whole process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer
from peers.graft_language import GraftLanguage
from peers.language import Text, gguf
from peers.llama_cpp import LlamaCpp

ROOT = Path(__file__).resolve().parents[2]


class Program(Peer):
    """`run` gives the first token; the times are of the process from its start to its end."""

    peak_mb = 0.0

    def import_runtime(self) -> None:
        pass

    def load(self, model: str, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads

    def program(self) -> list[str]:
        """Program and model."""
        raise NotImplementedError

    def run(self, inputs: Text) -> Any:
        prompt = self._folder / f"{inputs.variant}-{inputs.prompt}.tokens"
        if not prompt.exists():
            inputs.tokens[: inputs.prompt].tofile(prompt)
        command = [*self.program(), str(prompt), str(self._threads), str(self.context), str(len(inputs.steps))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        self.peak_mb = max(self.peak_mb, usage.ru_maxrss / 1024)
        return int(said)

    def result(self, output: Any) -> np.ndarray:
        return np.array([output], dtype=np.int64)


class GraftProgram(Program):
    packages = GraftLanguage.packages
    fingerprint = GraftLanguage.fingerprint
    prepare = GraftLanguage.prepare

    def program(self) -> list[str]:
        return [str(ROOT / "build" / "release" / "graft_first_token"), str(self._folder / "model.pte")]


class LlamaCppProgram(Program):
    packages = LlamaCpp.packages
    environment = LlamaCpp.environment

    def prepare(self, source: Any, folder: Path) -> None:
        import llama_cpp

        built = Path(llama_cpp.__file__).parent / "lib"
        libraries = [f"-L{built}", f"-Wl,-rpath,{built}", "-lllama", "-lggml", "-lggml-base", "-lggml-cpu"]
        # The wheel has no headers; bench/Makefile gets the source of the same version.
        source_of_it = ROOT / "build" / "ggml-source" / "vendor" / "llama.cpp"
        headers = [f"-I{source_of_it / 'include'}", f"-I{source_of_it / 'ggml' / 'include'}"]
        code = str(Path(__file__).with_name("first_token.c"))
        subprocess.run(["cc", "-O2", *headers, code, "-o", str(folder / "first_token"), *libraries], check=True)
        link = folder / "model.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(gguf(source).resolve())

    def program(self) -> list[str]:
        return [str(self._folder / "first_token"), str(self._folder / "model.gguf")]
