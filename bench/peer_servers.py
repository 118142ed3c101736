"""What the benches of servers share: environments of peers, free ports, processes that listen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages, made when it is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def listening(arguments: Sequence[object], port: int, more: Mapping[str, str]) -> Iterator[int]:
    """The command, with `more` in its environment, from when it listens at the port to the end of the with block, where it ends
    with all its processes."""
    command, quiet = [str(a) for a in arguments], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **more}, start_new_session=True) as process:
        try:
            while True:
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}")
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(1)
            yield port
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
