"""ExecuTorch with its XNNPACK delegate, through its Python runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.torch_peer import TorchPeer


class ExecuTorchXnnpack(TorchPeer):
    packages = ("executorch", "torch")

    def prepare(self, source: Any, folder: Path) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = to_edge_transform_and_lower(source.export(), partitioner=[XnnpackPartitioner()]).to_executorch()
        (folder / "model.pte").write_bytes(program.buffer)

    def import_runtime(self) -> None:
        from executorch.runtime import Runtime

        Runtime.get()

    def load(self, model: str, folder: Path, threads: int) -> None:
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        portable_lib._unsafe_reset_threadpool(threads)
        self._program = Runtime.get().load_program(str(folder / "model.pte"))
        self._method = self._program.load_method("forward")

    def run(self, bound: Any) -> Any:
        return self._method.execute(bound)[0]


PEER = ExecuTorchXnnpack()
