"""graft in programs of Ray: `Predictor` and steps of Ray Data, `app` for Ray Serve, `StagedServer` for a model on several
hosts (docs/ray.md).

ray and pyarrow (`pip install 'graft[ray]'`) are imported when they are used. The classes are plain callables: Spark and
Daft run them too (docs/data-engines.md).
"""

from __future__ import annotations

from graft.ray.data import classify, embed, generate
from graft.ray.predictor import Predictor
from graft.ray.serving import app
from graft.ray.stages import StagedServer
from graft.ray.texts import Classifier, Embedder, Generator, TextPredictor

__all__ = ["Classifier", "Embedder", "Generator", "Predictor", "StagedServer", "TextPredictor", "app", "classify", "embed", "generate"]
