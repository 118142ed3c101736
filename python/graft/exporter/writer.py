"""Writes tables of schema/graft.fbs.

The layout of the tables is written here by hand, because the generated classes cost several Python calls per field and
a program has tens of thousands of them. `serialize_test.py` reads the result back with flatc and the schema itself, so a
layout that has drifted from the schema fails there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flatbuffers
from flatbuffers import number_types as _nt

FILE_IDENTIFIER = b"GRFT"

# Table -> fields in schema order: (name, type, default). "ref": an offset (string, table or vector).
_LAYOUTS: dict[str, tuple[tuple[str, str, int | float], ...]] = {
    "Dim": (("min", "i64", 0), ("max", "i64", 0), ("expr", "ref", 0)),
    "Value": (("name", "ref", 0), ("kind", "u8", 0), ("dtype", "u8", 0), ("dims", "ref", 0)),
    "Arg": (("kind", "u8", 0), ("i", "i64", 0), ("f", "f64", 0.0), ("s", "ref", 0), ("items", "ref", 0)),
    "Op": (("target", "ref", 0), ("arg_names", "ref", 0)),
    "Node": (
        ("op", "u32", 0),
        ("name", "ref", 0),
        ("args", "ref", 0),
        ("outputs", "ref", 0),
        ("origin", "ref", 0),
    ),
    "Weight": (
        ("key", "ref", 0),
        ("fqn", "ref", 0),
        ("dtype", "u8", 0),
        ("sizes", "ref", 0),
        ("storage", "u8", 0),
        ("block_type", "ref", 0),
        ("scale", "i32", -1),
        ("zero_point", "i32", -1),
        ("group_size", "i64", 0),
        ("byte_size", "u64", 0),
        ("sha256", "ref", 0),
    ),
    "State": (
        ("fqn", "ref", 0),
        ("dtype", "u8", 0),
        ("sizes", "ref", 0),
        ("initial", "i32", -1),
        ("persistent", "bool", 0),
    ),
    "Input": (("value", "u32", 0), ("kind", "u8", 0), ("index", "u32", 0)),
    "Output": (("kind", "u8", 0), ("arg", "ref", 0), ("index", "u32", 0)),
    "Method": (
        ("name", "ref", 0),
        ("values", "ref", 0),
        ("nodes", "ref", 0),
        ("inputs", "ref", 0),
        ("outputs", "ref", 0),
        ("in_spec", "ref", 0),
        ("out_spec", "ref", 0),
        ("user_input_names", "ref", 0),
    ),
    "Producer": (("name", "ref", 0), ("version", "ref", 0)),
    "Program": (
        ("major", "u16", 0),
        ("minor", "u16", 0),
        ("required_features", "ref", 0),
        ("producers", "ref", 0),
        ("ops", "ref", 0),
        ("weights", "ref", 0),
        ("states", "ref", 0),
        ("methods", "ref", 0),
        ("subgraphs", "ref", 0),
    ),
}

_FLAGS = {
    "u8": _nt.Uint8Flags,
    "u16": _nt.Uint16Flags,
    "u32": _nt.Uint32Flags,
    "u64": _nt.Uint64Flags,
    "i32": _nt.Int32Flags,
    "i64": _nt.Int64Flags,
    "f64": _nt.Float64Flags,
    "bool": _nt.BoolFlags,
}
# Field name -> (slot, number flags or None for an offset, default).
_SLOTS = {
    table: {name: (slot, _FLAGS.get(kind), default) for slot, (name, kind, default) in enumerate(fields)}
    for table, fields in _LAYOUTS.items()
}


class Writer:
    """Builds one buffer, children before parents. Every method returns the offset of what it wrote."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1 << 14)
        self._shared: dict[Any, int] = {}

    def shared(self, key: Any, make: Any) -> int:
        """What `make()` writes, once per `key`: equal sub-tables of one buffer may be the same bytes."""
        offset = self._shared.get(key)
        if offset is None:
            offset = self._shared[key] = make()
        return offset

    def string(self, text: str) -> int:
        return self.shared(text, lambda: self._builder.CreateString(text))

    def refs(self, offsets: Sequence[int]) -> int:
        """A vector of offsets."""
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    def strings(self, texts: Sequence[str]) -> int:
        return self.refs([self.string(text) for text in texts])

    def u32s(self, numbers: Sequence[int]) -> int:
        builder = self._builder
        builder.StartVector(4, len(numbers), 4)
        for number in reversed(numbers):
            builder.PrependUint32(number)
        return builder.EndVector()

    def i64s(self, numbers: Sequence[int]) -> int:
        builder = self._builder
        builder.StartVector(8, len(numbers), 8)
        for number in reversed(numbers):
            builder.PrependInt64(number)
        return builder.EndVector()

    def u8s(self, data: bytes) -> int:
        return self._builder.CreateByteVector(data)

    def table(self, table: str, /, **fields: Any) -> int:
        """A table; a field that is None or equal to its default is left out."""
        slots = _SLOTS[table]
        builder = self._builder
        builder.StartObject(len(slots))
        for field, value in fields.items():
            slot, flags, default = slots[field]
            if value is None:
                continue
            if flags is None:
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif default == 0 and value == 0 and math.copysign(1, value) < 0:
                builder.ForceDefaults(True)  # -0.0 is not the default 0.0
                builder.PrependSlot(flags, slot, value, default)
                builder.ForceDefaults(False)
            else:
                builder.PrependSlot(flags, slot, value, default)
        return builder.EndObject()

    def finish(self, root: int) -> bytes:
        self._builder.Finish(root, file_identifier=FILE_IDENTIFIER)
        return bytes(self._builder.Output())
