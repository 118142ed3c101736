"""A process of `graft serve` that lives no longer than the one that started it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graft.errors import NotFound, SystemError
from graft.ray import _needs

# A reader waits for the end of a pipe, which comes with the end of the parent, however that ended; then the command drains and
# ends. The shell ends with the command.
_WITH_PARENT = (
    'exec 3<&0; "$@" </dev/null 3<&- & child=$!; { read -r line <&3; kill -TERM $child 2>/dev/null; } & '
    "wait $child; code=$?; kill $! 2>/dev/null; exit $code"
)


def command_line() -> str:
    """The program `graft`: GRAFT_CLI, else beside this Python or in PATH."""
    beside = Path(sys.executable).with_name("graft")
    found = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    if not found:
        raise NotFound(f"the command line 'graft' is neither beside '{sys.executable}' nor in PATH, and GRAFT_CLI is not set")
    return found


class Process:
    """A command of `graft` that says in its first line of JSON where it listens."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "GRAFT_PACKED_FOLDER": os.fspath(_needs.packed_folder())}
        pipe = subprocess.PIPE
        command = ["/bin/sh", "-c", _WITH_PARENT, "graft", command_line(), *arguments]
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stderr=pipe, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        try:
            self.first: dict[str, Any] = json.loads(line)
            if self.first["event"] != "listening":
                raise ValueError(line)
        except (ValueError, KeyError, TypeError):
            self.stop()
            raise SystemError(f"graft {arguments[0]} did not start: {line.strip() or 'it said nothing'}") from None
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def stop(self) -> None:
        """Lets requests that run end, as SIGTERM does."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()


class ServerProcess(Process):
    """`graft serve` on a free port of this host, by default for this host alone.

    models: {name: package}. arguments: more of the command line. threads: that compute; 0: all CPUs.
    """

    def __init__(
        self, models: Mapping[str, str], arguments: Sequence[str] = (), *, threads: int = 0, host: str = "127.0.0.1"
    ) -> None:
        command = ["serve", *(f"{name}={path}" for name, path in models.items())]
        command += ["--host", host, "--port", "0", "--no-request-log", *arguments]
        super().__init__(*command, *(["--threads", str(threads)] if threads else []))
        self.port: int = self.first["port"]


__all__ = ["Process", "ServerProcess", "command_line"]
