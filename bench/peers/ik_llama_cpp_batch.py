"""ik_llama.cpp with several sequences: a step is one llama_decode of a token of each."""

from __future__ import annotations

from peers.ik_llama_cpp import IkLlamaCpp
from peers.language import BatchPeer
from peers.llama_cpp import SETTINGS


class IkLlamaCppBatch(IkLlamaCpp, BatchPeer):
    settings = [(flash, ubatch) for flash, ubatch in SETTINGS if not flash]  # which ends in an assertion there


PEER = IkLlamaCppBatch()
