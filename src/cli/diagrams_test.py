"""The page of `graft inspect --html` and the trace of `graft run --trace`: their data, and the page in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import graft
from chromium import CHROMIUM, needs_chromium


def run(*args: object) -> subprocess.CompletedProcess[str]:
    binary = os.environ.get("GRAFT_CLI") or Path(sys.executable).parent / "graft"
    return subprocess.run([str(binary), *map(str, args)], capture_output=True, text=True, timeout=120)


def good(*args: object) -> str:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 256)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(2)])
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        self.calls.add_(1)
        return x.cumsum(1) + self.calls


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("diagrams") / "<b>&net.pte"  # a name that must not become markup
    return graft.export(Net().eval(), (torch.randint(0, 50, (2, 96)),), path=path)


@pytest.fixture(scope="module")
def page(package: Path) -> Path:
    good("inspect", package, "--html", package.with_suffix(".html"), "--threads", "1")
    return package.with_suffix(".html")


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    assert found and "<" not in found[1]
    return json.loads(found[1])


def test_the_page_holds_the_plan(package: Path, page: Path) -> None:
    (plan,) = data_of(page)["methods"][0]["plans"]
    (shown,) = json.loads(good("inspect", package, "--json", "--plan", "--threads", "1"))["methods"][0]["plans"]
    shown.pop("metadata_bytes")
    profile = plan.pop("profile")
    assert plan == shown
    assert len(plan["order"]) == plan["launches"] == len(profile["launches"])
    uses: dict[int, list[int]] = {}
    for i, launch in enumerate(plan["order"]):
        for tensor in launch["inputs"] + launch["outputs"]:
            uses.setdefault(tensor["buffer"], []).append(i)
        if launch["scratch"] is not None:
            uses.setdefault(launch["scratch"], []).append(i)
    buffers = {b["id"]: b for b in plan["buffers"]}
    assert buffers.keys() == uses.keys()
    for key, launches in uses.items():
        assert buffers[key]["first_use"] == min(launches)
        assert buffers[key]["last_use"] == max(launches)


def test_no_two_live_rectangles_overlap(page: Path) -> None:
    (plan,) = data_of(page)["methods"][0]["plans"]
    pieces = [b for b in plan["buffers"] if b["memory"] == "arena" and b["bytes"] > 0]
    assert len(pieces) > 10
    for i, a in enumerate(pieces):
        assert 0 <= a["offset"] and a["offset"] + a["bytes"] <= plan["arena_bytes"]
        assert 0 <= a["first_use"] <= a["last_use"] < plan["launches"]
        for b in pieces[i + 1 :]:
            together = a["first_use"] <= b["last_use"] and b["first_use"] <= a["last_use"]
            share = a["offset"] < b["offset"] + b["bytes"] and b["offset"] < a["offset"] + a["bytes"]
            assert not (together and share), (a, b)


def test_the_page_needs_no_network(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"https?:|\bsrc\s*=|\bhref\s*=|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "<b>&net" not in text  # names are data, never markup


def test_times_of_the_nodes_are_the_run(package: Path, tmp_path: Path) -> None:
    """No more than the run, and in one of some runs at least 95 % of it: in the others this process may have been interrupted
    between two nodes."""

    def share() -> float:
        good("inspect", package, "--html", tmp_path / "page.html", "--threads", "1")
        profile = data_of(tmp_path / "page.html")["methods"][0]["plans"][0]["profile"]
        assert profile["inputs"] == "zeros"
        spent = sum(t["end_ns"] - t["start_ns"] for t in profile["launches"])
        assert spent <= profile["wall_ns"]
        return spent / profile["wall_ns"]

    assert any(share() >= 0.95 for _ in range(10))


def test_a_program_whose_sizes_are_open_has_a_page_too(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("n", min=1, max=9)},)
    path = graft.export(nn.Linear(4, 2), (torch.randn(3, 4),), path=tmp_path / "m.pte", dynamic_shapes=shapes)
    good("inspect", path, "--html", tmp_path / "none.html")
    assert "plans" not in data_of(tmp_path / "none.html")["methods"][0]
    good("inspect", path, "--shape", "0=5,4", "--html", tmp_path / "one.html")
    assert len(data_of(tmp_path / "one.html")["methods"][0]["plans"]) == 1
    wrong = run("inspect", path, "--html", tmp_path / "nowhere" / "m.html")
    assert wrong.returncode == 1 and wrong.stderr.startswith("graft: cannot write '"), wrong.stderr


@needs_chromium
def test_the_page_in_a_browser(page: Path, tmp_path: Path) -> None:
    """Its script runs to the end: every chart was drawn."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    plain = shutil.copy(page, tmp_path / "page.html")
    done = subprocess.run([*command, f"file://{plain}"], capture_output=True, text=True, timeout=120)
    assert 'data-ready="yes"' in done.stdout, done.stderr[-2000:]
    assert done.stdout.count("<tr title=") > 10
    assert "&lt;b&gt;&amp;net" in done.stdout


def test_the_trace_is_the_run(package: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((2, 96), np.int64))
    said = good("run", package, "--input", f"0={tmp_path / 'ids.npy'}", "--threads", "1", "--trace", tmp_path / "t.json")
    assert "trace of one more call: " in said
    trace = json.loads((tmp_path / "t.json").read_text())
    (plan,) = json.loads(good("inspect", package, "--json", "--plan", "--threads", "1"))["methods"][0]["plans"]
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "M"] == ["process_name", "thread_name"]
    run, *nodes = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert run["name"] == "forward" and run["args"] == {"launches": plan["launches"], "threads": 1}
    assert [(e["name"], e["args"]["kernel"], e["args"]["explanation"]) for e in nodes] == [
        (launch["node"], launch["kernel"], launch["explanation"]) for launch in plan["order"]
    ]
    assert all(e["args"]["op"] for e in nodes)
    end = run["ts"]
    for event in nodes:  # in sequence, within the run's slice
        assert event["ts"] >= end - 1e-3 and event["dur"] >= 0 and event["tid"] == run["tid"] and event["pid"] == run["pid"]
        end = event["ts"] + event["dur"]
    assert end <= run["ts"] + run["dur"] + 1e-3
    assert sum(e["dur"] for e in nodes) <= run["dur"] + 1e-3
