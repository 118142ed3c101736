"""What bounds each kernel: the operations and bytes of its launches, over their time, beside what the machine can do.

    python kernels.py [RESULTS.md]      after `make bench`, which exports the models; `make bench-kernels` calls this

For each model and number of threads every launch is timed (the least of several runs, bench/kernel_times.cpp). Operations
(two for a product and its sum) and bytes (each operand once) follow from the tensors that the plan lists. The probe of
bench/roofline.cpp runs on the same cores right before. A kernel is bound by what it takes the larger share of.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
from workloads import BENCH

BUILD = BENCH.parent / "build" / "release"
# Title, workload whose package is run, tokens of the run, tokens in the cache before.
CASES = [
    ("Qwen3-0.6B shape, Q8_0, a prompt of 512 tokens", "qwen3-0.6b-q8_0", 512, 0),
    ("Qwen3-0.6B shape, Q8_0, one token after 512", "qwen3-0.6b-q8_0", 1, 512),
    ("Qwen3-0.6B shape, Q4_K, one token after 512", "qwen3-0.6b-q4_k", 1, 512),
    ("all-MiniLM-L6-v2, f32, 128 tokens", "minilm-f32", 128, 0),
    ("MobileNetV2, f32", "mobilenet-v2", 1, 0),
    ("ResNet-18, f32", "resnet-18", 1, 0),
    ("ViT-S/16, f32", "vit-s16", 1, 0),
    ("Whisper tiny's encoder, f32", "whisper-tiny-encoder", 1, 0),
]
# Names of the probe's figures, in the units of 1e9 per second.
PRECISIONS = {"int8": "gops_int8", "bf16": "gflops_bf16", "f32": "gflops_f32"}
SIZES = {"bool": 1, "u8": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
# Below these fractions a row is too short to measure, or bound by neither compute nor memory.
LEAST_TIME, LEAST_SHARE = 0.005, 0.25


@dataclass
class Tensor:
    dtype: str
    shape: list[int]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * SIZES[self.dtype]


@dataclass
class Row:
    launches: int = 0
    seconds: float = 0.0
    bytes: float = 0.0
    operations: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def tensor(entry: dict[str, Any]) -> Tensor:
    dtype, sizes = re.fullmatch(r"(\w+)\[(.*)\]", entry["tensor"]).groups()
    return Tensor(dtype, [int(size) for size in sizes.split(",") if size.strip()])


def work(launch: dict[str, Any], past: int) -> tuple[dict[str, float], float]:
    """Operations by precision, and bytes. What only moves data, or has few operations for each byte, counts none."""
    inputs, outputs = [tensor(x) for x in launch["inputs"]], [tensor(x) for x in launch["outputs"]]
    moved = float(sum(x.bytes for x in inputs + outputs))
    kernel = launch["kernel"].removeprefix("graft ")
    if kernel in ("block_matmul", "block_matmuls"):
        return {"int8": 2.0 * inputs[0].shape[-1] * sum(x.count for x in outputs)}, moved
    if kernel == "matmul":
        return {"f32": 2.0 * inputs[0].shape[-1] * outputs[0].count}, moved
    # Weights are packed in panels of 32 channels (bench/README.md); those of several layers have one size.
    if kernel in ("packed_conv", "packed_linear", "packed_linears"):
        channels = outputs[0].shape[1]
        return {"f32": 2.0 * sum(x.count for x in outputs) * inputs[1].count / (-(-channels // 32) * 32)}, moved
    if kernel == "winograd_conv":  # as many operations as the sums over nine taps would take
        channels = outputs[0].shape[1]
        return {"f32": 2.0 * outputs[0].count * inputs[1].count / (-(-channels // 32) * 32) * 9 / 16}, moved
    if kernel == "packed_depthwise_conv":
        channels = outputs[0].shape[1]
        return {"f32": 2.0 * outputs[0].count * inputs[1].count / (-(-channels // 16) * 16)}, moved
    if kernel == "attention":
        (batch, heads, queries, head), keys = inputs[0].shape, inputs[1].shape[2]
        return {"f32": 4.0 * batch * heads * queries * keys * head}, moved
    if kernel == "cached_attention":
        batch, heads, queries, head = inputs[0].shape
        seen = queries * past + queries * (queries + 1) // 2
        kind = "bf16" if "products in bf16" in launch["explanation"] else "f32"
        cached = sum(x.bytes * (past + queries) / x.shape[2] for x in outputs[1:])
        return {kind: 4.0 * batch * heads * head * seen}, sum(x.bytes for x in [*inputs[:3], outputs[0]]) + cached
    if kernel in ("block_rows", "embedding", "gather"):
        return {}, 2.0 * sum(x.bytes for x in outputs)  # the gathered rows
    return {}, moved


def rows_of(described: dict[str, Any], tokens: int, past: int) -> dict[str, Row]:
    times = described["milliseconds"]
    plans = [plan for plan in described["methods"][0]["plans"] if len(plan["order"]) == len(times)]
    # A prompt that filled the cache has a plan too.
    for plan in plans if len(plans) > 1 else []:
        if any(x["tensor"] == f"i64[1, {tokens}]" for launch in plan["order"] for x in launch["inputs"]):
            plans = [plan]
            break
    rows: dict[str, Row] = defaultdict(Row)
    for launch, ms in zip(plans[0]["order"], times, strict=True):
        operations, moved = work(launch, past)
        row = rows[launch["kernel"].removeprefix("graft ")]
        row.launches += 1
        row.seconds += ms / 1e3
        row.bytes += moved
        for kind, amount in operations.items():
            row.operations[kind] += amount
    return rows


def table(rows: dict[str, Row], probe: dict[str, float]) -> list[str]:
    total = sum(row.seconds for row in rows.values())
    lines = ["| kernel | launches | ms | of the run | 1e9 operations/s | of the probe | GB/s | of the probe | bound by |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for name, row in sorted(rows.items(), key=lambda item: -item[1].seconds):
        if row.seconds < LEAST_TIME * total:
            continue
        rate = sum(row.operations.values()) / row.seconds / 1e9
        compute = sum(n / 1e9 / probe[PRECISIONS[kind]] for kind, n in row.operations.items()) / row.seconds
        reading = row.bytes / row.seconds / 1e9
        memory = reading / probe["gb_read"]
        kinds = ", ".join(sorted(row.operations))
        bound = kinds + " units" if compute > memory else "memory" if memory <= 1.1 else "caches"
        if max(compute, memory) < LEAST_SHARE:
            bound = "neither"
        lines.append(
            f"| {name} | {row.launches} | {1e3 * row.seconds:.2f} | {100 * row.seconds / total:.0f} % | {rate:.0f} | "
            f"{100 * compute:.0f} % | {reading:.1f} | {100 * memory:.0f} % | {bound} |"
        )
    return lines


def measure(package: Path, threads: int, tokens: int, past: int) -> dict[str, Any]:
    cores = machine.distinct_cores(threads)
    command = [str(BUILD / "graft_kernel_times"), str(package), str(threads), str(tokens), str(past)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    return json.loads(done.stdout)


def main(out: Path) -> None:
    facts = machine.facts()
    lines = ["# What bounds each kernel", "", "Made by `make bench-kernels`; `bench/kernels.py` says how. " +
             f"{facts['cpu']} (family {facts['family']}), {facts['usable_cpus']} CPUs. \"Caches\": more bytes than memory can give, "
             "because operands are still in a cache. \"Neither\": starting, waiting for another thread, or a chain of "
             "dependent steps.", ""]  # fmt: skip
    for title, workload, tokens, past in CASES:
        packages = sorted((BENCH / "cache" / workload).glob("graft*/model.pte"))
        if not packages:
            print(f"bench: {workload} was not exported yet (make -C bench WORKLOAD={workload})", file=sys.stderr)
            continue
        for threads in (1, 2) if facts["usable_cpus"] > 1 else (1,):
            print(f"{title}, {threads} threads", flush=True)
            probe = machine.limits(threads, machine.distinct_cores(threads))
            rows = rows_of(measure(packages[0], threads, tokens, past), tokens, past)
            limits = ", ".join(f"{name} {figure:.0f}" for name, figure in probe.items())
            lines += [f"## {title}, {threads} thread{'s' if threads > 1 else ''}", "",
                      f"{1e3 * sum(row.seconds for row in rows.values()):.2f} ms in all launches. Probe: {limits}.", ""]  # fmt: skip
            lines += [*table(rows, probe), ""]
    out.write_text("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH / "kernels.md")
