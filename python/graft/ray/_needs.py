"""Packages of other engines, and what they say of the place where a worker runs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any


def package(name: str, what: str, extra: str = "ray") -> Any:
    """The module, imported when it is needed. what: of the user's needs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name.partition(".")[0]:
            raise
        message = f"{what} needs the package '{e.name}', which is not installed: pip install 'graft[{extra}]'"
        raise ModuleNotFoundError(message, name=e.name) from e


def threads() -> int:
    """CPUs that the engine around gave this worker: those of Ray's task or actor (num_cpus), or of Spark's task
    (spark.task.cpus); at least 1. Without an engine 0, which is all CPUs."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    spark = sys.modules.get("pyspark")
    context = None if spark is None else importlib.import_module("pyspark.taskcontext").TaskContext.get()
    return 0 if context is None else max(1, context.cpus())


def packed_folder() -> Path:
    """Where loads of this host keep packed weights, so that its processes map them once: GRAFT_PACKED_FOLDER, else
    "packed" in GRAFT_CACHE or the user's cache folder, for the user alone."""
    if chosen := os.environ.get("GRAFT_PACKED_FOLDER"):
        return Path(chosen)
    cache = os.environ.get("GRAFT_CACHE")
    base = Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graft"
    folder = base / "packed"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
