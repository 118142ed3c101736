"""llama.cpp with eight sequences: a step is one llama_decode of a token of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from peers.language import BatchPeer
from peers.llama_cpp import CONTEXT, LlamaCpp


class LlamaCppBatch(BatchPeer, LlamaCpp):
    sequences = 8

    def load(self, model: str, folder: Path, threads: int) -> None:
        super().load(model, folder, threads)
        self._batch = self._lib.llama_batch_init(CONTEXT, 0, 1)

    def feed_all(self, tokens: np.ndarray, past: int) -> Any:
        batch, (sequences, count) = self._batch, tokens.shape
        for sequence in range(sequences):
            for i in range(count):
                n = sequence * count + i
                batch.token[n] = int(tokens[sequence, i])
                batch.pos[n] = past + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = i == count - 1
        batch.n_tokens = sequences * count
        if self._lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError(f"llama_decode of {sequences} times {count} tokens failed")
        last = [sequence * count + count - 1 for sequence in range(sequences)]
        rows = [self._lib.llama_get_logits_ith(self._context, n) for n in last]
        return [np.ctypeslib.as_array(row, (self._width,)) for row in rows]


PEER = LlamaCppBatch()
