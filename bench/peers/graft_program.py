"""graft from nothing to the first token: bench/first_token.cpp on the C++ library."""

from peers.program import GraftProgram

PEER = GraftProgram()
