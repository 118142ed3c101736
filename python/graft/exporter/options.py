"""Settings of `graft.export` that few programs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graft.exporter.predicate import Predicate


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """`options` of `graft.export`.

    For ExecuTorch's runtime; `graft.load` reads none of it:
        plan_inputs: let it reserve memory for copies of the inputs at their upper bounds. Without, inputs are read where
            the caller has them, which must stay until the call ends, and memory follows the sizes of the call.
        plan_outputs: let it reserve memory for outputs at their upper bounds. Without, the caller of a C++ Module sets
            each output's memory (a call that does not is an error), and an output that is an input is a
            `graft.ExportError`.
        constant_methods: constants that runners ask for by name, {"get_max_seq_len": 2048}.
        delegate_options: how methods run where nobody says otherwise, by the names of
            `graft.executorch.set_options`: {"threads": 2, "kv_length": 2048}.

    For the compiler:
        plan_threads: threads that the plans of `plans` are made for; 0: as many as `graft.load` chooses by itself. Other
            numbers of threads plan anew.
        predicate: answers which nodes run instead of the engine that is installed, for exports that another build runs.
    """

    plan_inputs: bool = True
    plan_outputs: bool = True
    constant_methods: Mapping[str, Any] | None = None
    delegate_options: Mapping[str, int | str] | None = None
    plan_threads: int = 0
    predicate: Predicate | None = None


__all__ = ["ExportOptions"]
