"""ik_llama.cpp with eight sequences: a step is one llama_decode of a token of each."""

from __future__ import annotations

from peers.ik_llama_cpp import IkLlamaCpp
from peers.language import BatchPeer


class IkLlamaCppBatch(BatchPeer, IkLlamaCpp):
    sequences = 8

    feed_all = IkLlamaCpp.feed_all


PEER = IkLlamaCppBatch()
