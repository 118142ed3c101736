"""Peak memory follows the sizes of the call, not those that the package allows.

Under ExecuTorch that takes ExportOptions(plan_inputs=False): otherwise its runtime reserves, and clears, a copy of the input at the
largest size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

import graft
from graft import _C
from vision_audio_test import mobilenet, nets  # noqa: F401

EXECUTORCH = """
import sys, numpy, torch, graft
from executorch.runtime import Runtime
runtime, x = Runtime.get(), torch.from_numpy(numpy.load(sys.argv[2]))
torch.ones(2) + 1
open("/proc/self/clear_refs", "w").write("5")  # the highest size so far is the size now
status = lambda key: next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key))
before = status("VmRSS")
(y,) = runtime.load_program(sys.argv[1]).load_method("forward").execute((x,))
print(status("VmHWM") - before)
"""


def command() -> str:
    return os.environ.get("GRAFT_CLI") or str(Path(sys.executable).parent / "graft")


def peak_of_the_command_line(package: Path, x: Path) -> int:
    """KiB of a process that loads the package and runs it once."""
    # A process's peak includes its memory before exec, so a small process starts it.
    starter = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    starter += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run = [command(), "run", package, "--input", f"0={x}", "--threads", "2"]
    done = subprocess.run([sys.executable, "-S", "-c", starter, *run], capture_output=True, text=True, check=True)
    return int(done.stdout)


def growth_under_executorch(package: Path, x: Path) -> int:
    """KiB that loading and running take on top of Python with torch."""
    done = subprocess.run([sys.executable, "-c", EXECUTORCH, package, x], capture_output=True, text=True, check=True)
    return int(done.stdout)


class Beginning(torch.nn.Module):
    """The blocks of MobileNetV2 with the largest activations, so weights hide nothing."""

    def __init__(self, mobilenet):  # noqa: F811
        super().__init__()
        self.features = mobilenet.features[:7]

    def forward(self, x):
        return self.features(x).mean((2, 3))


@pytest.mark.slow
def test_mobilenet_at_64_takes_no_more_than_one_exported_for_64(mobilenet, tmp_path):  # noqa: F811
    mobilenet = Beginning(mobilenet)  # noqa: F811
    x = torch.randn(1, 3, 64, 64)
    np.save(tmp_path / "x.npy", x.numpy())
    unplanned = graft.ExportOptions(plan_inputs=False)
    sizes = {d: 32 * Dim(name, min=1, max=64) for d, name in ((2, "rows"), (3, "columns"))}
    large = graft.export(
        mobilenet, (torch.randn(1, 3, 96, 128),), dynamic_shapes=(sizes,), options=unplanned, path=tmp_path / "large.pte"
    )
    small = graft.export(mobilenet, (x,), options=unplanned, path=tmp_path / "small.pte")
    assert [d[1] for d in _C.Program.load(str(large)).method("forward")["inputs"][0]["dims"]][2:] == [2048, 2048]
    torch.testing.assert_close(graft.load(large)(x), graft.load(small)(x), atol=1e-4, rtol=1e-4)
    for peak in (peak_of_the_command_line, growth_under_executorch):
        of_large, of_small = (min(peak(p, tmp_path / "x.npy") for _ in range(2)) for p in (large, small))
        print(f"{peak.__name__}: {of_large} and {of_small} KiB")
        assert of_large <= 1.1 * of_small, (peak.__name__, of_large, of_small)
