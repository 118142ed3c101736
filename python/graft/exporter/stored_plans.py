"""Plans made at export: which sizes, and the bytes that a package holds of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graft.errors import ExportError

PLAN_KEY = "graft.plan."  # keys of named data begin with it


def of_calls(path: Path, plans: Mapping[str, Iterable[Any]], **options: Any) -> dict[str, bytes]:
    """Named data with a plan for each call: by method, arguments as `graft.load` takes them (a tuple, or a pair of a tuple
    and a dict of keyword arguments). options: of `graft.load`."""
    from graft.runtime import LoadOptions, load  # the engine; exporting alone needs none of it

    model = load(path, options=LoadOptions(stored_plans=False), **options)
    made: dict[str, bytes] = {}
    for name, calls in plans.items():
        if name not in model.methods:
            raise ExportError(f"plans: expected one of the methods {sorted(model.methods)}, found '{name}'")
        for call in calls:
            args, kwargs = _arguments(call)
            for plan in model.methods[name].stored_plans(*args, **kwargs):
                made[f"{PLAN_KEY}{len(made)}"] = plan
    model.close()
    return made


def _arguments(call: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if not isinstance(call, (tuple, list)):
        raise ExportError(f"plans: expected a tuple of arguments for each plan, found {type(call).__name__}")
    if len(call) == 2 and isinstance(call[0], (tuple, list)) and isinstance(call[1], Mapping):
        return call[0], call[1]
    return call, {}


def sizes_of(wanted: Iterable[str], known: Mapping[str, int]) -> list[dict[str, int]]:
    """All combinations of "name=1,128" texts; names left out are 1. known: the largest size of each name."""
    lists: dict[str, list[int]] = {}
    for text in wanted:
        name, equals, sizes = text.partition("=")
        if not equals or not sizes:
            raise ExportError(f"plan: expected NAME=SIZES such as seq=1,128, found '{text}'")
        if name not in known:
            raise ExportError(f"plan: expected one of the dimensions {', '.join(known)}, found '{name}'")
        if name in lists:
            raise ExportError(f"plan: expected each dimension once, found '{name}' again")
        lists[name] = []
        for size in sizes.split(","):
            if not size.strip().isdigit() or not 1 <= int(size) <= known[name]:
                raise ExportError(f"plan: expected sizes of {name} from 1 to {known[name]}, found '{size}'")
            lists[name].append(int(size))
    names = list(lists)
    return [
        {**dict.fromkeys(known, 1), **dict(zip(names, sizes, strict=True))}
        for sizes in itertools.product(*lists.values())
    ]
