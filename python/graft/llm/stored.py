"""Weights as they lie in files: safetensors, or tensors in memory. They are described here and read when a package is
written."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graft import _C
from graft.errors import ExportError

_CHUNK = 1 << 22
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Stored:
    """One tensor: what it is, and how to get its bytes."""

    name: str  # in its file
    sizes: tuple[int, ...]
    dtype: torch.dtype  # as stored; of the values when in blocks
    byte_size: int
    chunks: Callable[[], Iterator[Any]]  # the bytes, in order
    block_type: str = ""  # of ggml, when stored in blocks
    packed: bool = False  # these packed for graft's kernels
    file: Path | None = None  # that holds it as it is

    def tensor(self) -> torch.Tensor:
        """Its values, in memory."""
        if self.block_type:
            raise ExportError(f"weight '{self.name}': expected a plain tensor, found {self.block_type}")
        data = bytearray(b"".join(self.chunks()))
        flat = torch.frombuffer(data, dtype=self.dtype) if data else torch.empty(0, dtype=self.dtype)
        return flat.reshape(self.sizes)


def of_tensor(name: str, tensor: torch.Tensor) -> Stored:
    """A tensor of a model in memory."""

    def chunks() -> Iterator[Any]:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data if flat.numel() else b""

    return Stored(name, tuple(tensor.shape), tensor.dtype, tensor.numel() * tensor.element_size(), chunks)


def file_range(path: Path, offset: int, size: int) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with open(path, "rb") as file:
            file.seek(offset)
            left = size
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise ExportError(f"'{path}' ends {left} bytes before the weight at {offset} does")
                left -= len(chunk)
                yield chunk

    return chunks


def read_safetensors(path: Path) -> dict[str, Stored]:
    """All tensors of a file, by name."""
    found = {}
    try:
        total = path.stat().st_size
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > total:
                raise ValueError("its head is longer than the file")
            entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"'{name}' is of dtype {entry['dtype']}")
            if 8 + length + end > total:
                raise ValueError(f"'{name}' ends after the file does")
            found[name] = Stored(
                name=name,
                sizes=tuple(entry["shape"]),
                dtype=_DTYPES[entry["dtype"]],
                byte_size=end - begin,
                chunks=file_range(path, 8 + length + begin, end - begin),
                file=path,
            )
    except (ValueError, KeyError, TypeError, struct.error) as e:
        raise ExportError(f"'{path}' cannot be read as safetensors: {e}") from e
    return found


def read_checkpoint(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder's model.safetensors, or of the shards that its index names."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.exists():
        return read_safetensors(single)
    if not index.exists():
        raise ExportError(f"expected model.safetensors or its index in '{folder}', found neither")
    try:
        where = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError) as e:
        raise ExportError(f"'{index}' cannot be read: {e}") from e
    found: dict[str, Stored] = {}
    for shard in sorted(set(where.values())):
        if Path(shard).name != shard:
            raise ExportError(f"'{index}': expected shards beside it, found '{shard}'")
        found.update(read_safetensors(folder / shard))
    if lost := sorted(set(where) - set(found)):
        raise ExportError(f"'{index}' names weights that its shards lack: {', '.join(lost[:5])}")
    return found


def changed(stored: Stored, change: Callable[[bytes], bytes]) -> Stored:
    """Other bytes of the same type and size, made when they are read."""

    def chunks() -> Any:
        yield change(b"".join(stored.chunks()))

    return dataclasses.replace(stored, chunks=chunks, file=None)


def packed(stored: Stored) -> Stored:
    """The same packed as graft's kernels read it, where they do so for its type and shape."""
    size = _C.packed_byte_count(stored.block_type, stored.sizes) if stored.block_type else 0
    if size == 0:
        return stored

    def chunks() -> Any:
        out = np.empty(size, np.uint8)
        _C.pack_blocks(b"".join(stored.chunks()), stored.block_type, stored.sizes, out.ctypes.data, out.nbytes)
        yield out.data

    return dataclasses.replace(stored, byte_size=size, chunks=chunks, packed=True, file=None)
