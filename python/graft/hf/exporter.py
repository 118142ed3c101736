"""graft among the exporters of transformers: `transformers.exporters` writes and runs packages of graft.

    graft.hf.register_exporter()
    exporter = AutoHfExporter.from_config({"export_format": "graft"})
    exported = exporter.export(model, inputs, GraftConfig(dynamic=True))
    exported.save_pretrained("exported"); ExportedModel.from_pretrained("exported")(**inputs)

It also enters graft into the table of ExecuTorch's exporter: `ExecutorchConfig(backend="graft")`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.exporters import auto, exporter_executorch
from transformers.exporters.configs import DynamoConfig
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.runners.base import ModelRunner

from graft import _pytree

FORMAT = "graft"


@dataclass
class GraftConfig(DynamoConfig):
    """As DynamoConfig. quantize: as `graft.export` takes it."""

    export_format: str = FORMAT

    quantize: Any = None


class Package:
    """A package on disk. Without a path of its own it lies in a folder that goes when this does."""

    def __init__(self, path: Path | None = None) -> None:
        self._folder = None if path else tempfile.TemporaryDirectory()
        self.path = path or Path(self._folder.name) / "model.pte"


class GraftExporter(DynamoExporter):
    export_format = FORMAT
    config_class = GraftConfig
    program_suffix = ".pte"
    required_packages = ["torch", "executorch"]
    tested_versions = {"torch": "2.13.0", "executorch": "1.5.1"}

    def export_program(
        self, model: Any, sample_inputs: MutableMapping[str, Any], config: GraftConfig
    ) -> tuple[Package, Any]:
        from graft.exporter.export import export

        program, metadata = super().export_program(model, sample_inputs, config)
        package = Package()
        export(program, path=package.path, quantize=config.quantize)
        return package, metadata

    @classmethod
    def save_program(cls, program: Package, path: Any) -> None:
        shutil.copyfile(program.path, path)

    @classmethod
    def load_program(cls, path: Any) -> Package:
        return Package(Path(path))


class GraftRunner(ModelRunner):
    def __init__(self, package: Package, metadata: Any, device: str, threads: int) -> None:
        super().__init__(metadata)
        from graft.runtime import load

        self._package = package  # its file stays mapped
        self._model = load(package.path, device=device, threads=threads)
        self._names = _pytree.keyword_names(metadata.in_spec)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # of inputs and outputs

    @classmethod
    def from_program(cls, program: Package, metadata: Any, device: Any = None, threads: int = 0) -> GraftRunner:
        name = "" if device is None or str(device) == "cpu" else str(device)
        return cls(program, metadata, name, threads)

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        given = {**self.metadata.in_constants, **kwargs}
        return self._model(**{name: given[name] for name in self._names if name in given})


def _prepare(model: Any, sample_inputs: dict[str, Any]) -> tuple[Any, dict[str, Any], list[Any]]:
    """What ExecuTorch's exporter asks of a backend."""
    from graft.exporter.partitioner import GraftPartitioner

    model.requires_grad_(False)
    return model.to("cpu"), exporter_executorch._make_contiguous(sample_inputs), [GraftPartitioner()]


def register_exporter() -> None:
    """Makes both known to transformers, once."""
    known = auto.EXPORT_BACKENDS.get(FORMAT)
    if known is None or known.exporter is not GraftExporter:
        auto.register_backend(GraftExporter, GraftRunner)
    exporter_executorch._BACKEND_PREPARE[FORMAT] = _prepare


__all__ = ["GraftConfig", "GraftExporter", "GraftRunner", "Package", "register_exporter"]
