"""The ahead-of-time half of the ExecuTorch delegate: a delegated sub-program becomes a blob of the IR, its weights
named data of the package."""

from __future__ import annotations

import json
from typing import final

from graft.exporter import exir  # noqa: F401  isort: skip  (before executorch.exir)
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, CompileSpec, ExportedProgram, PreprocessResult

from graft.exporter import specs
from graft.exporter.serialize import Signature, serialize, user_input_names
from graft.exporter.specs import BACKEND_ID


@final
class GraftBackend(BackendDetails):
    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        return edge_program  # preprocess only reads; a deep copy would copy all weights

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        given = {spec.key: bytes(spec.value).decode() for spec in compile_specs}
        whole = json.loads(given.get(specs.SIGNATURE, "{}"))
        # Specs are those of the whole method; names are those of the delegate's own arguments, which may be fewer
        # (unused inputs) or others (values between delegates).
        signature = Signature(
            whole.get("in_spec", ""), whole.get("out_spec", ""), tuple(user_input_names(edge_program))
        )
        blob = serialize(
            {given.get(specs.METHOD, "forward"): edge_program},
            signature=signature,
            content_keys=json.loads(given.get(specs.CONTENT_KEYS, "[]")),
            leave_out=json.loads(given[specs.LEAVE_OUT]) if specs.LEAVE_OUT in given else None,
            quantize=json.loads(given.get(specs.QUANTIZE, "{}")),
            lower_bounds=json.loads(given.get(specs.LOWER_BOUNDS, "{}")),
            states=json.loads(given.get(specs.STATES, "[]")),
        )
        store = NamedDataStore()
        store.add_named_data(specs.SESSION_KEY, b"graft")
        for key, data in blob.weights.items():
            store.add_named_data(key, data.tobytes(), alignment=specs.WEIGHT_ALIGNMENT, external_tag=given.get(specs.EXTERNAL))
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
