"""Differential testing against eager PyTorch, one operator at a time and without torch.export.

    from graft.testing import check_op
    check_op(torch.ops.aten.add.Tensor, (a, b), {"alpha": 2})

`check_op` runs the operator eagerly and on graft on the same arguments and compares dtype, shape and values: integers
and booleans exactly, floats within `atol + rtol * |eager|`, NaN where eager has NaN, infinities with their sign.
Every comparison is counted per operator; with GRAFT_OPS_REPORT each process writes its counts, and the kernels that ran,
to a file of its own in the folder of that name. `make ops-report` makes docs/ops.md of them.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graft import _C
from graft._dtypes import DTYPES, NUMBER_OF
from graft.exporter import targets
from graft.exporter.serialize import serialize_op

__all__ = ["case_counts", "case_kinds", "check_op", "check_results", "run_blob", "run_op", "run_session", "tolerance"]

# A few times the rounding error of the result dtype: kernels accumulate in f32 (f64 for f64).
_TOLERANCE = {
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-3, 2e-3),
    torch.bfloat16: (8e-3, 1.6e-2),
    torch.float64: (1e-12, 1e-12),
}

_REPORT = os.environ.get("GRAFT_OPS_REPORT")
_report: dict[str, dict[str, Any]] = {}

#: What a case may have besides: a tensor of rank above 4, one without elements, one that is a view of a larger one.
_KINDS = ("wide", "empty", "strided")


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """(atol, rtol) for results of that dtype; (0, 0) for integers and booleans."""
    return _TOLERANCE.get(dtype, (0.0, 0.0))


def run_op(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, threads: int = 2) -> list[Any]:
    """The operator's results on graft, flattened. Raises graft's errors; `graft.Unsupported` when it is refused."""
    tensors = [t.detach().contiguous() for t in _tensors(args, kwargs)]
    return run_blob(serialize_op(target, args, kwargs), tensors, threads=threads, target=target)


def run_session(session: _C.Session, method: str, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The results of one run of a session of the engine: tensors, and numbers as they are."""
    inputs = [(t.data_ptr(), NUMBER_OF[t.dtype], tuple(t.shape)) for t in tensors]
    placed: dict[int, torch.Tensor] = {}

    def place(i: int, number: int, sizes: tuple[int, ...]) -> int:
        # Poisoned, so that an element that is never written is detected.
        tensor = placed[i] = torch.empty(sizes, dtype=DTYPES[number])
        tensor.view(torch.uint8).fill_(0xA5) if tensor.dim() else tensor.fill_(77)
        return tensor.data_ptr()

    values = session.run(method, inputs, place)
    return [placed.get(i, value) for i, value in enumerate(values)]


def run_blob(
    blob: bytes, tensors: Sequence[torch.Tensor], *, threads: int = 2, target: Any = None, node: str | None = None
) -> list[Any]:
    """Results, flattened, of a program with one method and without weights. The report lists the kernels of all its
    nodes, or of the node of that name, under `target`."""
    program = _C.Program.from_ir(blob, {})
    session = _C.Session(program, threads=threads)
    (name,) = program.method_names()
    results = run_session(session, name, tensors)
    if _REPORT and target is not None:
        _note_kernels(target, program, node)
    return results


def check_op(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    threads: int = 2,
    reference: Callable[..., Any] | None = None,
    **limits: Any,
) -> None:
    """Compares graft with eager PyTorch on one call; raises AssertionError that describes the first difference.

    reference: called with the same arguments instead of `target`, where eager leaves open what the result is. limits:
    as `check_results` takes them.
    """
    with torch.no_grad():
        expected = (reference or target)(*args, **dict(kwargs or {}))
    check_results(target, args, kwargs, run_op(target, args, kwargs, threads=threads), expected, **limits)


def check_results(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    actual: Sequence[Any],
    expected: Any,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    values: bool = True,
    strided: bool = False,
    note: str = "",
) -> None:
    """Compares results that are there already, and counts the comparison.

    atol, rtol: by default those of the result's dtype (`tolerance`). values: whether the values are compared too, not
    only dtype and shape. strided: the call was made on views, for the count. note: for the message.
    """
    expected = [x for x in pytree.tree_leaves(expected) if x is not None]
    label = _Label(target, args, kwargs, note)
    assert len(actual) == len(expected), f"{label}: {len(actual)} results, eager has {len(expected)}"
    worst = 0.0 if values else None
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{label}: result {i} is {a}, eager has {e}"
            continue
        assert a.dtype == e.dtype, f"{label}: result {i} has dtype {a.dtype}, eager has {e.dtype}"
        assert a.shape == e.shape, f"{label}: result {i} has shape {tuple(a.shape)}, eager has {tuple(e.shape)}"
        if values:
            by_dtype = tolerance(e.dtype)
            error = _compare(
                a, e, by_dtype[0] if atol is None else atol, by_dtype[1] if rtol is None else rtol, label, i
            )
            worst = max(worst, error)
    given = _tensors(args, kwargs)
    everything = [*given, *(t for t in expected if isinstance(t, torch.Tensor))]
    kinds = {
        "wide": any(t.dim() > 4 for t in everything),
        "empty": any(t.numel() == 0 for t in everything),
        "strided": strided and any(t.dim() > 0 for t in given),
    }
    _count(target, [t.dtype for t in given], worst, [kind for kind, has in kinds.items() if has])


def case_counts() -> dict[str, int]:
    """Comparisons so far in this process, by operator as the engine names it."""
    return {name: row["cases"] for name, row in _report.items()}


def case_kinds() -> dict[str, int]:
    """Of all those comparisons, how many had a tensor of rank above 4 ("wide"), one without elements ("empty"), or
    operands that are views of larger tensors ("strided")."""
    return {kind: sum(row[kind] for row in _report.values()) for kind in _KINDS}


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves((tuple(args), dict(kwargs or {}))) if isinstance(t, torch.Tensor)]


class _Label:
    """The call in words; most calls never need them."""

    def __init__(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, note: str) -> None:
        self._call = target, args, kwargs, note

    def __str__(self) -> str:
        target, args, kwargs, note = self._call
        return f"{target}({_describe(args)}{', ' + _describe(kwargs) if kwargs else ''}){note and ' ' + note}"


def _describe(tree: Any) -> str:
    def one(x: Any) -> str:
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

    if isinstance(tree, Mapping):
        return ", ".join(f"{k}={one(v)}" for k, v in tree.items())
    return ", ".join(one(x) if not isinstance(x, list | tuple) else "[" + _describe(x) + "]" for x in tree)


def _compare(actual: torch.Tensor, expected: torch.Tensor, atol: float, rtol: float, label: _Label, i: int) -> float:
    """The largest error relative to 1 + |eager| over finite elements."""
    if expected.numel() == 0:
        return 0.0
    if not expected.dtype.is_floating_point:
        if not torch.equal(actual, expected):
            where = tuple((actual != expected).nonzero()[0].tolist())
            found, wanted = actual[where].item(), expected[where].item()
            raise AssertionError(f"{label}: result {i}[{where}] is {found}, eager has {wanted}")
        return 0.0
    a, e = actual.double(), expected.double()
    finite = torch.isfinite(e)
    magnitude = e.abs()
    difference = (a - e).abs()
    same = (a == e) | (torch.isnan(a) & torch.isnan(e))
    wrong = ~torch.where(finite, difference <= atol + rtol * magnitude, same)
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        found, wanted = a[where].item(), e[where].item()
        limits = f"(atol {atol}, rtol {rtol})"
        raise AssertionError(f"{label}: result {i}[{where}] is {found!r}, eager has {wanted!r} {limits}")
    error = (difference / (1 + magnitude))[finite]
    return float(error.max()) if error.numel() else 0.0


def _entry(target: Any) -> dict[str, Any]:
    name = targets.resolve(target).name
    fresh = {"cases": 0, "dtypes": set(), "worst": None, "kernels": set(), **dict.fromkeys(_KINDS, 0)}
    return _report.setdefault(name, fresh)


def _count(target: Any, dtypes: Sequence[torch.dtype], worst: float | None, kinds: Sequence[str]) -> None:
    entry = _entry(target)
    entry["cases"] += 1
    for kind in kinds:
        entry[kind] += 1
    entry["dtypes"].update(str(d).removeprefix("torch.") for d in dtypes)
    if worst is not None:
        entry["worst"] = max(entry["worst"] or 0.0, worst)


def _note_kernels(target: Any, program: _C.Program, node: str | None) -> None:
    (method,) = json.loads(program.describe())["methods"]
    kernels = _entry(target)["kernels"]
    for plan in method.get("plans", ()):  # none in programs cut into segments
        for name, used in plan["ops"].items():
            if name == node or (node is None and name != "output"):  # "output": copies of views for the caller
                kernels.update(used)
    if method["folded_constants"] and node is None:
        kernels.add("folded at load")


@atexit.register
def _write_report() -> None:
    if _REPORT and _report:
        rows = {k: {f: sorted(v) if isinstance(v, set) else v for f, v in row.items()} for k, row in _report.items()}
        with open(os.path.join(_REPORT, f"{os.getpid()}.json"), "w", encoding="utf-8") as f:
            json.dump(rows, f)
