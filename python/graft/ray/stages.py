"""`graft.ray.StagedServer`: a model in stages, each a process where a bundle of a placement group is."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graft.errors import InvalidArgument
from graft.ray import _needs
from graft.ray.process import Process, ServerProcess


def _with_secret(secret: str, folder: str) -> list[str]:
    path = os.path.join(folder, "secret")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret)
    return ["--secret-file", path]


class _Stage:
    """An actor: `graft stage`, which it starts again at the same address whenever it has ended."""

    def __init__(self, package: str, secret: str, threads: int) -> None:
        import ray.util

        self.folder = tempfile.TemporaryDirectory(prefix="graft-stage-")
        self.command = ["stage", package, "--threads", str(threads), *_with_secret(secret, self.folder.name)]
        self.host = ray.util.get_node_ip_address()
        self.address, self.ending = "", False

    def start(self, server_host: str) -> str:
        """Listens for a server there: through shared memory on this host."""
        local = server_host == self.host
        self.address = f"unix:{self.folder.name}/socket" if local else f"{self.host}:0"
        self._run()
        threading.Thread(target=self._run_again, daemon=True).start()
        return self.address

    def _run(self) -> None:
        self.process = Process(*self.command, "--listen", self.address)
        self.address = self.process.first["address"]

    def _run_again(self) -> None:
        while not self.ending:
            self.process.wait()
            if not self.ending:
                self._run()

    def stop(self) -> None:
        self.ending = True
        self.process.stop()


class _First:
    """An actor: `graft serve` with the first stage."""

    def __init__(self) -> None:
        import ray.util

        self.folder = tempfile.TemporaryDirectory(prefix="graft-stage-")
        self.host = ray.util.get_node_ip_address()

    def where(self) -> str:
        return self.host

    def start(self, package: str, addresses: Sequence[str], secret: str, threads: int, arguments: Sequence[str]) -> str:
        more = ["--stages", ",".join(addresses), *_with_secret(secret, self.folder.name), *arguments]
        name = re.sub(r"\.stage0$", "", Path(package).stem)
        self.process = ServerProcess({name: package}, more, threads=threads, host=self.host)
        return f"http://{self.host}:{self.process.port}"

    def stop(self) -> None:
        self.process.stop()


class StagedServer:
    """`graft serve` for a model in stages (docs/stages.md) in a cluster of Ray: a placement group has a bundle for each
    stage, and in each runs its process. They listen at the addresses of their nodes, and know a secret that is made anew.

        server = graft.ray.StagedServer("model.stage0.pte", stages=4, num_cpus=16)
        print(server.url)

    package: the first stage, the others beside it, at the same path on each host. num_cpus: of a stage, whole: its threads.
    strategy: of the placement group: "SPREAD" for different hosts where there are any, "PACK" for one, as Ray has them.
    arguments: more of the command line `graft serve`. timeout: seconds that the cluster may take to have room.

    A process that ends is started again where it was; requests that it computed get 503, the others go on. Raises
    `graft.InvalidArgument` for what cannot be, and Ray's errors.
    """

    def __init__(
        self,
        package: str | os.PathLike[str],
        *,
        stages: int,
        num_cpus: float = 1,
        strategy: str = "SPREAD",
        arguments: Sequence[str] = (),
        timeout: float = 60,
    ) -> None:
        path = os.path.abspath(package)
        if not path.endswith(".stage0.pte"):
            raise InvalidArgument(f"package: the first stage, FILE.stage0.pte, was expected, found '{package}'")
        if num_cpus != int(num_cpus) or num_cpus < 1:
            raise InvalidArgument(f"num_cpus must be whole and at least 1, got {num_cpus}")
        if stages < 2:
            raise InvalidArgument(f"stages must be at least 2, got {stages}")
        ray: Any = _needs.package("ray", "graft.ray.StagedServer")
        groups: Any = _needs.package("ray.util.placement_group", "graft.ray.StagedServer")
        strategies: Any = _needs.package("ray.util.scheduling_strategies", "graft.ray.StagedServer")
        self._ray, self._groups = ray, groups
        self._group = groups.placement_group([{"CPU": num_cpus}] * stages, strategy=strategy)
        self._actors: list[Any] = []
        try:
            ray.get(self._group.ready(), timeout=timeout)

            def actor(kind: type, bundle: int, *arguments: Any) -> Any:
                where = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
                made = ray.remote(kind).options(num_cpus=num_cpus, scheduling_strategy=where).remote(*arguments)
                self._actors.append(made)
                return made

            secret, threads = secrets.token_hex(32), int(num_cpus)
            first = actor(_First, 0)
            host = ray.get(first.where.remote())
            behind = [
                actor(_Stage, i, path.removesuffix("0.pte") + f"{i}.pte", secret, threads) for i in range(1, stages)
            ]
            addresses = ray.get([stage.start.remote(host) for stage in behind])
            self.url: str = ray.get(first.start.remote(path, addresses, secret, threads, list(arguments)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all processes, and gives the bundles back."""
        for actor in self._actors:
            try:
                self._ray.get(actor.stop.remote(), timeout=60)
            except Exception:  # it has ended, or never began
                pass
            self._ray.kill(actor)
        self._actors = []
        self._groups.remove_placement_group(self._group)


__all__ = ["StagedServer"]
