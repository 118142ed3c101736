"""Which models this process has loaded (graft/registry.h)."""

from __future__ import annotations

from dataclasses import dataclass

from graft import _C
from graft.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model: what loads of the same files share that have the same device, precision and `fast_kernels`. A package in
    memory, or with `tensors`, is a model of its own; so is a program that ExecuTorch has loaded, with all its methods.
    Each buffer counts once, however many programs use it.

    id: of this process; never given twice.
    path: as the first program was loaded; for one without a file what its errors call it.
    content: SHA-256 of methods, weights and states by name and type and, where the package states it, by content.
    device: a name of `graft.devices()`.
    mapped_bytes: of the files; without files, of the weights where their owner has them.
    packed_bytes: of weights that were packed, converted or copied.
    constant_bytes: of folded constants, packed f32 weights among them.
    packed_file_bytes: of packed_bytes and constant_bytes, mapped from files (`graft.pack`).
    plan_bytes: of the cached plans.
    plans: how many of these there are.
    programs: users; those of delegates included.
    delegates: of the programs, those that ExecuTorch runs.
    unloaded: by `graft.unload`; goes with its last user.
    """

    id: int
    path: str
    content: str
    device: str
    mapped_bytes: int
    packed_bytes: int
    constant_bytes: int
    packed_file_bytes: int
    plan_bytes: int
    plans: int
    programs: int
    delegates: int
    unloaded: bool


def models() -> list[ModelInfo]:
    """The models of this process that have users, by id. A model that no program uses any more is freed."""
    return [ModelInfo(**model) for model in _C.models()]


def unload(id: int) -> None:
    """Drops what only the registry holds of a model (its cached plans), and makes later loads of its files load anew.

    Programs that use the model keep working, and plan anew where they need to; the last of them frees it. Unloading a
    model twice does nothing. Raises `graft.NotFound` for an id that no loaded model has.
    """
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < 2**64:
        raise InvalidArgument(f"unload: id must be that of a model (graft.models()), got {id!r}")
    _C.unload(id)


__all__ = ["ModelInfo", "models", "unload"]
