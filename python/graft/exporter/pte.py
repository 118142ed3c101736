"""ExecuTorch's container (.pte): a FlatBuffer of the program, and data in segments after it.

Written without ExecuTorch's exporter, whose import takes longer than tracing a model. Format: schema/program.fbs and
schema/extended_header.h of ExecuTorch 1.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, TypeVar

import flatbuffers

from graft._fb.executorch.DataSegment import DataSegmentT
from graft._fb.executorch.Program import ProgramT

ALIGNMENT = 128  # of segments, in bytes; ExecuTorch's exporter has the same
_IDENTIFIER = b"ET12"
_HEADER = struct.Struct("<4sIQQQ")  # magic, bytes of the header, of the program with it, offset and bytes of the segments

Made = TypeVar("Made")


class LazyData:
    """Bytes that are made when they are written. size: of all. chunks: yields them. done: told what was written."""

    def __init__(self, size: int, chunks: Callable[[], Iterable[Any]], done: Callable[[int], None] = lambda _: None) -> None:
        self._size = size
        self._chunks = chunks
        self._done = done

    def __len__(self) -> int:
        return self._size

    def write(self, file: BinaryIO) -> None:
        for chunk in self._chunks():
            file.write(chunk)
            self._done(len(chunk))


Data = bytes | LazyData


def table(kind: type[Made], /, **fields: Any) -> Made:
    """A table of the schema (graft._fb.executorch) with these fields; the others have their defaults."""
    made = kind()
    for name, value in fields.items():
        if not hasattr(made, name):
            raise AttributeError(f"{kind.__name__} has no field '{name}'")
        setattr(made, name, value)
    return made


def write(file: BinaryIO, program: ProgramT, segments: Sequence[Data]) -> None:
    """The container, from where the file is. program.segments becomes what is said of the segments."""
    program.segments, end = [], 0
    for data in segments:
        offset = aligned(end)
        program.segments.append(table(DataSegmentT, offset=offset, size=len(data)))
        end = offset + len(data)
    builder = flatbuffers.Builder(1 << 14)
    builder.Finish(program.Pack(builder), file_identifier=_IDENTIFIER)
    packed = bytes(builder.Output())
    size = len(packed) + _HEADER.size
    base = aligned(size)
    (root,) = struct.unpack_from("<I", packed)
    file.write(struct.pack("<I", root + _HEADER.size) + _IDENTIFIER)
    file.write(_HEADER.pack(b"eh00", _HEADER.size, size, base, end))
    file.write(packed[8:] + bytes(base - size))
    at = 0
    for segment, data in zip(program.segments, segments):
        file.write(bytes(segment.offset - at))
        if isinstance(data, LazyData):
            data.write(file)
        else:
            file.write(data)
        at = segment.offset + segment.size


def aligned(size: int, to: int = ALIGNMENT) -> int:
    return -(-size // to) * to


__all__ = ["ALIGNMENT", "Data", "LazyData", "aligned", "table", "write"]
