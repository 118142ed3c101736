"""How long the prompts of a compiled model may be: any length, but for tables of positions that have so many rows,
rotary frequencies that follow from the length, and code of the model that bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from graft.errors import InvalidArgument, Unsupported
from graft.llm import rope

LONGEST = 1 << 20  # tokens of one call of a program that states no fewer


@dataclass(frozen=True)
class Lengths:
    """None: no limit.

    tokens: most of one call of the program. rows: of the table of positions. dynamic, longrope: most tokens that turn by
    the rotary frequencies of short prompts; beyond, programs of 'dynamic' are wrong, those of 'longrope' are right in one
    call for the whole prompt."""

    tokens: int | None = None
    rows: int | None = None
    dynamic: int | None = None
    longrope: int | None = None

    @staticmethod
    def of(model: torch.nn.Module, program: torch.export.ExportedProgram) -> Lengths:
        frequencies = rope.lengths_of(model)
        return Lengths(
            _most_tokens(program), _rows(program), frequencies.get(rope.DYNAMIC), frequencies.get(rope.LONGROPE)
        )

    def check(self, kind: str, positions: torch.Tensor, calls: int) -> None:
        """kind: name of the model's class. positions: int64 [rows, tokens] of a call of the model. calls: of the program
        that it takes."""
        tokens = positions.shape[1]
        if self.tokens is not None and tokens > self.tokens:
            raise InvalidArgument(
                f"input_ids: expected at most {self.tokens} tokens in one call, which is what {kind} is written for, found "
                f"{tokens}"
            )
        if self.rows is None and self.dynamic is None and (self.longrope is None or calls == 1):
            return
        last = int(positions.max())
        if self.rows is not None and last >= self.rows:
            raise InvalidArgument(
                f"position_ids: expected positions below {self.rows}, for which {kind} has embeddings, found {last}; give it "
                "fewer tokens"
            )
        if self.dynamic is not None and last >= self.dynamic:
            raise Unsupported(
                f"rope_type 'dynamic': expected positions below {self.dynamic}, found {last}: beyond, the frequencies of "
                f"{kind} follow from the longest prompt so far; use a rope type that does not depend on it"
            )
        if self.longrope is not None and calls > 1 and last >= self.longrope:
            raise Unsupported(
                f"rope_type 'longrope': expected a prompt of more than {self.longrope} tokens in one call, since all of them "
                f"turn by its length, found {tokens} new tokens in {calls} calls; compile with a bucket for as many, or "
                "without buckets"
            )


def _placeholder(program: torch.export.ExportedProgram, name: str) -> torch.fx.Node:
    return next(node for node in program.graph.nodes if node.op == "placeholder" and node.name == name)


def _most_tokens(program: torch.export.ExportedProgram) -> int | None:
    size = _placeholder(program, "input_ids").meta["val"].shape[1]
    most = program.range_constraints[size.node.expr].upper
    return int(most) if most < LONGEST else None


_SAME = {"to", "_to_copy", "view", "reshape", "unsqueeze", "squeeze", "expand", "clone", "contiguous", "alias"}


def _rows(program: torch.export.ExportedProgram) -> int | None:
    """Of the table whose rows are embeddings of positions, less what is added to a position before."""
    found: list[int] = []
    left: list[tuple[torch.fx.Node, int]] = [(_placeholder(program, "position_ids"), 0)]
    while left:
        node, offset = left.pop()
        for user in node.users:
            name = _operator(user)
            if name == "embedding" and user.args[1] is node:
                found.append(user.args[0].meta["val"].shape[0] - offset)
            elif name == "index_select" and user.args[2] is node:
                found.append(user.args[0].meta["val"].shape[user.args[1]] - offset)
            elif name == "index" and list(user.args[1]) == [node]:
                found.append(user.args[0].meta["val"].shape[0] - offset)
            elif name == "add" and user.args[0] is node and isinstance(user.args[1], int):
                left.append((user, offset + user.args[1]))
            elif name in _SAME and user.args[0] is node:
                left.append((user, offset))
    return min(found, default=None)


def _operator(node: torch.fx.Node) -> str:
    target: Any = node.target
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


__all__ = ["LONGEST", "Lengths"]
