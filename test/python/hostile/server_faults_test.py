"""A server under faults: a request may get an error or no answer; the server stays, and the next answer is the right one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from pathlib import Path

import pytest
import serving
import soak_models

import graft

FAULTS = Path(os.environ.get("GRAFT_BUILD", Path(__file__).parents[3] / "build" / "release")) / "libgraft_faults.so"
ALL = "GRAFT_FAULTS_ALL" in os.environ
KINDS = [
    ("socket", "EIO"),
    ("socket", "EMFILE"),
    ("socket", "EINTR"),
    ("socket", "short"),
    ("new", "bad_alloc"),
    ("memory", "one"),
]

pytestmark = pytest.mark.skipif(not FAULTS.exists(), reason="libgraft_faults.so is not built (make build)")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server-faults")
    soak_models.language_model(folder / "model")
    return graft.export_llm(folder / "model", folder / "model.pte", context=64)


class Faulty(serving.Server):
    """A server whose calls of the C library fail when it is told so."""

    def __init__(self, package: Path, control: Path, monkeypatch) -> None:
        self.control = control
        with monkeypatch.context() as only:
            only.setenv("LD_PRELOAD", str(FAULTS))
            only.setenv("GRAFT_FAULTS_CONTROL", str(control))
            super().__init__(package, "--rows", 2, "--threads", 1)

    def tell(self, text: str) -> int:
        """The calls of the layer since it was last told."""
        self.control.write_text(text)
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for(lambda: self.control.read_text().startswith("seen "))
        return int(self.control.read_text().split()[1])

    def held(self) -> tuple[int, int]:
        process = Path("/proc", str(self.process.pid))
        return len(os.listdir(process / "fd")), len(os.listdir(process / "task"))


def test_a_server_outlives_faults_of_requests(package, tmp_path, monkeypatch):
    request = {"prompt": "3w 4w", "max_tokens": 3, "temperature": 0, "ignore_eos": True}

    def text(server) -> str:
        return server.good("/v1/completions", **request)["choices"][0]["text"]

    with Faulty(package, tmp_path / "control", monkeypatch) as server:
        expected = text(server)
        held = server.held()
        for layer, fault in KINDS:
            tried = failed = 0
            n = 1
            while True:
                server.tell(f"{layer} {n} {fault} 0")
                try:
                    status, answer = server.post("/v1/completions", request)
                    good = status == 200 and "error" not in answer
                    assert good or status >= 400 and answer["error"]["message"], (layer, fault, n, status, answer)
                except (OSError, http.client.HTTPException, json.JSONDecodeError):
                    good = None  # no answer, or a part of it
                calls = server.tell("none")
                where = f"{layer} {fault}, call {n}"
                assert server.process.poll() is None, (where, server.process.returncode, server.lines[-3:])
                if good:
                    assert answer["choices"][0]["text"] == expected, where
                try:
                    after = text(server)
                except OSError as e:
                    raise AssertionError(f"{where}: no next answer: {e!r}, {server.process.poll()}, {server.lines[-5:]}") from e
                assert after == expected, f"{where}: the next answer"
                end = time.monotonic() + 10
                while server.held() > held and time.monotonic() < end:
                    time.sleep(0.01)
                assert server.held() <= held, f"{where}: descriptors and threads were {held}, are {server.held()}"
                if calls < n:
                    break
                tried, failed = tried + 1, failed + (not good)
                n += 1 if ALL else max(1, n // 8)
            assert tried > 0, (layer, fault)
            column = layer if layer == "memory" else f"{layer}_{fault}"
            print(f"FAULTS server, completion | {column} | {tried} | {failed}")
