"""Steps of a Ray Dataset: a column in, columns out. The classes behind them take the rest of the settings."""

from __future__ import annotations

import os
from typing import Any

from graft.ray.texts import Classifier, Embedder, Generator


def _mapped(dataset: Any, kind: type, package: str | os.PathLike[str], resources: dict[str, Any], settings: Any) -> Any:
    return dataset.map_batches(
        kind,
        fn_constructor_args=[os.fspath(package)],
        fn_constructor_kwargs=settings,
        batch_format="pyarrow",
        **{"concurrency": 1, "num_cpus": 1, "batch_size": 1024, **resources},
    )


def embed(dataset: Any, package: str | os.PathLike[str], *, resources: dict[str, Any] | None = None, **settings: Any) -> Any:
    """The ray.data.Dataset with a column "embedding", f32 [H], of its column "text".

    settings: of `Embedder`. resources: of `map_batches`: concurrency (actors, 1), num_cpus (of each, 1: its threads),
    batch_size (1024 rows) and what else Ray has.
    """
    return _mapped(dataset, Embedder, package, resources or {}, settings)


def classify(
    dataset: Any, package: str | os.PathLike[str], *, resources: dict[str, Any] | None = None, **settings: Any
) -> Any:
    """The ray.data.Dataset with columns "label" and "score" of its column "text"; as `embed`, by `Classifier`."""
    return _mapped(dataset, Classifier, package, resources or {}, settings)


def generate(
    dataset: Any, package: str | os.PathLike[str], *, resources: dict[str, Any] | None = None, **settings: Any
) -> Any:
    """The ray.data.Dataset with a column "answer" of its column "text"; as `embed`, by `Generator`."""
    return _mapped(dataset, Generator, package, resources or {}, settings)


__all__ = ["classify", "embed", "generate"]
