"""Reads Containerfile, and runs its steps in a root folder where no container engine is at hand.

usage: containerfile.py CONTEXT ROOT MODEL, as root. The folder stands for the base image. FIND_LINKS: where pip finds
packages inside of it, instead of the network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CONTAINERFILE = Path(__file__).resolve().parents[1] / "Containerfile"
CHROOT = shutil.which("chroot", path="/usr/sbin:/sbin:/usr/bin:/bin") or "chroot"  # not by the PATH of the image
KNOWN = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and arguments of each, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    result = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, arguments = line.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"Containerfile: expected one of {', '.join(sorted(KNOWN))}, found {name}")
        result.append((name, arguments.strip()))
    return result


def healthcheck(arguments: str) -> list[str]:
    return json.loads(arguments.partition("CMD ")[2])


class Container:
    def __init__(self, context: Path, root: Path) -> None:
        self.context, self.root = context, root
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user = "0:0"
        self.folder = "/"
        self.entrypoint: list[str] = []
        self.health: list[str] = []

    def command(self, *words: str) -> list[str]:
        in_folder = ["sh", "-c", 'cd "$0" && exec "$@"', self.folder, *words]
        return [CHROOT, f"--userspec={self.user}", str(self.root), *in_folder]

    def build(self, offline: dict[str, str]) -> None:
        for name, arguments in instructions(CONTAINERFILE.read_text()):
            if name == "RUN":
                # The root folder has the packages of the distribution already.
                steps = [step for step in arguments.split(" && ") if not re.match(r"apt-get|rm -rf /var/lib/apt", step.strip())]
                if steps:
                    subprocess.run(self.command("sh", "-ec", " && ".join(steps)), check=True, env=self.environment | offline)
            elif name == "COPY":
                *sources, target = shlex.split(arguments)
                (self.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
                for source in sources:
                    files = sorted(self.context.glob(source))
                    if not files:
                        raise SystemExit(f"containerfile.py: expected files {source} in {self.context}, found none")
                    for file in files:
                        shutil.copy(file, self.root / target.lstrip("/"))
            elif name == "ENV":
                self.environment |= dict(word.split("=", 1) for word in shlex.split(arguments))
            elif name == "USER":
                self.user = arguments
            elif name == "WORKDIR":
                self.folder = arguments
                (self.root / arguments.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif name == "HEALTHCHECK":
                self.health = healthcheck(arguments)
            elif name == "ENTRYPOINT":
                self.entrypoint = json.loads(arguments)

    def serve(self, model: Path) -> None:
        """Starts it on a model, until its health check says yes; then SIGTERM, which must end it with status 0."""
        shutil.copy(model, self.root / self.folder.lstrip("/") / "model.pte")
        command = self.command(*self.entrypoint, f"{self.folder}/model.pte")
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True) as server:
            try:
                start = time.monotonic()
                while subprocess.run(self.command(*self.health), env=self.environment, capture_output=True).returncode:
                    if server.poll() is not None or time.monotonic() - start > 60:
                        server.kill()
                        raise SystemExit(f"containerfile.py: expected a healthy server, found {server.stderr.read()}")
                    time.sleep(0.1)
                uid = os.stat(f"/proc/{server.pid}").st_uid
                if str(uid) != self.user.partition(":")[0] or uid == 0:
                    raise SystemExit(f"containerfile.py: expected the server under user {self.user}, found {uid}")
                print(f"   container: healthy {time.monotonic() - start:.1f} s after its start, as user {uid}")
                server.send_signal(signal.SIGTERM)
                if server.wait(30) != 0:
                    raise SystemExit(f"containerfile.py: expected status 0 after SIGTERM, found {server.returncode}")
            finally:
                if server.poll() is None:
                    server.kill()


if __name__ == "__main__":
    container = Container(Path(sys.argv[1]), Path(sys.argv[2]))
    links = os.environ.get("FIND_LINKS")
    container.build({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links} if links else {})
    container.serve(Path(sys.argv[3]))
