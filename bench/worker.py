"""One peer in a process of its own, driven over a pipe: one JSON object per line in, one per line out.

    worker.py identify PEER                        versions and fingerprint
    worker.py prepare  PEER MODEL FOLDER           makes the peer's form of the model
    worker.py reference MODEL WORKLOAD FOLDER      inputs and eager outputs of every case
    worker.py serve    PEER WORKLOAD FOLDER REFERENCES

Answers go to the standard output as it was at the start; whatever libraries print goes to the standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import models
import peers
import workloads


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    command, *args = sys.argv[1:]
    for answer in {"identify": identify, "prepare": prepare, "reference": reference, "serve": serve}[command](*args):
        answers.write(json.dumps(answer) + "\n")


def identify(name: str):
    peer = peers.get(name)
    versions = {package: importlib.metadata.version(package) for package in peer.packages}
    yield {"versions": versions, "fingerprint": peer.fingerprint()}


def prepare(name: str, model: str, folder: str):
    Path(folder).mkdir(parents=True, exist_ok=True)
    peers.get(name).prepare(models.source(model), Path(folder))
    yield {"done": True}


def reference(model: str, workload_name: str, folder: str):
    import torch

    workload = workloads.load()[workload_name]
    module = models.source(model).module
    Path(folder).mkdir(parents=True, exist_ok=True)
    for case in workload.cases:
        arrays = models.inputs(model, case)
        with torch.inference_mode():
            expected = module(*(torch.from_numpy(array) for array in arrays)).numpy()
        np.savez(_case_file(folder, case), *arrays, expected=expected)
    yield {"done": True}


def serve(name: str, workload_name: str, folder: str, references: str):
    peer = peers.get(name)
    workload = workloads.load()[workload_name]
    cases = {}
    for case in workload.cases:
        with np.load(_case_file(references, case)) as saved:
            inputs = [saved[f"arr_{i}"] for i in range(len(saved.files) - 1)]
            cases[case["name"]] = (inputs, saved["expected"])
    peer.import_runtime()
    imported = _memory_mb("VmRSS")
    start = time.perf_counter()
    peer.load(workload.model, Path(folder), workload.threads)
    load_ms = (time.perf_counter() - start) * 1e3
    bound = {case: (peer.bind(inputs), expected) for case, (inputs, expected) in cases.items()}
    first_ms = {}
    for case, (inputs, _) in bound.items():
        start = time.perf_counter()
        peer.run(inputs)
        first_ms[case] = (time.perf_counter() - start) * 1e3
    yield {"load_ms": load_ms, "first_ms": first_ms, "imports_mb": imported}

    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "memory":
            yield {"peak_mb": _memory_mb("VmHWM")}
            continue
        yield _turn(peer, *bound[request["case"]], warmup=workload.warmup, calls=workload.calls)


def _turn(peer: peers.Peer, inputs: Any, expected: np.ndarray, *, warmup: int, calls: int) -> dict[str, Any]:
    """Some calls in a row. The error is that of the very outputs whose making was timed."""
    for _ in range(warmup):
        peer.run(inputs)
    samples = []
    worst = 0.0
    for _ in range(calls):
        start = time.perf_counter_ns()
        output = peer.run(inputs)
        samples.append((time.perf_counter_ns() - start) / 1e6)
        actual = peer.result(output)
        if actual.shape != expected.shape:
            raise RuntimeError(f"expected an output of shape {expected.shape}, found {actual.shape}")
        error = float(np.max(np.abs(actual.astype(np.float64) - expected)))
        if not np.isfinite(error):
            raise RuntimeError(f"the output differs from eager PyTorch by {error}")
        worst = max(worst, error)
    return {"ms": samples, "max_abs_error": worst}


def _case_file(folder: str, case: dict[str, Any]) -> Path:
    return Path(folder) / f"{case['name'].replace(' ', '-')}.npz"


def _memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
