"""Writes docs/ops.md from the counts that the differential tests left (GRAFT_OPS_REPORT).

    python tools/docs/ops.py FOLDER OUT.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from graft import _C

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
SHORT = ("f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool")
COUNTS = ("cases", "wide", "empty", "strided")
HEAD = """# Operators

Made by `make ops-report` from a run of the tests under `src/op`; not edited by hand. Every operator overload of the
engine is compared with eager PyTorch on random arguments: sizes 0, 1, 31, 32, 33 and 257 among them, ranks 0 to 8,
strided operands, NaN, infinities, -0 and the extremes of integers. A case is one call compared with eager; where eager
itself refuses the arguments there is nothing to compare, and the case does not count. Calls on strided operands, and
calls with numbers that the program computes from sizes, are cases of their own.

- dtypes: of the tensors that the cases were given.
- worst error: the largest |graft - eager| / (1 + |eager|) over all elements that are finite in eager, whatever their
  dtype. Results that are integers or booleans must be equal, so theirs is 0. "-": the values are whatever the memory
  holds, in eager too, and dtype and shape alone are compared.
- rank > 4, empty, strided: of the cases, how many had a tensor of rank above 4, one without elements, operands that are
  views of larger tensors.
- kernels: what ran, over all cases. "graft ..." is a kernel of graft, "ggml ..." one of ggml's CPU backend; "view" costs
  nothing at run time; "folded at load" means that the result depends on constants alone. The cases run on the CPU.

On another device matrix products, elementwise functions, layer and RMS norm, softmax over the last dimension, sums and means
over the last dimensions, embeddings, attention and copies are ggml's ops, where its backend has them for the dtype and sizes
(`src/op/ggml_ops.h`); the rest of a program runs on the CPU beside it.
"""
# Operators that torch.export never produces: graft's passes make them, or its export of language models. By operator,
# the test that compares their results.
MADE = {
    "graft.add_adapter": "src/llm/adapter_test.cpp",
    "graft.attention.default": "test/python/llm/package_test.py",
    "graft.cache_positions": "src/session/kv_cache_test.cpp",
    "graft.cached_attention": "src/kernel/attention/cached_attention_test.cpp",
    "graft.cached_causal_conv1d": "src/kernel/recurrent/cached_state_test.cpp",
    "graft.cached_diagonal_scan": "src/kernel/recurrent/cached_state_test.cpp",
    "graft.cached_gated_delta_rule": "src/kernel/recurrent/cached_state_test.cpp",
    "graft.cached_selective_scan": "src/kernel/recurrent/cached_state_test.cpp",
    "graft.cached_wkv": "src/kernel/recurrent/cached_state_test.cpp",
    "graft.causal_conv1d.default": "test/python/llm/package_test.py",
    "graft.diagonal_scan.cached": "test/python/llm/package_test.py",
    "graft.gated_delta_rule.cached": "test/python/llm/package_test.py",
    "graft.layer_positions": "python/graft/runtime/segments_cache_test.py",
    "graft.pack_conv": "test/python/programs/convolution_test.py",
    "graft.pack_int4": "src/pass/graph/passes_test.cpp",
    "graft.pack_linear": "test/python/programs/packed_linear_test.py",
    "graft.pack_quantized_conv": "test/python/programs/quantized_conv_test.py",
    "graft.pack_winograd": "test/python/programs/convolution_test.py",
    "graft.packed_conv": "test/python/programs/convolution_test.py",
    "graft.packed_linear": "test/python/programs/packed_linear_test.py",
    "graft.packed_quantized_conv": "test/python/programs/quantized_conv_test.py",
    "graft.quantized_conv": "test/python/programs/torchao_test.py",
    "graft.quantized_linear": "src/pass/graph/passes_test.cpp",
    "graft.rope": "src/pass/graph/passes_test.cpp",
    "graft.rope_at": "src/pass/graph/rope_test.cpp",
    "graft.selective_scan.cached": "test/python/llm/package_test.py",
    "graft.source_attention.default": "test/python/llm/seq2seq_test.py",
    "graft.source_positions": "test/python/llm/seq2seq_test.py",
    "graft.store_source.default": "test/python/llm/seq2seq_test.py",
    "graft.stored_source": "test/python/llm/seq2seq_test.py",
    "graft.stored_source_attention": "test/python/llm/seq2seq_test.py",
    "graft.winograd_conv": "test/python/programs/convolution_test.py",
    "graft.wkv.cached": "test/python/llm/package_test.py",
}
LEFT_OUT = {
    "training": "computes gradients",
    "complex": "a complex tensor, which the engine has no dtype for; ExecuTorch's kernel runs it",
    "writes": "writes its arguments; torch.export replaces it by one that does not",
    "layout": "asks for strides, which a value of the engine does not have",
}
# Why graft lacks an operator of core ATen.
WHY = {
    "_fft_c2r": "complex",
    "_fft_r2c": "complex",
    "_native_batch_norm_legit.default": "writes",
    "atan2.out": "writes",
    "resize_": "writes",
    "sym_is_contiguous": "layout",
}


def left_out(targets: list[str]) -> dict[str, str]:
    """Reasons by overload, for all of core ATen that is not among the targets."""
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = name.partition(".")
        if torch.Tag.core not in getattr(getattr(torch.ops.aten, packet), overload or "default").tags:
            continue
        target = f"aten.{packet}.{overload or 'default'}"
        if target not in targets:
            kind = "training" if packet.endswith("_backward") else WHY.get(name) or WHY.get(packet)
            kind = kind or WHY[f"{packet}.{overload or 'default'}"]
            found[target] = LEFT_OUT[kind]
    return dict(sorted(found.items()))


def merged(folder: Path) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json")):
        for name, row in json.loads(file.read_text()).items():
            fresh = {"dtypes": set(), "worst": None, "kernels": set(), **dict.fromkeys(COUNTS, 0)}
            known = rows.setdefault(name, fresh)
            for count in COUNTS:
                known[count] += row[count]
            known["worst"] = max((w for w in (known["worst"], row["worst"]) if w is not None), default=None)
            known["dtypes"].update(row["dtypes"])
            known["kernels"].update(row["kernels"])
    return rows


def markdown(rows: dict[str, dict[str, Any]], targets: list[str], host: list[str]) -> str:
    """`targets`: all operators of the engine. `host`: those between plans."""
    numbers = [name for name in targets if name.startswith(("python.", "aten.sym_"))]
    tensors = sorted(set(targets) - set(numbers) - MADE.keys())
    if without := [name for name in tensors if not rows.get(name, {}).get("cases")]:
        raise SystemExit(f"ops: no cases of {', '.join(without)}")
    lines = [HEAD, f"{len(tensors)} operators on tensors.", ""]
    cases, wide, empty, strided = (sum(row[count] for row in rows.values()) for count in COUNTS)
    lines[-1:] = [
        f"{cases} cases in all; {100 * wide // cases} % have a tensor of rank above 4, {100 * empty // cases} % one "
        f"without elements, {100 * strided // cases} % strided operands.",
        "",
    ]
    lines += ["| operator | dtypes | cases | rank > 4 | empty | strided | worst error | kernels |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    for name in tensors:
        row = rows[name]
        dtypes = ", ".join(short for dtype, short in zip(DTYPES, SHORT, strict=True) if dtype in row["dtypes"])
        worst = "-" if row["worst"] is None else f"{row['worst']:.1e}" if row["worst"] else "0"
        counts = " | ".join(str(row[count]) for count in COUNTS)
        shown = name.replace("__", r"\_\_")  # else Markdown makes what is between bold
        lines.append(f"| {shown} | {dtypes} | {counts} | {worst} | {', '.join(sorted(row['kernels'])) or 'view'} |")
    lines += ["", "Operators that no program of torch.export has: graft's passes make them of others, or its export of "]
    lines[-1] += "language models does."
    lines += ["", "| operator | test |", "| --- | --- |", *(f"| {name} | `{test}` |" for name, test in MADE.items())]
    lines += ["", "Operators on numbers, evaluated while a plan is made and tested in `src/op/scalar_test.cpp`:", ""]
    lines.append(", ".join(sorted(numbers)) + ".")
    lines += ["", "Operators that run between plans (`docs/partition.md`), tested in `python/graft/runtime/segments_test.py`:", ""]
    lines.append(", ".join(sorted(host)) + ".")
    lines += ["", "Operators of core ATen that graft refuses; a program with one is split around it (`allow_fallback=True`):"]
    lines += ["", "| operator | why |", "| --- | --- |"]
    lines += [f"| {target} | {why} |" for target, why in left_out([*targets, *host]).items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows = merged(folder)
    if not rows:
        raise SystemExit(f"ops: no counts in {folder}")
    out.write_text(markdown(rows, _C.operator_targets(), _C.host_operator_targets()))
    print(f"{out}: {len(rows)} operators with cases")


if __name__ == "__main__":
    main()
