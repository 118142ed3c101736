"""Packed weights in a file that processes share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from graft import _C
from graft.errors import typed
from graft.runtime.arrays import matmul_precision


@dataclass(frozen=True, kw_only=True)
class PackedInfo:
    """What `graft.pack` wrote.

    path: of the file.
    entries: packed weights, conversions and folded constants in it; 0 if there are none, then no file was written.
    bytes: of these.
    """

    path: str
    entries: int
    bytes: int


@typed
def pack(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    weights: Iterable[str | os.PathLike[str]] = (),
) -> PackedInfo:
    """Writes what loads of a package make of its weights for this CPU: packed weights and folded constants.

        graft.pack("net.pte")         # writes net.pte.packed
        model = graft.load("net.pte") # maps it

    path: of the package (.pte).
    output: the file to write. None: the package's name and ".packed", where loads find it.
    weights: files with weights that the package leaves out, as for `graft.load`.

    Products of f32 matrices follow torch.set_float32_matmul_precision as it is now; loads with another precision do not
    use the file. Neither do those of another build of graft, another instruction set, or other weights: they make their
    own, and `Model.stats` says why (packed_refusal).

    Raises what `graft.load` raises, `graft.InvalidProgram` for a weight that is not what the package states, and
    `graft.SystemError` when the file cannot be written.
    """
    target = "" if output is None else os.fspath(output)
    written = _C.pack(os.fspath(path), target, [os.fspath(f) for f in weights], matmul_precision())
    return PackedInfo(path=written[0], entries=written[1], bytes=written[2])


__all__ = ["PackedInfo", "pack"]
