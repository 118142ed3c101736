"""Differential testing against eager PyTorch, one operator at a time and without torch.export.

    from graft.testing import check_op
    check_op(torch.ops.aten.add.Tensor, (a, b), {"alpha": 2})

`check_op` runs the operator eagerly and on graft on the same arguments and compares dtype, shape and values: integers
and booleans exactly, floats within `atol + rtol * |eager|`, NaN where eager has NaN, infinities with their sign.
Every call is counted per operator; with GRAFT_OPS_REPORT each process writes its counts, and the kernels that ran, to a
file of its own in the folder of that name. `make ops-report` makes docs/ops.md of them.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graft import _C
from graft import _targets
from graft._dtypes import DTYPES, NUMBER_OF
from graft._serialize import serialize_op

__all__ = ["check_op", "run_op", "tolerance"]

# Error of one rounding of the result dtype, a few times over: kernels accumulate in f32 (f64 for f64).
_TOLERANCE = {
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-3, 2e-3),
    torch.bfloat16: (8e-3, 1.6e-2),
    torch.float64: (1e-12, 1e-12),
}

_REPORT = os.environ.get("GRAFT_OPS_REPORT")
_report: dict[str, dict[str, Any]] = {}


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """(atol, rtol) for results of that dtype; (0, 0) for integers and booleans."""
    return _TOLERANCE.get(dtype, (0.0, 0.0))


def run_op(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, threads: int = 2) -> list[Any]:
    """The operator's results on graft, flattened. Raises graft's errors; `graft.Unsupported` when it is refused."""
    blob = serialize_op(target, args, kwargs)
    program = _C.Program.from_ir(blob, {})
    session = _C.Session(program, threads=threads)
    (name,) = program.method_names()
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    tensors = [t.detach().contiguous() for t in leaves if isinstance(t, torch.Tensor)]
    inputs = [(t.data_ptr(), NUMBER_OF[t.dtype], tuple(t.shape)) for t in tensors]
    results: list[Any] = []
    outputs: list[Any] = []
    for value in session.output_values(name, inputs):
        if isinstance(value, tuple):
            # Poisoned, so that an element that is never written shows.
            tensor = torch.empty(value[2], dtype=DTYPES[value[1]])
            tensor.view(torch.uint8).fill_(0xA5) if tensor.dim() else tensor.fill_(77)
            results.append(tensor)
            outputs.append((tensor.data_ptr(), value[1], value[2]))
        else:
            results.append(value)
            outputs.append(value)
    session.run_into(name, inputs, outputs)
    if _REPORT:
        _note_kernels(target, program)
    return results


def check_op(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    threads: int = 2,
) -> None:
    """Compares graft with eager PyTorch on one call; raises AssertionError that describes the first difference."""
    with torch.no_grad():
        expected = [x for x in pytree.tree_leaves(target(*args, **dict(kwargs or {}))) if x is not None]
    actual = run_op(target, args, kwargs, threads=threads)
    label = f"{target}({_describe(args)}{', ' + _describe(kwargs) if kwargs else ''})"
    assert len(actual) == len(expected), f"{label}: {len(actual)} results, eager has {len(expected)}"
    worst = 0.0
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{label}: result {i} is {a}, eager has {e}"
            continue
        assert a.dtype == e.dtype, f"{label}: result {i} has dtype {a.dtype}, eager has {e.dtype}"
        assert a.shape == e.shape, f"{label}: result {i} has shape {tuple(a.shape)}, eager has {tuple(e.shape)}"
        default_atol, default_rtol = tolerance(e.dtype)
        worst = max(
            worst,
            _compare(a, e, default_atol if atol is None else atol, default_rtol if rtol is None else rtol, f"{label}: result {i}"),
        )
    _count(target, [t.dtype for t in pytree.tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)], worst)


def _describe(tree: Any) -> str:
    def one(x: Any) -> str:
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

    if isinstance(tree, Mapping):
        return ", ".join(f"{k}={one(v)}" for k, v in tree.items())
    return ", ".join(one(x) if not isinstance(x, list | tuple) else "[" + _describe(x) + "]" for x in tree)


def _compare(actual: torch.Tensor, expected: torch.Tensor, atol: float, rtol: float, label: str) -> float:
    if expected.numel() == 0:
        return 0.0
    if not expected.dtype.is_floating_point:
        wrong = actual != expected
        if wrong.any():
            where = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(f"{label}[{where}] is {actual[where].item()}, eager has {expected[where].item()}")
        return 0.0
    a, e = actual.double(), expected.double()
    finite = torch.isfinite(e)
    wrong = torch.where(
        finite, ~((a - e).abs() <= atol + rtol * e.abs()), ~((a == e) | (torch.isnan(a) & torch.isnan(e)))
    )
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(f"{label}[{where}] is {a[where].item()!r}, eager has {e[where].item()!r} (atol {atol}, rtol {rtol})")
    error = ((a - e).abs() / (1 + e.abs()))[finite]
    return float(error.max()) if error.numel() else 0.0


def _entry(target: Any) -> dict[str, Any]:
    name = _targets.resolve(target).name
    return _report.setdefault(name, {"cases": 0, "dtypes": set(), "worst": 0.0, "kernels": set()})


def _count(target: Any, dtypes: Sequence[torch.dtype], worst: float) -> None:
    entry = _entry(target)
    entry["cases"] += 1
    entry["dtypes"].update(str(d).removeprefix("torch.") for d in dtypes)
    entry["worst"] = max(entry["worst"], worst)


def _note_kernels(target: Any, program: _C.Program) -> None:
    (method,) = json.loads(program.describe())["methods"]
    kernels = _entry(target)["kernels"]
    for plan in method["plans"]:
        for node, names in plan["ops"].items():
            if node != "output":  # copies of views into the caller's memory
                kernels.update(names)
    if method["folded_constants"]:
        kernels.add("folded at load")


@atexit.register
def _write_report() -> None:
    if _REPORT and _report:
        rows = {k: {f: sorted(v) if isinstance(v, set) else v for f, v in row.items()} for k, row in _report.items()}
        with open(os.path.join(_REPORT, f"{os.getpid()}.json"), "w", encoding="utf-8") as f:
            json.dump(rows, f)
