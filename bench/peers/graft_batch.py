"""graft with a row of keys and values for each sequence: a step is one run of [sequences, 1] tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from peers.graft_language import GraftLanguage
from peers.language import BatchPeer


class GraftBatch(BatchPeer, GraftLanguage):
    def feed_all(self, tokens: np.ndarray, past: int) -> Any:
        torch = self._torch
        sequences, count = tokens.shape
        positions = torch.arange(past, past + count).expand(sequences, count).contiguous()
        ids = torch.from_numpy(np.ascontiguousarray(tokens))
        return self._forward(ids, positions, positions, torch.tensor([count - 1]))


PEER = GraftBatch()
