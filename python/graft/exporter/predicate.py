"""The engine's answer to one question: which nodes of a program does it not run?"""

from __future__ import annotations

from typing import Protocol

import torch

from graft.exporter.serialize import Blob


class Predicate(Protocol):
    """What the exporting side knows about operators; the engine's binding is one."""

    def refusals(self, program: bytes) -> list[tuple[int, str, str, str]]:
        """(method index, node name, target, reason) of every node that the engine refuses."""

    def preserved_targets(self) -> list[str]:
        """Targets that the engine runs whole although PyTorch could decompose them."""


def engine() -> Predicate:
    """The compiled engine."""
    from graft import _C

    return _C


def refused_nodes(predicate: Predicate, blob: Blob) -> dict[str, tuple[str, str]]:
    """Node name -> (target, reason) for a blob with one method: what the engine refuses or the format cannot hold."""
    found = {name: (target, reason) for _, name, target, reason in predicate.refusals(blob.data)}
    found.update({name: why for (_, name), why in blob.problems.items()})
    return found


def has_delegate(graph: torch.fx.Graph) -> bool:
    from executorch.exir.delegate import executorch_call_delegate

    return any(node.op == "call_function" and node.target is executorch_call_delegate for node in graph.nodes)
