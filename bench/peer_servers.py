"""What the benches of servers share: environments of peers, free ports, processes that listen."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

XLLAMACPP = "xllamacpp==2026.10.11549"
LLAMA_SERVER = """
import json, sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, slots, threads = sys.argv[1], *map(int, sys.argv[2:4])
for name, value in json.loads(sys.argv[4]).items():
    setattr(params, name, value)
params.n_parallel, params.port, params.hostnames, params.n_threads_http = slots, 0, ["127.0.0.1"], slots + 4
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
"""


def by_names(text: str) -> dict[str, str]:
    """Of an option: name=value,..."""
    return dict(entry.split("=", 1) for entry in text.split(",") if entry)


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


@contextmanager
def printing_its_port(arguments: Sequence[object]) -> Iterator[int]:
    """The command, whose first line of output ends with its port, to the end of the with block."""
    command = [str(a) for a in arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield int(re.search(r":(\d+)\s*$", process.stdout.readline())[1])
        finally:
            process.kill()


@contextmanager
def llama_server(python: object, gguf: Path, slots: int, threads: int, **settings: object) -> Iterator[int]:
    """The one of xllamacpp, with settings of its CommonParams."""
    with printing_its_port([python, "-c", LLAMA_SERVER, gguf, slots, threads, json.dumps(settings)]) as port:
        yield port
