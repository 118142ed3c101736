"""`graft.Flow`: models and Python functions connected by data, and the examples of examples/flow."""

from __future__ import annotations

import contextlib
import gc
import os
import runpy
import shutil
import signal
import subprocess
import threading
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import graft
from running_sum import Sum

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "flow"


class Mix(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 3 + b


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow")
    x, n = torch.ones(2, dtype=torch.long), Dim("n", min=1, max=64)
    graft.export(Mix(), (x, x), dynamic_shapes=({0: n}, {0: n}), path=folder / "mix.pte")
    graft.export(Sum(), (torch.ones(1, dtype=torch.long),), path=folder / "sum.pte")
    return folder


def mix(folder: Path) -> graft.Model:
    return graft.load(folder / "mix.pte", threads=1)


def one(function, **options) -> graft.Flow:
    """A function from x to y."""
    return graft.Flow(
        inputs=["x"],
        stages={"f": graft.FlowStage(function=function, inputs=["x"], outputs=["y"], **options)},
        connections={"f.x": "x"},
        outputs=["f.y"],
    )


def test_memory_is_passed_on(folder: Path) -> None:
    seen = []

    def make(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        seen.append(made.data_ptr())
        return made

    def look(made: torch.Tensor, mixed: torch.Tensor, count: int):
        seen.extend([made.data_ptr(), mixed.data_ptr()])
        return made, mixed, count + 1

    flow = graft.Flow(
        inputs=["x", "count"],
        stages={
            "make": graft.FlowStage(function=make, inputs=["x"], outputs=["made"]),
            "mix": mix(folder),
            "look": graft.FlowStage(function=look, inputs=["made", "mixed", "count"], outputs=["a", "b", "count"]),
        },
        connections={
            "make.x": "x", "mix.0": "make.made", "mix.b": "x",
            "look.made": "make.made", "look.mixed": "mix.0", "look.count": "count",
        },
        outputs=["look.a", "look.b", "look.count", "x"],
    )  # fmt: skip
    x = torch.tensor([4, 5])
    with flow:
        for _ in range(3):
            made, mixed, count, same = flow.submit(x, 7).result(60)
            assert torch.equal(made, x + 1) and torch.equal(mixed, (x + 1) * 3 + x) and count == 8
            assert same.data_ptr() == x.data_ptr()
            assert seen[0] == seen[1] == made.data_ptr() and seen[2] == mixed.data_ptr()
            seen.clear()
        buffers = flow.counters()["buffers"]
        for _ in range(20):
            flow.submit(x, 7).result(60)
        counters = flow.counters()
        assert counters["buffers"] == buffers and counters["copies"] == 0
        flow.submit(torch.arange(8)[::2], 7).result(60)
        assert flow.counters()["copies"] == 1
    assert torch.equal(mixed, (x + 1) * 3 + x)  # results outlive the flow


def test_inputs_live_as_long_as_their_run_and_no_longer(folder: Path) -> None:
    release = threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        assert release.wait(60)
        return x + 1

    with one(slow) as flow:
        x = torch.full((1000,), 5)
        gone = weakref.ref(x)
        run = flow.submit(x)
        del x
        gc.collect()
        assert gone() is not None
        release.set()
        assert torch.equal(run.result(60), torch.full((1000,), 6))
        flow.drain()
        gc.collect()
        assert gone() is None


def test_items(folder: Path) -> None:
    model = mix(folder)

    def split(x: torch.Tensor):
        for i in range(int(x[0])):
            yield torch.tensor([int(x[0]), i])

    def gather(items: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *items])

    flow = graft.Flow(
        inputs=["x"],
        stages={
            "split": graft.FlowStage(function=split, inputs=["x"], outputs={"item": (torch.long, (2,))}, fan_out=True),
            "mix": [model, model.fork()],
            "gather": graft.FlowStage(function=gather, inputs=["items", "x"], outputs=["all"], fan_in=True),
        },
        connections={"split.x": "x", "mix.a": "split.item", "mix.b": "split.item", "gather.items": "mix.0", "gather.x": "x"},
        outputs=["mix.0", "gather.all"],
        items=2,
    )
    with flow:
        runs = [flow.submit(torch.tensor([k % 5])) for k in range(30)]
        for k, run in enumerate(runs):
            mixed, gathered = run.result(60)
            expected = [torch.tensor([4 * (k % 5), 4 * i]) for i in range(k % 5)]
            assert len(mixed) == len(expected) and all(map(torch.equal, mixed, expected))
            assert torch.equal(gathered, torch.cat([torch.tensor([k % 5]), *expected]))
        assert flow.counters()["stages"]["mix"]["calls"] == sum(k % 5 for k in range(30))


def test_states_in_order(folder: Path) -> None:
    def shuffle(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001 * (int(x[0]) % 3))
        return x

    stages = {
        "shuffle": graft.FlowStage(function=shuffle, inputs=["x"], outputs=["y"], workers=3),
        "sum": graft.load(folder / "sum.pte"),
    }
    graph = {"inputs": ["x"], "connections": {"shuffle.x": "x", "sum.x": "shuffle.y"}, "outputs": ["sum.0"]}
    total = 0
    with graft.Flow(stages=stages, **graph) as flow:
        for i, run in enumerate([flow.submit(torch.tensor([i])) for i in range(30)]):
            total = (3 * total + i) % 2**64
            assert int(run.result(60)) % 2**64 == total
    stages["sum"] = [stages["sum"], stages["sum"].fork()]
    with pytest.raises(graft.InvalidArgument, match="stage 'sum' of the flow: method 'forward' has the state 'total'"):
        graft.Flow(stages=stages, **graph)


def test_errors_have_their_types_and_causes(folder: Path) -> None:
    class Odd(Exception):
        pass

    def check(x: torch.Tensor):
        match int(x[0]):
            case 1:
                raise Odd("it is one")
            case 2:
                raise graft.NotFound("there is no two")
            case 3:
                return x, x
            case 4:
                return object()
            case 5:
                return torch.ones(1)  # f32
        return x

    flow = graft.Flow(
        inputs=["x"],
        stages={
            "check": graft.FlowStage(function=check, inputs=["x"], outputs=["y"]),
            "mix": mix(folder),
        },
        connections={"check.x": "x", "mix.a": "check.y", "mix.b": "x"},
        outputs=["mix.0"],
    )
    with flow:
        runs = [flow.submit(torch.tensor([i])) for i in range(7)]
        assert int(runs[0].result(60)) == 0 and int(runs[6].result(60)) == 24
        with pytest.raises(graft.ExecutionError, match="stage 'check': raised Odd: it is one") as raised:
            runs[1].result(60)
        assert isinstance(raised.value.__cause__, Odd)
        assert raised.value.__cause__.__traceback__.tb_next is not None  # leads to the function
        with pytest.raises(graft.NotFound, match="stage 'check': there is no two"):
            runs[2].result(60)
        with pytest.raises(graft.InvalidArgument, match="'check.y' of the flow: must be a tensor, a number"):
            runs[3].result(60)
        with pytest.raises(graft.InvalidArgument, match="'check.y' of the flow: must be a tensor, a number"):
            runs[4].result(60)
        with pytest.raises(graft.InvalidArgument, match="stage 'mix': "):
            runs[5].result(60)
        assert flow.counters()["failed"] == 5


def test_wrong_graphs(folder: Path) -> None:
    model = mix(folder)
    graph = {
        "inputs": ["x"],
        "stages": {"mix": model},
        "connections": {"mix.a": "x", "mix.b": "x"},
        "outputs": ["mix.0"],
    }

    def refused(match: str, **changed) -> None:
        with pytest.raises(graft.InvalidArgument, match=match):
            graft.Flow(**{**graph, **changed})

    refused("stage 'mix' of the flow: must be a FlowStage, a Model, a Method", stages={"mix": 5})
    refused("a session is there twice", stages={"mix": [model, model]})
    refused("input 'b' of stage 'mix' is not connected", connections={"mix.a": "x"})
    refused("'mix.c': the stage has no input 'c', it has a, b", connections={**graph["connections"], "mix.c": "x"})
    refused("the flow has no input 'y'", outputs=["y"])
    refused("runs: must be at least 1, got 0", runs=0)
    refused("items: must be at least 1, got -1", items=-1)
    wrong = graft.FlowStage(function=len, inputs=["x"], outputs={"y": (torch.float32, (None, 2))})
    refused(
        r"input 'mix.a' of the flow expects i64\[1..64\], 'f.y' is f32\[0.., 2\]",
        stages={"f": wrong, "mix": model},
        connections={"f.x": "x", "mix.a": "f.y", "mix.b": "x"},
    )
    with pytest.raises(graft.InvalidArgument, match=r"'f.y' of the flow: must be \(dtype, sizes\) or None, got 'f32'"):
        one_port = graft.FlowStage(function=len, inputs=["x"], outputs={"y": "f32"})
        graft.Flow(**{**graph, "stages": {"f": one_port}})
    states = graft.LoadOptions(states=graft.States())
    sums = {name: graft.load(folder / "sum.pte", threads=1, options=states) for name in ("first", "second")}
    refused(
        "stages 'first' and 'second' of the flow: their sessions share one States",
        stages=sums,
        connections={"first.x": "x", "second.x": "first.0"},
        outputs=["second.0"],
    )
    with graft.Flow(**graph) as flow:
        with pytest.raises(graft.InvalidArgument, match=r"the flow takes 1 inputs \['x'\], got 2"):
            flow.submit(1, 2)
        with pytest.raises(graft.InvalidArgument, match=r"'x' of the flow must be i64\[1..64\], got f32\[2\]"):
            flow.submit(torch.ones(2))
    with pytest.raises(graft.InvalidArgument, match="was shut down"):
        flow.submit(torch.ones(2, dtype=torch.long))


@contextlib.contextmanager
def interrupted():
    """Interrupts the main thread again and again: Python drops a KeyboardInterrupt that hits a callback of its collector
    or of a weak reference."""
    ended = threading.Event()

    def interrupt(*_):
        if not ended.is_set():
            raise KeyboardInterrupt

    def send():
        pause = 0.2
        while not ended.wait(pause):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            pause = 5

    before = signal.signal(signal.SIGINT, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


def test_full_cancelled_late_and_interrupted() -> None:
    started, release = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        if x == 0:
            started.set()
            assert release.wait(60)
        return x

    flow = one(slow)
    first = flow.submit(0)
    assert started.wait(60)
    assert not first.done()
    token = graft.CancelToken()
    late, cancelled = flow.submit(1, timeout=0.01), flow.submit(2, cancel=token)
    del token  # the run keeps what it needs
    with pytest.raises(graft.Cancelled, match="the deadline passed in stage 'f'"):
        late.result(60)
    with pytest.raises(TimeoutError):
        first.result(0.01)
    others = [flow.submit(i) for i in range(3, 9)]
    with pytest.raises(graft.Busy, match="the flow is full"):
        flow.try_submit(9)
    for wait in (first.result, flow.drain, lambda: flow.submit(9)):
        with interrupted(), pytest.raises(KeyboardInterrupt):
            wait()
    token = graft.CancelToken()
    assert flow.counters()["running"] == 8
    release.set()
    assert [run.result(60) for run in (first, cancelled, *others)] == [0, 2, 3, 4, 5, 6, 7, 8]
    release.clear()
    started.clear()
    flow.submit(0)
    assert started.wait(60)
    waiting = flow.submit(1, cancel=token)
    token.cancel()
    with pytest.raises(graft.Cancelled, match="the run was cancelled in stage 'f'"):
        waiting.result(60)
    release.set()
    flow.shutdown()


def test_dropped_while_runs_are_in_flight() -> None:
    calls = []

    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        calls.append(int(x[0]))
        return x

    flow = one(slow, workers=2)
    for i in range(6):
        flow.submit(torch.tensor([i]))
    del flow  # waits for them
    assert sorted(calls) == list(range(6))


def test_functions_may_refer_to_their_flow() -> None:
    held = {}

    def function(x: int) -> int:
        return x + len(held["flow"].counters()["stages"])

    held["flow"] = one(function)
    assert held["flow"].submit(4).result(60) == 5
    gone = weakref.ref(held["flow"])
    del held, function
    gc.collect()
    assert gone() is None


def test_the_interpreter_ends_while_a_flow_works() -> None:
    code = """
import time, torch, graft
def slow(x):
    time.sleep(0.05)
    return x
stage = graft.FlowStage(function=slow, inputs=["x"], outputs=["y"])
flow = graft.Flow(inputs=["x"], stages={"f": stage}, connections={"f.x": "x"}, outputs=["f.y"])
runs = [flow.submit(torch.ones(1)) for _ in range(4)]
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_detector_cropper_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    example = runpy.run_path(str(EXAMPLE / "detect.py"))
    monkeypatch.setattr("sys.argv", ["detect.py"])
    example["main"]()
    assert "20 images" in capsys.readouterr().out
    modules, models = example["modules"](), example["models"](tmp_path)
    counts = []
    with torch.no_grad():
        for image in example["images"](6):
            ours, eager = (example["by_hand"](*pair, image) for pair in (models, modules))
            counts.append(len(ours))
            assert len(ours) == len(eager)
            for a, b in zip(ours, eager):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert len(set(counts)) > 2  # the number of crops depends on the data


def test_encoder_decoder(tmp_path: Path) -> None:
    """The C++ example compares with its stages one after another; here with eager PyTorch, and the flow in Python."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed, as for the build"
    library = Path(graft.__file__).parent / "lib"
    example = runpy.run_path(str(EXAMPLE / "export.py"))
    package = tmp_path / "package.pte"
    example["export"](package)
    subprocess.run(
        [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(EXAMPLE / "main.cpp"),
         "-o", str(tmp_path / "main"), f"-L{library}", "-lgraft", f"-Wl,-rpath,{library}"],
        check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main", package], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    encoder, decoder = example["modules"]()
    text = (7 * torch.arange(5) + 5) % 100
    with torch.no_grad():
        logits = decoder(encoder(text))
    assert done.stdout == (
        f"token {int(logits[0].argmax())} first for 5 tokens\n"
        "40 runs, the same as the stages one after another; copies between them: 0\n"
    )
    model = graft.load(package, threads=1)
    other = model.fork()
    with graft.Flow(
        inputs=["tokens"],
        stages={"encoder": model.encode, "decoder": other.decode},
        connections={"encoder.tokens": "tokens", "decoder.memory": "encoder.0"},
        outputs=["decoder.0"],
    ) as flow:
        torch.testing.assert_close(flow.submit(text).result(60), logits, atol=1e-4, rtol=1e-4)
