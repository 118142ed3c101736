"""Processes of `graft stage` for tests."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import serving


class Worker:
    """`graft stage`, until the end of the with block. launcher: a command that runs the one behind it."""

    def __init__(self, package: Path, listen: str, *args: object, launcher: Sequence[str] = ()) -> None:
        self.command = [*launcher, serving.binary(), "stage", str(package), "--listen", listen, *map(str, args)]
        self.lines: list[dict] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        assert line.startswith("{"), line
        self.address = json.loads(line)["address"]
        self.reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self.reader.start()

    def _read(self, process: subprocess.Popen) -> None:
        for line in process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": "text", "text": line})

    def wait_for(self, event: str, peer: str = "") -> dict:
        """The next line of the log with this event."""
        end = time.monotonic() + serving.PATIENCE
        while time.monotonic() < end:
            for line in self.lines:
                if line["event"] == event and line.get("peer", "").startswith(peer):
                    self.lines.remove(line)
                    return line
            time.sleep(0.01)
        raise AssertionError(f"no {event} in {self.lines}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                assert self.process.wait(serving.PATIENCE) == 0, self.lines
            finally:
                self.process.kill()
        self.reader.join(serving.PATIENCE)
