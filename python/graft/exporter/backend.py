"""The ahead-of-time half of the ExecuTorch delegate: a delegated sub-program becomes a blob of the IR, its weights
named data of the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from graft.exporter import exir  # noqa: F401  isort: skip  (before executorch.exir)
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, CompileSpec, ExportedProgram, PreprocessResult

from graft.errors import ExportError
from graft.exporter.serialize import Signature, serialize, user_input_names

BACKEND_ID = "GraftBackend"
# Compile specs.
SIGNATURE_SPEC = "graft.signature"  # JSON: the whole method as its caller sees it
METHOD_SPEC = "graft.method"  # name of the method
EXTERNAL_SPEC = "graft.external"  # put weights into the .ptd of this name
LEAVE_OUT_SPEC = "graft.leave_out"  # present: leave out parameters and persistent buffers; JSON: names in their files
CONTENT_KEYS_SPEC = "graft.content_keys"  # JSON list: weights to key by content
QUANTIZE_SPEC = "graft.quantize"  # JSON: types to write weights as, by name
STATES_SPEC = "graft.states"  # JSON list: buffers that another method writes
OPTION_SPEC = "graft.option."  # and the name of an option of the delegate (src/executorch/options.h): its value as text
LOWER_BOUNDS_SPEC = "graft.lower_bounds"  # JSON: lower bounds of sizes by symbol
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


def signature_spec(signature: Signature) -> CompileSpec:
    text = json.dumps(
        {
            "in_spec": signature.in_spec,
            "out_spec": signature.out_spec,
            "user_input_names": list(signature.user_input_names),
        }
    )
    return CompileSpec(SIGNATURE_SPEC, text.encode())


def option_specs(options: Mapping[str, int | str]) -> list[CompileSpec]:
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
        specs.append(CompileSpec(OPTION_SPEC + name, str(value).encode()))
    return specs


@final
class GraftBackend(BackendDetails):
    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        return edge_program  # preprocess only reads; a deep copy would copy all weights

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        specs = {spec.key: bytes(spec.value).decode() for spec in compile_specs}
        whole = json.loads(specs.get(SIGNATURE_SPEC, "{}"))
        # Specs are those of the whole method; names are those of the delegate's own arguments, which may be fewer
        # (unused inputs) or others (values between delegates).
        signature = Signature(
            whole.get("in_spec", ""), whole.get("out_spec", ""), tuple(user_input_names(edge_program))
        )
        blob = serialize(
            {specs.get(METHOD_SPEC, "forward"): edge_program},
            signature=signature,
            content_keys=json.loads(specs.get(CONTENT_KEYS_SPEC, "[]")),
            leave_out=json.loads(specs[LEAVE_OUT_SPEC]) if LEAVE_OUT_SPEC in specs else None,
            quantize=json.loads(specs.get(QUANTIZE_SPEC, "{}")),
            lower_bounds=json.loads(specs.get(LOWER_BOUNDS_SPEC, "{}")),
            states=json.loads(specs.get(STATES_SPEC, "[]")),
        )
        store = NamedDataStore()
        store.add_named_data(SESSION_KEY, b"graft")
        for key, data in blob.weights.items():
            store.add_named_data(key, data.tobytes(), alignment=WEIGHT_ALIGNMENT, external_tag=specs.get(EXTERNAL_SPEC))
        handles = {
            node.name: (node.meta["debug_handle"],)
            for node in edge_program.graph.nodes
            if node.op == "call_function" and isinstance(node.meta.get("debug_handle"), int)
        }
        return PreprocessResult(
            processed_bytes=blob.data,
            debug_handle_map=handles,
            data_store_output=store.get_named_data_store_output(),
        )


__all__ = ["BACKEND_ID", "GraftBackend"]
