"""llama.cpp from nothing to the first token: first_token.c on its library."""

from peers.program import LlamaCppProgram

PEER = LlamaCppProgram()
