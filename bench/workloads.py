"""The entries of workloads.toml, checked."""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
# Names of cases separated by commas: workloads that have some of them have only these. Workers see what the bench was told.
CASES = "GRAFT_BENCH_CASES"


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    model: str
    threads: int
    rounds: int
    warmup: int
    calls: int
    tolerance: float
    peers: tuple[str, ...]
    cases: tuple[dict[str, Any], ...]
    goals: tuple[dict[str, Any], ...] = ()
    optional: bool = False  # only by its name
    kind: str = "calls"  # or "language": cases of a prompt and steps, see language.py
    weights: str = "f32"  # how a language model's matrices are stored, as ggml names it
    readme: dict[str, str] = field(default_factory=dict)  # the README's rows: case -> what they are called

    @property
    def case_names(self) -> list[str]:
        return [case["name"] for case in self.cases]

    def case(self, name: str) -> dict[str, Any]:
        return next(case for case in self.cases if case["name"] == name)

    def limited_to(self, names: list[str]) -> Workload:
        """With only these cases, and those that they are compared with, where it has some of them."""
        names = [*names, *(case["without"] for case in self.cases if case["name"] in names and "without" in case)]
        cases = tuple(case for case in self.cases if case["name"] in names)
        goals = tuple(goal for goal in self.goals if goal["case"] in names)
        readme = {case: text for case, text in self.readme.items() if case in names}
        return replace(self, cases=cases, goals=goals, readme=readme) if cases else self

    def measured(self) -> dict[str, Any]:
        """What a sample depends on: samples taken under another definition are not comparable."""
        fields = asdict(self)
        return {key: fields[key] for key in ("name", "model", "weights", "threads", "warmup", "calls", "cases")}


def usual(workloads: dict[str, Workload]) -> list[str]:
    """The names of those that run where none is named."""
    return [name for name, workload in workloads.items() if not workload.optional]


def load(path: Path = BENCH / "workloads.toml") -> dict[str, Workload]:
    entries = tomllib.loads(path.read_text())["workload"]
    chosen = [name for name in os.environ.get(CASES, "").split(",") if name]
    workloads = {}
    for entry in entries:
        lists = {key: tuple(entry[key]) for key in ("peers", "cases", "goals") if key in entry}
        workload = Workload(**{**entry, **lists})
        for goal in workload.goals:
            if goal["case"] not in workload.case_names or goal["peer"] not in workload.peers:
                raise ValueError(f"{path.name}: {workload.name}: a goal names an unknown case or peer: {goal}")
        if unknown := set(workload.readme) - set(workload.case_names):
            raise ValueError(f"{path.name}: {workload.name}: the README is to show an unknown case: {min(unknown)}")
        for case in workload.cases:
            if ("load" in case) != ("without" in case) or case.get("without", case["name"]) not in workload.case_names:
                raise ValueError(f"{path.name}: {workload.name}: {case['name']} has a load, expected the case without it")
        if workload.name in workloads:
            raise ValueError(f"{path.name}: two workloads are named {workload.name}")
        workloads[workload.name] = workload.limited_to(chosen)
    if unknown := set(chosen) - {case for workload in workloads.values() for case in workload.case_names}:
        raise ValueError(f"{CASES}: no workload has the case {min(unknown)!r}")
    return workloads
