"""One peer in a process of its own, driven over a pipe: one JSON object per line in, one per line out.

    worker.py identify PEER                        versions and fingerprint
    worker.py model WORKLOAD FOLDER                makes the files that the peers' forms are made from
    worker.py prepare  PEER WORKLOAD FOLDER        makes the peer's form of the model
    worker.py reference WORKLOAD FOLDER            inputs and eager outputs of every case
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

import language
import machine
import models
import peers
import workloads


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    command, *args = sys.argv[1:]
    for answer in {"identify": identify, "model": model, "prepare": prepare, "reference": reference, "serve": serve}[command](*args):
        answers.write(json.dumps(answer) + "\n")


def identify(name: str):
    peer = peers.get(name)
    versions = {package: importlib.metadata.version(package) for package in peer.packages}
    yield {"versions": versions, "fingerprint": peer.fingerprint()}


def model(workload_name: str, folder: str):
    workload = workloads.load()[workload_name]
    if workload.kind == "language":
        language.make(workload, Path(folder))
    yield {"done": True}


def prepare(name: str, workload_name: str, folder: str):
    workload = workloads.load()[workload_name]
    Path(folder).mkdir(parents=True, exist_ok=True)
    source = Path(folder).parent / "model" if workload.kind == "language" else models.source(workload.model)
    _peer(name, workload).prepare(source, Path(folder))
    yield {"done": True}


def _peer(name: str, workload: workloads.Workload) -> peers.Peer:
    peer = peers.get(name)
    if workload.kind == "language":
        peer.context, peer.sequences = language.capacity(workload)
    return peer


def reference(workload_name: str, folder: str):
    workload = workloads.load()[workload_name]
    Path(folder).mkdir(parents=True, exist_ok=True)
    if workload.kind == "language":
        language.write_references(workload, Path(folder))
    else:
        _write_references(workload, folder)
    yield {"done": True}


def _write_references(workload: workloads.Workload, folder: str) -> None:
    import torch

    module = models.source(workload.model).module
    for case in workload.cases:
        arrays = models.inputs(workload.model, case)
        with torch.inference_mode():
            expected = module(*(torch.from_numpy(array) for array in arrays)).numpy()
        np.savez(_case_file(folder, case), *arrays, expected=expected)


def _cases(workload: workloads.Workload, references: str) -> dict[str, list[tuple[Any, np.ndarray]]]:
    """Inputs and expected output of every variant of every case; the rounds take turns with them."""
    if workload.kind == "language":
        return language.read_references(workload, Path(references))
    cases = {}
    for case in workload.cases:
        with np.load(_case_file(references, case)) as saved:
            inputs = [saved[f"arr_{i}"] for i in range(len(saved.files) - 1)]
            cases[case["name"]] = [(inputs, saved["expected"])]
    return cases


def serve(name: str, workload_name: str, folder: str, references: str):
    workload = workloads.load()[workload_name]
    peer = _peer(name, workload)
    cases = _cases(workload, references)
    peer.import_runtime()
    imported = _memory_mb("VmRSS")
    start = time.perf_counter()
    peer.load(workload.model, Path(folder), workload.threads)
    load_ms = (time.perf_counter() - start) * 1e3
    bound = {
        case: [(peer.bind(inputs), expected) for inputs, expected in variants] for case, variants in cases.items()
    }
    first_ms = {}
    for case, variants in bound.items():
        inputs, _ = variants[-1]
        peer.before(inputs)
        start = time.perf_counter()
        peer.run(inputs)
        first_ms[case] = (time.perf_counter() - start) * 1e3
    yield {"load_ms": load_ms, "first_ms": first_ms, "imports_mb": 0.0 if peer.peak_mb else imported}

    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "memory":
            yield {"peak_mb": peer.peak_mb or _memory_mb("VmHWM")}
            continue
        variants = bound[request["case"]]
        inputs, expected = variants[request["round"] % len(variants)]
        yield _turn(peer, inputs, expected, workload)


def _turn(peer: peers.Peer, inputs: Any, expected: np.ndarray, workload: workloads.Workload) -> dict[str, Any]:
    """Some calls in a row. The error is that of the very outputs whose making was timed; "stolen" is the share of the
    CPUs that the hypervisor gave to other machines meanwhile."""
    for _ in range(workload.warmup):
        peer.run(inputs)
    samples = []
    worst = 0.0
    divergences: list[float | None] = []
    stolen, begin = machine.stolen_ms(), time.perf_counter()
    for _ in range(workload.calls):
        peer.before(inputs)
        peer.seconds = None
        start = time.perf_counter_ns()
        output = peer.run(inputs)
        taken = (time.perf_counter_ns() - start) / 1e6
        samples.append(taken if peer.seconds is None else peer.seconds * 1e3)
        actual = peer.result(output)
        if workload.kind == "language":
            error = language.error(actual, expected, inputs)
            divergences.append(language.divergence(actual, inputs))
        elif actual.shape != expected.shape:
            raise RuntimeError(f"expected an output of shape {expected.shape}, found {actual.shape}")
        else:
            error = float(np.max(np.abs(actual.astype(np.float64) - expected)))
        if not np.isfinite(error):
            raise RuntimeError(f"the output differs from eager PyTorch by {error}")
        worst = max(worst, error)
    lasted_ms = 1e3 * (time.perf_counter() - begin) * len(os.sched_getaffinity(0))
    told = [found for found in divergences if found is not None]
    more = {"kl": sum(told) / len(told)} if told else {}
    return {"ms": samples, "max_abs_error": worst, "stolen": (machine.stolen_ms() - stolen) / lasted_ms, **more}


def _case_file(folder: str, case: dict[str, Any]) -> Path:
    return Path(folder) / f"{case['name'].replace(' ', '-')}.npz"


def _memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
