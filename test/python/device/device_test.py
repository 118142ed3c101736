"""Programs on a device other than the CPU: ggml's RPC backend, in a process of its own on the loopback interface."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import peft
import pytest
import torch
from executorch.runtime import Runtime
from torch import nn

import device_nets
import graft
import graft.executorch
import lora
from device_nets import Decoder, Encoder, differ, padded_call

TOLERANCE = 1e-5  # relative to the largest value

# Serves the CPU of this machine until its parent dies.
SERVER = """
import ctypes, signal, sys
library, endpoint = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
ggml = ctypes.CDLL(library)
ggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
ggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
ggml.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
start = ggml.ggml_backend_reg_get_proc_address(ggml.ggml_backend_reg_by_name(b"RPC"), b"ggml_backend_rpc_start_server")
cpu = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(0))
size = ctypes.c_size_t
ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, size, size, ctypes.c_void_p)(start)(
    endpoint.encode(), None, 1, 1, ctypes.addressof(cpu))
"""


def loaded_ggml() -> str:
    graft.devices()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libggml.so" in line:
            return line.split(maxsplit=5)[5]
    raise AssertionError("ggml is not loaded")


def serve() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-c", SERVER, loaded_ggml(), endpoint], stdout=subprocess.DEVNULL)
    for _ in range(500):
        assert process.poll() is None, "the RPC server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return endpoint
        time.sleep(0.02)
    raise AssertionError("the RPC server does not listen")


@pytest.fixture(scope="module")
def device() -> str:
    """The server outlives the tests: ggml ends a process that talks to a server which dies."""
    os.environ["GRAFT_RPC"] = serve()
    assert "rpc0" in [name for name, *_ in graft.devices()]
    return "rpc0"


class Mixed(nn.Module):
    """Ops that the device has between ops that it lacks: sort, gather, cumsum, comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.second = nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(self.first(x), dim=-1)
        picked = torch.gather(torch.tanh(x), -1, order)
        kept = torch.where(picked > 0, picked + values, values.cumsum(-1))
        return self.second(kept), torch.cat([values, kept * 2], -1)


def token_ids(batch: int, length: int) -> torch.Tensor:
    return device_nets.token_ids(batch, length, 100)


LENGTH = torch.export.Dim("length", min=2, max=64)


def encoder_case():
    return Encoder(100, 48, 2, 4), padded_call(9, 5, 100), ({1: LENGTH}, {1: LENGTH})


def decoder_case():
    return Decoder(100, 48, 96, 2, 16), (token_ids(1, 7),), ({1: LENGTH},)


def mixed_case():
    return Mixed(), (torch.randn(64, 256, generator=torch.Generator().manual_seed(1)),), None


@pytest.fixture(scope="module", params=[encoder_case, decoder_case, mixed_case], ids=lambda c: c.__name__)
def case(request, tmp_path_factory):
    torch.manual_seed(3)
    module, args, dynamic = request.param()
    path = tmp_path_factory.mktemp("device") / "net.pte"
    graft.export(module.eval(), args, dynamic_shapes=dynamic, path=path)
    with torch.no_grad():
        return request.param.__name__, path, args, module(*args)


def results(value) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def test_results_are_those_of_the_cpu(case, device):
    name, path, args, eager = case
    reference = results(graft.load(path, device="cpu")(*args))
    model = graft.load(path, device=device)
    for _ in range(2):
        for found, cpu, expected in zip(results(model(*args)), reference, results(eager), strict=True):
            assert differ(found, cpu) <= TOLERANCE
            assert differ(found, expected) <= 10 * TOLERANCE
    counters = model.counters()
    (plan,) = model.describe()["methods"][0]["plans"]
    on_device = sum(plan["devices"][device].values())
    assert counters["stages"] == 2 * len(plan["stages"])
    # An RPC server runs one graph after the other: one stream, and one graph per stage.
    assert counters["device_graphs"] == 2 * sum(stage["graphs"] for stage in plan["stages"]) > 0
    assert [stage["graphs"] for stage in plan["stages"]] == [int(stage["device"] != "cpu") for stage in plan["stages"]]
    assert (counters["device_streams"], counters["device_events"]) == (1, 0)
    assert counters["uploads"] == 2 * plan["uploads"] > 0
    assert counters["download_bytes"] == 2 * plan["download_bytes"] > 0
    assert counters["device_bytes"] == plan["device_bytes"] > 0
    if name == "mixed_case":
        assert len(plan["stages"]) > 2 and "graft sort" in plan["devices"]["cpu"]
    else:
        # Positions, masks and indices are computed on the CPU before the layers, in few stages.
        assert on_device > 2 * sum(plan["devices"]["cpu"].values())
        assert len(plan["stages"]) <= 7
    weights = model.describe()["weights"]
    assert 0 < weights["device_bytes"] <= weights["bytes"] + weights["constant_bytes"]


def test_environment_names_the_device(case, device, monkeypatch):
    _, path, args, _ = case
    monkeypatch.setenv("GRAFT_DEVICE", device)
    model = graft.load(path)
    model(*args)
    assert model.describe()["device"] == device
    assert model.counters()["uploads"] > 0


def test_executorch_option_names_the_device(case, device):
    _, path, args, eager = case
    graft.executorch.set_options(device=device)
    try:
        method = Runtime.get().load_program(str(path)).load_method("forward")
    finally:
        graft.executorch.set_options()
    # The option is reset; the method stays on the device where it was loaded.
    for found, expected in zip(method.execute(args), results(eager), strict=True):
        assert differ(found, expected) <= 10 * TOLERANCE
    with pytest.raises(graft.NotFound, match="rpc0"):
        graft.executorch.set_options(device="rpc9")


@pytest.mark.parametrize("name", ["rpc0:", "rpc0:x,cpu", "rpc0:-1", "rpc0:1,rpc1", "rpc0,", "rpc0:1,cpu,cpu"])
def test_names_that_are_none(case, device, name):
    with pytest.raises(graft.InvalidArgument, match="NAME:LAYERS,cpu"):
        graft.load(case[1], device=name)


def test_unknown_device_lists_what_there_is(case, device):
    with pytest.raises(graft.NotFound, match=r"no device 'tpu'.*cpu.*rpc0"):
        graft.load(case[1], device="tpu")


# A server serves one process at a time: this one has its own.
def test_command_line(case):
    _, path, args, _ = case
    beside = Path(sys.executable).parent / "graft"
    graft_cli = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    environment = {**os.environ, "GRAFT_RPC": serve()}
    listed = subprocess.run([graft_cli, "devices"], env=environment, capture_output=True, text=True, check=True)
    assert "rpc0" in listed.stdout
    shapes = [f"--shape={name}={','.join(map(str, arg.shape))}" for name, arg in zip(input_names(path), args, strict=True)]
    command = [graft_cli, "inspect", str(path), "--device", "rpc0", *shapes]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "rpc0" in text and "stages: " in text
    plan = json.loads(subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True).stdout)
    assert plan["methods"][0]["plans"][0]["devices"]["rpc0"]


def input_names(path: Path) -> list[str]:
    return [i["name"] for i in graft.load(path, device="cpu").describe()["methods"][0]["inputs"]]


def test_adapters_run_beside_the_device(device, tmp_path):
    """Their launches are the CPU's, between the device's own."""
    net = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 48)).eval().requires_grad_(False)
    adapted = peft.get_peft_model(copy.deepcopy(net), peft.LoraConfig(r=4, target_modules=["0", "2"])).eval()
    lora.fill(adapted, "default", 3)
    adapted.save_pretrained(tmp_path / "a")
    x = torch.randn(6, 64)
    batch = torch.export.Dim("batch", max=64)
    path = graft.export(net, (x,), dynamic_shapes=[{0: batch}], path=tmp_path / "net.pte")
    model = graft.load(path, device=device, adapters={"a": tmp_path / "a"})
    with torch.no_grad():
        expected = torch.cat([adapted(x[:2]), net(x[2:4]), adapted(x[4:])])
    for _ in range(2):
        assert differ(model(x, adapter=["a", "a", None, None, "a", "a"]), expected) <= 10 * TOLERANCE
        assert differ(model(x), net(x)) <= 10 * TOLERANCE
    assert model.counters()["stages"] > 0
