"""What is Vulkan's alone: `make vulkan-test`, on lavapipe (a driver that computes on the CPU) without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import graft

DEVICE = "vulkan0"
pytestmark = pytest.mark.skipif(
    os.environ.get("GRAFT_DEVICE_TEST") != DEVICE, reason="GRAFT_DEVICE_TEST is not vulkan0: `make vulkan-test` runs these"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    to = tmp_path_factory.mktemp("vulkan") / "net.pte"
    return graft.export(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),), path=to)


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).parent / "graft"
    environment = {**os.environ, **environment}
    return subprocess.run([beside, *words], env=environment, capture_output=True, text=True)


def test_devices_are_listed():
    listed = command("devices")
    assert listed.returncode == 0, listed.stderr
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith(DEVICE)]
    assert "GiB" in line and "events" in line and "products with f32/f16" in line


# In processes of their own: a backend is loaded once.
def test_a_machine_without_drivers_is_told_so(path):
    found = command("inspect", str(path), "--device", DEVICE, VK_DRIVER_FILES="/none", VK_ICD_FILENAMES="/none")
    assert found.returncode != 0
    assert "no device 'vulkan0'" in found.stderr and "cpu" in found.stderr and "driver" in found.stderr


def test_drivers_on_the_cpu_must_be_named(path):
    environment = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"}
    code = f"import graft\ntry: graft.load({str(path)!r}, device={DEVICE!r})\nexcept graft.NotFound as e: print(e)"
    driver = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"
    environment |= {"VK_DRIVER_FILES": driver, "VK_ICD_FILENAMES": driver}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "GGML_VK_VISIBLE_DEVICES" in found.stdout


def test_programs_of_the_cpu_load_nothing_of_vulkan(path):
    load = f"import graft\ngraft.load({str(path)!r}, device='cpu')"
    code = f"{load}\nprint(open('/proc/self/maps').read().count('vulkan'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0"
