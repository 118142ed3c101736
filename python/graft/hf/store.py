"""Exported programs on disk, so that compiling the same model again only loads.

An entry is a package `<key>.pte` and `<key>.json`, which says its key, size and SHA-256. An entry that does not fit what
is said of it is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from graft._files import unfinished

_CHUNK = 1 << 24
_THREADS = 2  # hashing frees Python's lock


def folder() -> Path:
    """GRAFT_CACHE, else a folder of the user's cache."""
    if chosen := os.environ.get("GRAFT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graft"


def digest_of(parts: Any) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of everything that an exported program depends on, the exporter's own source included."""
    import transformers

    from graft import _C

    here = Path(__file__).resolve().parent.parent
    source = hashlib.sha256()
    for file in sorted(here.rglob("*.py")):
        if not file.name.endswith("_test.py"):
            source.update(str(file.relative_to(here)).encode())
            source.update(file.read_bytes())
    binary = Path(_C.__file__).stat()
    return {
        "graft": _C.version(),
        "exporter": source.hexdigest(),
        "engine": f"{binary.st_size} {binary.st_mtime_ns}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def digest_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Names, sizes, types and bytes."""

    def one(item: tuple[str, torch.Tensor]) -> str:
        name, tensor = item
        digest = hashlib.sha256(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    with ThreadPoolExecutor(_THREADS) as pool:
        return digest_of(list(pool.map(one, sorted(tensors.items()))))


def digest_of_files(files: Iterable[Path]) -> str:
    """Of their bytes."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return digest_of(list(pool.map(_digest_of_file, sorted(files))))


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def find(key: str) -> tuple[Path, dict[str, Any]] | None:
    """The package of this key, when it is there and whole, and what was said of it."""
    package, said = folder() / f"{key}.pte", folder() / f"{key}.json"
    try:
        entry = json.loads(said.read_text())
        whole = (
            entry["key"] == key
            and package.stat().st_size == entry["size"]
            and _digest_of_file(package) == entry["sha256"]
        )
        about = dict(entry["about"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (package, about) if whole else None


def put(key: str, make: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """Keeps the package that `make` writes to the path it is given, and what it returns of it. Another process that
    makes the same at the same time does no harm: files are replaced as a whole."""
    target = folder()
    with unfinished(target, key) as place:
        made = place / f"{key}.pte"
        about = make(made)
        said = place / f"{key}.json"
        entry = {"key": key, "size": made.stat().st_size, "sha256": _digest_of_file(made), "about": about}
        said.write_text(json.dumps(entry))
        (target / said.name).unlink(missing_ok=True)
        os.replace(made, target / made.name)
        os.replace(said, target / said.name)
    return target / f"{key}.pte", about


def annotate(key: str, more: dict[str, Any]) -> None:
    """Adds to what was said of an entry. It is a loss of time alone when another process removes it meanwhile."""
    said = folder() / f"{key}.json"
    try:
        entry = json.loads(said.read_text())
        entry["about"].update(more)
        with unfinished(folder(), key) as place:
            made = place / said.name
            made.write_text(json.dumps(entry))
            os.replace(made, said)
    except (OSError, ValueError, KeyError):
        return


__all__ = ["annotate", "digest_of", "digest_of_files", "digest_of_tensors", "find", "folder", "put", "versions"]
