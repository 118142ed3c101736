"""Tables from the raw samples, and from nothing else.

    python report.py [RESULTS.json]     writes RESULTS.md beside it; of the project's own samples, results.md here and
                                        the README's table

The README shows cases of the workloads of which no peer's samples are missing and during which the machine was not busy
otherwise.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import language
import models
import workloads
from workloads import BENCH, Workload

FORMAT = 1
README = BENCH.parent / "README.md"
#: The samples stay on the machine that took them; the tables are in the tree.
RESULTS = BENCH.parent / "build" / "bench" / "results.json"
TABLES = BENCH / "results.md"
README_MARKS = ("<!-- bench:begin -->", "<!-- bench:end -->")
CAVEAT = (
    "Times of one machine at one time. A shared or virtual machine is noisy, and other machines favour other engines: "
    "compare numbers of one row or table, which were measured in turns in the same minutes, and not those of different "
    "ones."
)
MINIMUM = "The minimum is what the engine can do; the median is what it did."


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"format": FORMAT, "workloads": {}}
    results = json.loads(path.read_text())
    if results.get("format") != FORMAT:
        raise SystemExit(f"bench: {path.name}: expected format {FORMAT}, found {results.get('format')}; remove the file")
    return results


def write(results: dict[str, Any], path: Path) -> None:
    """Never leaves half a file, whenever the run is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(temporary, path)


def samples(entry: dict[str, Any], case: str, peer: str) -> list[float]:
    return [ms for done in entry["rounds"] for ms in done["ms"][case].get(peer, [])]


def ratios(entry: dict[str, Any], case: str, ours: str, other: str) -> list[float]:
    """One per round in which both ran: the median time of ours divided by the median time of the other."""
    found = []
    for done in entry["rounds"]:
        turns = done["ms"][case]
        if turns.get(ours) and turns.get(other):
            found.append(statistics.median(turns[ours]) / statistics.median(turns[other]))
    return found


def needed_ms(workload: Workload, entry: dict[str, Any], case: str) -> float | None:
    """The least time for a case on this machine, by the best figures that the probe saw in the rounds."""
    probes = [done["limits"] for done in entry["rounds"] if done.get("limits")]
    if not probes:
        return None
    best = {key: max(probe[key] for probe in probes) for key in probes[0]}
    needs = (language if workload.kind == "language" else models).work(*_work_of(workload, case))
    if any(best.get(kind, 0) <= 0 for kind in needs):
        return None
    computing = sum(amount / best[kind] for kind, amount in needs.items() if kind != "gb_read")
    return 1e3 * max(computing, needs["gb_read"] / best["gb_read"])


def _work_of(workload: Workload, case: str) -> tuple[Any, dict[str, Any]]:
    return (workload if workload.kind == "language" else workload.model), workload.case(case)


def per_second(workload: Workload, case: str, ms: float) -> float:
    """Tokens per second of a case of a language model."""
    sizes = workload.case(case)
    return 1e3 * (sizes["steps"] or sizes["prompt"]) * sizes.get("sequences", 1) / ms


def worst_error(entry: dict[str, Any], peer: str) -> float | None:
    errors = [done["max_abs_error"][case][peer] for done in entry["rounds"] for case in done["max_abs_error"]
              if peer in done["max_abs_error"][case]]  # fmt: skip
    return max(errors, default=None)


def divergence(entry: dict[str, Any], peer: str, case: str | None = None) -> float | None:
    """Mean KL of the next token's distribution to that of unrounded weights in f32; of all cases, or one."""
    rounds = [done.get("kl", {}) for done in entry["rounds"]]
    found = [turn[peer] for done in rounds for name, turn in done.items() if peer in turn and case in (None, name)]
    return statistics.mean(found) if found else None


def middle(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def markdown(results: dict[str, Any], known: dict[str, Workload]) -> str:
    parts = ["# Measurements", "", "Made by `make bench` from its samples; `README.md` here tells the method.", ""]
    for name, entry in results["workloads"].items():
        if name in known:
            parts += _tables(known[name], entry)
    return "\n".join(parts)


def readme_section(results: dict[str, Any], known: dict[str, Workload]) -> str:
    """What the README says: one row for each case that workloads.toml chooses, beside the fastest peer."""
    head = ["workload", "graft", "best peer", "graft's time / the peer's"]
    lines = ["![How much of what the machine can do each engine reaches](docs/bench.svg)", ""]
    lines += [_row(head), _row(["---", "---:", "---:", "---:"])]
    machines = set()
    for name in fit_for_readme(results, known):
        workload, entry = known[name], results["workloads"][name]
        ours = workload.peers[0]
        for case, label in workload.readme.items():
            medians = {peer: statistics.median(found) for peer in workload.peers if (found := samples(entry, case, peer))}
            others = {peer: ms for peer, ms in medians.items() if peer != ours}
            if ours not in medians or not others:
                continue
            best = min(others, key=others.__getitem__)
            unit = "tokens/s" if tokens_count(workload, entry) else "ms"
            own, other = (f"{_shown(workload, entry, case, medians[peer])} {unit}" for peer in (ours, best))
            ratio = statistics.median(ratios(entry, case, ours, best))
            lines.append(_row([label, own, f"{_title(best, entry)}: {other}", f"{ratio:.2f}"]))
            machines.add(_short_machine(workload, entry))
    return "\n".join([*lines, "", f"Medians. {' '.join(sorted(machines))} {CAVEAT}"])


def _short_machine(workload: Workload, entry: dict[str, Any]) -> str:
    facts = entry["machine"]
    virtual = " (virtual machine)" if facts["hypervisor"] else ""
    vectors = "AVX-512" if "avx512f" in facts["flags"] else "no AVX-512"
    return f"{facts['cpu']}{virtual}, {facts['usable_cpus']} CPUs, {vectors}, {workload.threads} threads per engine."


def fit_for_readme(results: dict[str, Any], known: dict[str, Workload]) -> list[str]:
    """Names of the workloads whose results are complete and undisturbed, in the order of workloads.toml."""
    return [
        name for name, workload in known.items() if name in results["workloads"]
        and not _unfit(workload, results["workloads"][name])
    ]  # fmt: skip


def _unfit(workload: Workload, entry: dict[str, Any]) -> str:
    """Why these results should not be in the README; empty when they should."""
    ran = {peer for peer in workload.peers if any(samples(entry, case, peer) for case in workload.case_names)}
    if missing := set(workload.peers) - ran - set(entry["left_out"]):
        return f"no samples of {', '.join(sorted(missing))}"
    return "the machine was busy with other work" if _busy(workload, entry) else ""


def update_readme(section: str, path: Path = README) -> None:
    """Replaces what lies between the marks."""
    begin, end = README_MARKS
    head, found, rest = path.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"bench: expected the lines {begin} and {end} in {path}")
    path.write_text(f"{head}{begin}\n{section}\n{end}{tail}")


def write_tables(path: Path, known: dict[str, Workload]) -> Path:
    """RESULTS.md beside RESULTS.json; of the project's own samples, results.md here and the README's table."""
    results = read(path)
    own = path.resolve() == RESULTS
    table = TABLES if own else path.with_suffix(".md")
    table.write_text(markdown(results, known))
    if own:
        fit = fit_for_readme(results, known)
        for name in known:
            if name not in fit:
                reason = _unfit(known[name], results["workloads"][name]) if name in results["workloads"] else "no samples"
                print(f"bench: not in the README: {name}: {reason}", file=sys.stderr)
        if fit:
            update_readme(readme_section(results, known))
    return table


def _busy(workload: Workload, entry: dict[str, Any]) -> str:
    # The workers alone cause a load of at most `threads`, since they take turns.
    load = statistics.median(done["load_average"] for done in entry["rounds"])
    if load <= max(workload.threads, entry["machine"]["usable_cpus"]) + 1:
        return ""
    return f"**The machine was busy with other work (load average {load:g}): these numbers say little.**"


def _tables(workload: Workload, entry: dict[str, Any]) -> list[str]:
    present = [peer for peer in workload.peers if any(samples(entry, case, peer) for case in workload.case_names)]
    lines = [f"## {entry['title']}", ""]
    lines += [_machine(workload, entry), ""]
    if load := _busy(workload, entry):
        lines += [load, ""]
    unit = "Tokens per second" if tokens_count(workload, entry) else "Milliseconds"
    best = "maximum" if unit != "Milliseconds" else "minimum"
    lines += [f"{unit}, median ({best}):", ""]
    told = ["mean KL to f32"] if any(divergence(entry, peer) is not None for peer in present) else []
    head = [*workload.case_names, f"max {error_name(workload)}", *told, "peak memory, MB", "above imports, MB", "load, ms"]
    lines += [_row(["", *head]), _row(["---", *["---:"] * len(head)])]
    for peer in present:
        cells = []
        for case in workload.case_names:
            times = samples(entry, case, peer)
            cells.append(f"{_shown(workload, entry, case, statistics.median(times))} ({_shown(workload, entry, case, min(times))})" if times else "failed")
        error = worst_error(entry, peer)
        mark = "" if error is None or error <= workload.tolerance else f" **above {workload.tolerance:g}**"
        cells.append("" if error is None else f"{error:.1e}{mark}")
        if told:
            kl = divergence(entry, peer)
            cells.append("" if kl is None else f"{kl:.1e}")
        known = entry["peers"].get(peer)
        if known:
            cells += [f"{known['peak_mb']:.0f}", f"{known['peak_mb'] - known['imports_mb']:.0f}", f"{known['load_ms']:.0f}"]
        else:
            cells += ["", "", ""]
        lines.append(_row([_title(peer, entry), *cells]))
    lines.append("")
    ours = workload.peers[0]
    if ours in present:
        lines += ["Time of graft divided by that of the peer, median over the rounds (10th to 90th percentile); below 1, graft is faster:", ""]
        lines += [_row(["", *workload.case_names]), _row(["---", *["---:"] * len(workload.case_names)])]
        for peer in present:
            if peer == ours:
                continue
            cells = []
            for case in workload.case_names:
                found = ratios(entry, case, ours, peer)
                low, high = middle(found) if found else (0, 0)
                cells.append(f"{statistics.median(found):.2f} ({low:.2f} to {high:.2f})" if found else "")
            lines.append(_row([_title(peer, entry), *cells]))
        lines.append("")
        lines += _beside_load(workload, entry, present)
        lines += _limits(workload, entry, ours)
        lines += _goals(workload, entry)
    for peer, reason in entry["left_out"].items():
        lines.append(f"- {peer} left out: {reason}")
    if entry["left_out"]:
        lines.append("")
    lines += [f"{CAVEAT} {MINIMUM}", ""]
    return lines


def _beside_load(workload: Workload, entry: dict[str, Any], present: list[str]) -> list[str]:
    """Of the cases that have other work beside them: speed as a share of the same case's without it."""
    loaded = [case for case in workload.cases if case.get("load")]
    if not loaded:
        return []
    names = [f"{case['name']} (processor time left: {_left(workload, case):.3g})" for case in loaded]
    lines = ["Speed beside that work as a share of the speed without it, median over the rounds:", ""]
    lines += [_row(["", *names]), _row(["---", *["---:"] * len(names)])]
    for peer in present:
        cells = []
        for case in loaded:
            shares = [
                statistics.median(turn["ms"][case["without"]][peer]) / statistics.median(turn["ms"][case["name"]][peer])
                for turn in entry["rounds"]
                if all(peer in turn["ms"][name] for name in (case["name"], case["without"]))
            ]
            cells.append(f"{statistics.median(shares):.2f}" if shares else "")
        lines.append(_row([_title(peer, entry), *cells]))
    return [*lines, ""]


def _left(workload: Workload, case: dict[str, Any]) -> float:
    """Of the processor time of a case's threads, what other work leaves them."""
    return 1 - case["load"] / workload.threads


def _limits(workload: Workload, entry: dict[str, Any], ours: str) -> list[str]:
    cells = []
    for case in workload.case_names:
        least, times = needed_ms(workload, entry, case), samples(entry, case, ours)
        if least is None or not times:
            return []
        cells.append(f"{_shown(workload, entry, case, least)}: {100 * least / statistics.median(times):.0f} %")
    probes = [done["limits"] for done in entry["rounds"] if done.get("limits")]
    best = ", ".join(f"{key} {max(probe[key] for probe in probes):.0f}" for key in probes[0])
    return [
        f"The machine's limit for what has to be computed and read (probe: {best}), and the share of it that graft reaches:", "",
        _row(["", *workload.case_names]), _row(["---", *["---:"] * len(cells)]), _row(["limit", *cells]), "",
    ]  # fmt: skip


def tokens_count(workload: Workload, entry: dict[str, Any]) -> bool:
    """Whether cases are told in tokens per second: those of programs are whole processes."""
    return workload.kind == "language" and not workload.peers[0].endswith("-program")


def error_name(workload: Workload) -> str:
    return "error, share of the largest logit" if workload.kind == "language" else "abs error"


def _shown(workload: Workload, entry: dict[str, Any], case: str, ms: float) -> str:
    if tokens_count(workload, entry):
        return f"{per_second(workload, case, ms):.1f}"
    return f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _goals(workload: Workload, entry: dict[str, Any]) -> list[str]:
    lines = []
    for goal in workload.goals:
        found = ratios(entry, goal["case"], workload.peers[0], goal["peer"])
        if found:
            ratio = statistics.median(found)
            verdict = "holds" if ratio <= goal["at_most"] else "does not hold"
            lines.append(f"- {goal['case']}: at most {goal['at_most']:g} x {goal['peer']}: {verdict} ({ratio:.2f})")
    return ["Goals:", "", *lines, ""] if lines else []


def _machine(workload: Workload, entry: dict[str, Any]) -> str:
    facts = entry["machine"]
    loads = [done["load_average"] for done in entry["rounds"]]
    sessions = sorted({done["session"] for done in entry["rounds"]})
    virtual = ", virtual" if facts["hypervisor"] else ""
    return (
        f"{facts['cpu']} (family {facts['family']}, model {facts['model']}{virtual}), {facts['usable_cpus']} CPUs, "
        f"{facts['memory_gb']:g} GB, Linux {facts['kernel']}, Python {facts['python']}; {workload.threads} threads per peer. "
        f"{len(entry['rounds'])} rounds of {workload.calls} calls between {sessions[0]} and {sessions[-1]} (start of the "
        f"session), load average {min(loads):g} to {max(loads):g}{_stolen(entry)}. Instruction sets: {', '.join(facts['flags'])}."
    )


def _stolen(entry: dict[str, Any]) -> str:
    shares = [share for done in entry["rounds"] for turns in done.get("stolen", {}).values() for share in turns.values()]
    if not shares:
        return ""
    return f", CPU time given to other machines {100 * statistics.mean(shares):.0f} % (worst turn {100 * max(shares):.0f} %)"


def _title(peer: str, entry: dict[str, Any]) -> str:
    versions = entry["key"]["peers"][peer]["versions"]
    if peer.startswith("graft"):
        return "**graft**"
    return f"{peer} {next(iter(versions.values()))}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    write_tables(path, workloads.load())
