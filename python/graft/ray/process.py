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

from graft.errors import NotFound, SystemError
from graft.ray import _needs

# The shell reads from a pipe that ends with its parent, however that ended; then the server drains and ends.
_WITH_PARENT = '"$@" & child=$!; read -r line; kill -TERM $child 2>/dev/null; wait $child'


def command_line() -> str:
    """The program `graft`: GRAFT_CLI, else beside this Python or in PATH."""
    beside = Path(sys.executable).with_name("graft")
    found = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    if not found:
        raise NotFound(f"the command line 'graft' is neither beside '{sys.executable}' nor in PATH, and GRAFT_CLI is not set")
    return found


class ServerProcess:
    """`graft serve` on a free port of this host alone.

    models: {name: package}. arguments: more of the command line. threads: that compute; 0: all CPUs.
    """

    def __init__(self, models: Mapping[str, str], arguments: Sequence[str] = (), *, threads: int = 0) -> None:
        command = [command_line(), "serve", *(f"{name}={path}" for name, path in models.items())]
        command += ["--host", "127.0.0.1", "--port", "0", "--no-request-log", *arguments]
        command += ["--threads", str(threads)] if threads else []
        environment = {**os.environ, "GRAFT_PACKED_FOLDER": os.fspath(_needs.packed_folder())}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WITH_PARENT, "graft", *command], env=environment, stdin=pipe, stderr=pipe, text=True
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        try:
            first = json.loads(line)
            self.port: int = first["port"]
        except (ValueError, KeyError, TypeError):
            self.stop()
            raise SystemError(f"graft serve did not start: {line.strip() or 'it said nothing'}") from None
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)

    def stop(self) -> None:
        """Lets requests that run end, as SIGTERM does."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()


__all__ = ["ServerProcess", "command_line"]
