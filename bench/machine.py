"""Facts about the machine, and the cores that every worker is bound to."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

# Instruction sets that decide which kernels an engine picks.
_FLAGS = ("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512", "amx", "asimd", "sve", "i8mm", "bf16")


def facts() -> dict[str, Any]:
    cpu = Path("/proc/cpuinfo").read_text()
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in cpu.split("\n\n")[0].splitlines() if ":" in line
    )
    flags = fields.get("flags", fields.get("Features", "")).split()
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "logical_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "flags": sorted(flag for flag in flags if flag.startswith(_FLAGS)),
        "hypervisor": "hypervisor" in flags,
        "memory_gb": round(int(memory.split()[1]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def identity(machine: dict[str, Any]) -> dict[str, Any]:
    """Samples of one file come from machines that agree in this."""
    return {key: machine[key] for key in ("cpu", "family", "model", "usable_cpus", "flags")}


def limits(threads: int, cores: list[int]) -> dict[str, float]:
    """What the probe reaches on these cores (bench/roofline.cpp); empty where it is not built."""
    probe = Path(__file__).resolve().parents[1] / "build" / "release" / "graft_roofline"
    if not probe.exists():
        return {}
    done = subprocess.run(
        [str(probe), str(threads)], check=True, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    return json.loads(done.stdout)


def stolen_ms() -> float:
    """What the hypervisor has given to other machines of the time that this process's CPUs wanted, all of them together."""
    mine = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *counts = line.split()
        if name in mine and len(counts) > 7:
            ticks += int(counts[7])
    return 1e3 * ticks / os.sysconf("SC_CLK_TCK")


def distinct_cores(count: int) -> list[int]:
    """CPUs on different physical cores where there are enough, so that two threads do not share one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        raise SystemExit(f"bench: {count} threads need as many CPUs, this process may use {len(usable)}")
    chosen, seen = [], set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text().strip() if siblings.exists() else str(cpu)
        if core not in seen:
            seen.add(core)
            chosen.append(cpu)
    chosen += [cpu for cpu in usable if cpu not in chosen]
    return sorted(chosen[:count])
