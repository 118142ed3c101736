"""llama.cpp with several sequences: a step is one llama_decode of a token of each."""

from __future__ import annotations

from peers.language import BatchPeer
from peers.llama_cpp import LlamaCpp


class LlamaCppBatch(LlamaCpp, BatchPeer):
    pass


PEER = LlamaCppBatch()
