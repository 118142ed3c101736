"""Compile specs of the delegate: what a package says to it besides the program, by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from graft.errors import ExportError
from graft.exporter.serialize import Signature

BACKEND_ID = "GraftBackend"
SIGNATURE = "graft.signature"  # JSON: the whole method as its caller sees it
METHOD = "graft.method"  # name of the method
EXTERNAL = "graft.external"  # put weights into the .ptd of this name
LEAVE_OUT = "graft.leave_out"  # present: leave out parameters and persistent buffers; JSON: names in their files
CONTENT_KEYS = "graft.content_keys"  # JSON list: weights to key by content
QUANTIZE = "graft.quantize"  # JSON: types to write weights as, by name
STATES = "graft.states"  # JSON list: buffers that another method writes
OPTION = "graft.option."  # and the name of an option of the delegate (src/executorch/options.h): its value as text
LOWER_BOUNDS = "graft.lower_bounds"  # JSON: lower bounds of sizes by symbol
# Identifies a loaded program by the address of this data: methods of one loaded program see the same address and share
# states, two loaded programs do not.
SESSION_KEY = "graft.session"
DELEGATE_OPTIONS = {
    "threads": int,
    "device": str,
    "seed": int,
    "kv_rows": int,
    "kv_length": int,
    "kv_encoder_length": int,
    "kv_type": str,
}
# ggml needs alignment to 32 bytes; cache lines and vector loads prefer 64.
WEIGHT_ALIGNMENT = 64


class Spec(NamedTuple):
    key: str
    value: bytes


def signature_spec(signature: Signature) -> Spec:
    text = json.dumps(
        {
            "in_spec": signature.in_spec,
            "out_spec": signature.out_spec,
            "user_input_names": list(signature.user_input_names),
        }
    )
    return Spec(SIGNATURE, text.encode())


def option_specs(options: Mapping[str, int | str]) -> list[Spec]:
    """How the delegate runs a method where its caller says nothing. Raises ExportError for a name that is no option, or
    a value that is none of its."""
    specs = []
    for name, value in options.items():
        kind = DELEGATE_OPTIONS.get(name)
        if kind is None:
            known = ", ".join(DELEGATE_OPTIONS)
            raise ExportError(f"expected options of the delegate to be some of {known}, found '{name}'")
        if type(value) is not kind or (kind is int and not 0 <= value < 2**31):
            what = "an int of 31 bits" if kind is int else "a str"
            raise ExportError(f"option '{name}' of the delegate: expected {what}, found {value!r}")
        specs.append(Spec(OPTION + name, str(value).encode()))
    return specs


__all__ = [
    "BACKEND_ID",
    "CONTENT_KEYS",
    "EXTERNAL",
    "LEAVE_OUT",
    "LOWER_BOUNDS",
    "METHOD",
    "QUANTIZE",
    "SESSION_KEY",
    "SIGNATURE",
    "STATES",
    "WEIGHT_ALIGNMENT",
    "Spec",
    "option_specs",
    "signature_spec",
]
