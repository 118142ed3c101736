"""Packages with nodes that graft does not run (`allow_fallback` of `graft.export`), for `graft.load`: ExecuTorch's
runtime runs their methods, with its kernels for these nodes and graft as its delegate for the others."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graft import _pytree, executorch
from graft._dtypes import DTYPES
from graft.errors import (
    Busy,
    Error,
    ExecutionError,
    InvalidArgument,
    InvalidProgram,
    NotFound,
    SystemError,
    Unsupported,
)
from graft.runtime.arrays import torch_number
from graft.runtime.model import Method, Model, Copies
from graft.runtime.options import LoadOptions

__all__ = ["load_fallback"]

# executorch::runtime::Error, by number.
_ERRORS: dict[int, type[Error]] = {
    0x02: Busy,  # the states that methods share are in use
    0x10: Unsupported,
    0x12: InvalidArgument,
    0x14: Unsupported,  # a kernel that is not registered
    0x20: NotFound,
    0x21: SystemError,  # memory
    0x22: SystemError,  # access to a file
    0x23: InvalidProgram,
    0x24: InvalidProgram,
}


def _translated(error: Exception, what: str, otherwise: type[Error]) -> Error:
    """ExecuTorch gives a number; graft's delegate writes its reason to stderr."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    found = re.search(r"0x([0-9a-fA-F]+)", text)
    kind = _ERRORS.get(int(found[1], 16), otherwise) if found else otherwise
    return kind(f"{what}: ExecuTorch's runtime says: {text}")


class _FallbackMethod(Method):
    """Arguments and results as `Method` has them."""

    def __init__(self, loaded: Any, info: Mapping[str, Any], copies: Copies, count_run: Any) -> None:
        outputs = info["outputs"]
        # What the method writes comes first; the results proper fill out_spec.
        spec_leaves = _leaf_count(info["out_spec"], len(outputs))
        self._written = outputs[: len(outputs) - spec_leaves]
        super().__init__(
            None,
            {
                "name": info["name"],
                "in_spec": info["in_spec"],
                "out_spec": info["out_spec"],
                "inputs": [_described(i, *given) for i, given in enumerate(info["inputs"])],
                "outputs": [{"name": f"output_{i}"} for i in range(spec_leaves)],
                "segments": 0,
                "refusal": info["refusal"],
            },
            copies,
        )
        self._loaded = loaded
        self._count_run = count_run

    def __call__(self, *args: Any, out: Any = None, **options: Any) -> Any:
        """Runs the method. `out`: tensors to write the results into, arranged as the results. Other options of
        `graft.Method` are a `graft.Unsupported`: ExecuTorch's runtime has none of them."""
        kwargs = self._keyword_arguments(options)
        flat = self._flatten(args, kwargs)
        given = [self._checked(i, value) for i, value in enumerate(flat)]
        targets = None if out is None else self._flatten_out(out)
        try:
            results = list(self._loaded(given))
        except Exception as error:
            raise _translated(error, f"method '{self.name}'", ExecutionError) from error
        self._count_run()
        for position, value in zip(self._written, results, strict=False):
            if position is not None and isinstance(value, torch.Tensor) and isinstance(flat[position], torch.Tensor):
                flat[position].copy_(value)
        results = results[len(results) - len(self._info["outputs"]) :]
        if targets is not None:
            for i, (target, value) in enumerate(zip(targets, results, strict=True)):
                if isinstance(value, torch.Tensor):
                    self._check_out(target, i, torch_number(value.dtype), tuple(value.shape))
                    target.copy_(value)
                    results[i] = target
        return self._arranged(results)

    def _keyword_arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in [name for name in options if name in _CALL_OPTIONS]:
            value = options.pop(name)
            if value is not None and not (isinstance(value, (int, float)) and value == 0):
                raise self._unsupported(f"'{name}' of a call")
        return options

    def _checked(self, i: int, value: Any) -> Any:
        kind, dtype, rank = self._info["inputs"][i]["executorch"]
        where = f"input {i} of method '{self.name}'"
        if isinstance(value, torch.Tensor) != (kind == "Tensor"):
            wanted = "a tensor" if kind == "Tensor" else "no tensor"
            raise InvalidArgument(f"{where}: must be {wanted}, got {type(value).__name__}")
        if not isinstance(value, torch.Tensor):
            return value
        if dtype is not None and value.dtype != dtype:
            raise InvalidArgument(f"{where}: must be {dtype}, got {value.dtype}")
        if value.dim() != rank:
            raise InvalidArgument(f"{where}: must have {rank} dimensions, got {value.dim()}")
        if not value.is_cpu:
            raise InvalidArgument(f"{where}: must be on the CPU, is on {value.device}")
        if not value.is_contiguous() or value.is_conj() or value.is_neg():
            value = self._copies.contiguous(value, where)
        return value.detach()

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(
            f"method '{self.name}': {what} needs a package that graft runs alone; ExecuTorch's runtime runs this one, "
            f"since it has {self._info['refusal'] or 'other methods with nodes that graft does not run'}"
        )

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise self._unsupported("submit()")

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        raise self._unsupported("plan()")

    def stored_plan(self, *args: Any, **kwargs: Any) -> Any:
        raise self._unsupported("stored_plan()")

    def stored_plans(self, *args: Any, **kwargs: Any) -> Any:
        raise self._unsupported("stored_plans()")

    def freeze_input(self, position: int) -> None:
        raise self._unsupported("freeze_input()")


_CALL_OPTIONS = frozenset(
    {"timeout", "cancel", "arena", "kv_rows", "profile", "priority", "check", "observe", "observe_results", "adapter"}
)
_SESSION_CALLS = (
    "states", "kv_lengths", "kv_truncate", "kv_shortest", "kv_select", "kv_resize", "fork", "save", "restore", "stats",
    "shrink", "describe",
)  # fmt: skip


class _FallbackModel(Model):
    """A `graft.Model` that ExecuTorch's runtime runs. It has calls, `reset`, `counters` (runs, and copies of inputs) and
    `close`; what only graft's own sessions have is a `graft.Unsupported`."""

    def __init__(
        self, load: Any, interface: Sequence[Mapping[str, Any]], strict_zero_copy: bool, delegate: Mapping[str, Any]
    ) -> None:
        self._load = load
        self._delegate = delegate
        self._interface = interface
        self._copies = Copies(strict_zero_copy)
        self._runs = 0
        self.methods = {}
        self.reset()

    def reset(self) -> None:
        """Loads the methods again: every state has its value at load."""
        with executorch.options(**self._delegate):
            self._load_methods()

    def _load_methods(self) -> None:
        program = self._load()
        methods: dict[str, Method] = {}
        for info in self._interface:
            what = f"method '{info['name']}'"
            try:
                loaded = program.load_method(info["name"])
            except Exception as error:
                has = f" (it has {info['refusal']})" if info["refusal"] else ""
                raise _translated(error, what + has, Unsupported) from error
            methods[info["name"]] = _FallbackMethod(loaded.execute, info, self._copies, self._count_run)
        self._executorch = program
        self.methods = methods

    def _count_run(self) -> None:
        self._runs += 1

    def counters(self) -> dict[str, int]:
        return {"runs": self._runs, "io_copies": self._copies.count, "io_bytes_copied": self._copies.bytes}

    def close(self) -> None:
        for method in self.methods.values():
            method._loaded = _closed
        self._executorch = None

    @property
    def threads(self) -> int:
        raise self._refused("threads")

    def _refused(self, what: str) -> Unsupported:
        refusal = next(info["refusal"] for info in self._interface if info["refusal"])
        return Unsupported(
            f"{what} of a model that ExecuTorch's runtime runs: graft alone does not run its package, which has {refusal}"
        )


def _refusing(name: str) -> Any:
    def call(self: _FallbackModel, *args: Any, **kwargs: Any) -> Any:
        raise self._refused(f"{name}()")

    call.__name__ = name
    return call


for _name in _SESSION_CALLS:
    setattr(_FallbackModel, _name, _refusing(_name))


def _closed(*args: Any) -> Any:
    raise InvalidArgument("the model is closed")


def _leaf_count(spec: str, otherwise: int) -> int:
    return _pytree.loads(spec).num_leaves if spec else otherwise


def _described(i: int, kind: str, dtype: int, rank: int) -> dict[str, Any]:
    return {"name": f"input_{i}", "executorch": (kind, DTYPES[dtype] if dtype >= 0 else None, rank)}


def load_fallback(
    package: str | os.PathLike[str] | Any,
    interface: Sequence[Mapping[str, Any]],
    *,
    weights: Iterable[str | os.PathLike[str]],
    options: LoadOptions,
    refused: Mapping[str, Any],
    delegate: Mapping[str, Any],
) -> Model:
    """A model of a package that graft alone does not run.

    package: as `graft.load` takes it. interface: its methods (`_C.package_interface`). refused: arguments of `graft.load`
    that such a package cannot have, by name; empty where they were not given. delegate: options of
    `graft.executorch.set_options`.
    """
    needs = executorch.need(interface)
    given = [argument for argument, value in refused.items() if value]
    defaults = LoadOptions()
    given += [
        f"options.{field.name}"
        for field in dataclasses.fields(LoadOptions)
        if field.name not in ("strict_zero_copy", "kv_encoder_length")
        and getattr(options, field.name) != getattr(defaults, field.name)
    ]
    if given:
        raise Unsupported(f"{needs}, which has no {', '.join(given)}")
    files = [Path(file) for file in weights]
    is_path = isinstance(package, (str, os.PathLike))
    if not files and is_path and Path(package).with_suffix(".ptd").exists():
        files = [Path(package).with_suffix(".ptd")]
    if len(files) > 1 or any(file.suffix != ".ptd" for file in files):
        raise Unsupported(f"{needs}, which takes weights in one .ptd file, found {', '.join(map(str, files))}")
    for file in files:
        if not file.exists():
            raise NotFound(f"{file}: there is no such file")
    source = Path(package) if is_path else bytes(package)

    def load() -> Any:
        from executorch.runtime import Runtime

        try:
            return Runtime.get().load_program(source, data_path=files[0] if files else None)
        except Exception as error:
            raise _translated(error, str(package) if is_path else "the package in memory", InvalidProgram) from error

    return _FallbackModel(load, interface, options.strict_zero_copy, delegate)
