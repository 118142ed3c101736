"""How many replicas serve how many talks, before they are bought (docs/scale.md).

    python tools/simulate measure model.pte           # times of a process on this machine, into times.json
    python tools/simulate check model.pte             # the simulation beside 1, 2 and 4 processes here
    python tools/simulate run --replicas 1 10 100     # the simulation alone
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from events import Cluster, Request, Simulation, Times  # noqa: E402
from talks import Talks, arrivals  # noqa: E402


def figures(done: Sequence[Request]) -> dict[str, float]:
    """requests; seconds to the first token (median, 99th of 100) and to the end; part of the prompts' tokens that was known;
    generated tokens per second of the whole."""
    first = sorted(r.first - r.at for r in done)
    whole = sorted(r.end - r.at for r in done)
    span = max(r.end for r in done) - min(r.at for r in done)
    return {
        "requests": len(done),
        "first_p50": first[len(first) // 2],
        "first_p99": first[len(first) * 99 // 100],
        "end_p50": whole[len(whole) // 2],
        "known": sum(r.cached for r in done) / sum(r.tokens for r in done),
        "tokens_s": sum(r.answer for r in done) / span,
    }


HEAD = ("first token p50 ms", "p99 ms", "answer p50 s", "known", "tokens/s")


def cells(found: dict[str, float]) -> list[str]:
    return [
        f"{found['first_p50'] * 1e3:,.0f}",
        f"{found['first_p99'] * 1e3:,.0f}",
        f"{found['end_p50']:.2f}",
        f"{found['known']:.2f}",
        f"{found['tokens_s']:,.0f}",
    ]


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def read_times(path: Path) -> Times:
    return Times(**json.loads(path.read_text()))


def measure(options: argparse.Namespace) -> None:
    import measured

    found = measured.times(options.package, options.vocabulary)
    options.times.write_text(json.dumps(dataclasses.asdict(found), indent=2) + "\n")
    print(options.times.read_text(), end="")


def check(options: argparse.Namespace) -> None:
    import measured

    times, rows = read_times(options.times), 8
    row("processes", "", *HEAD)
    row(*["---"] * (2 + len(HEAD)))
    for count in (1, 2, 4):
        talks = Talks(rate=options.rate * count, seconds=options.seconds, context=options.context, pause=2.0)
        servers = [measured.Server(options.package, rows) for _ in range(count)]
        for server in servers:  # plans for all widths of a step
            server.generate([measured.ids(70 + i, random.Random(i), options.vocabulary) for i in range(rows)], 24)
        before = sum(server.scheduled() for server in servers)
        real = asyncio.run(measured.talk(servers, list(arrivals(talks)), options.vocabulary, rows))
        ran, waited = sum(server.scheduled() for server in servers) - before
        for server in servers:
            server.stop()
        # What the system says of the CPUs' other users, these processes among themselves included.
        slower = 1 + waited / ran
        here = Times(*(slower * value for value in dataclasses.astuple(times)))
        said = Simulation(Cluster(count, rows=rows, routers=1), here).run(arrivals(talks))
        row(count, f"measured, {len(real)} requests", *cells(figures(real)))
        row(count, f"simulated, steps {slower:.2f} times as long", *cells(figures(said)))


def run(options: argparse.Namespace) -> None:
    times = read_times(options.times)
    row("replicas", "router", "requests", *HEAD, "failures", "asked again")
    row(*["---"] * (5 + len(HEAD)))
    for count in options.replicas:
        for policy in options.policy:
            talks = Talks(rate=options.rate * count, seconds=options.seconds)
            cluster = Cluster(count, policy=policy, mtbf=options.mtbf, routers=max(1, min(count // 100, 16)))
            simulation = Simulation(cluster, times)
            done = simulation.run(arrivals(talks), options.seconds)
            again = sum(r.retried for r in done)
            row(f"{count:,}", policy, f"{len(done):,}", *cells(figures(done)), simulation.failures, again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("measure", measure), ("check", check), ("run", run)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--times", type=Path, default=Path(__file__).with_name("times.json"))
        if name != "run":
            command.add_argument("package", type=Path)
            command.add_argument("--vocabulary", type=int, default=500, help="ids below this are drawn")
        if name != "measure":
            command.add_argument("--rate", type=float, default=0.2, help="talks that begin per second and replica")
            command.add_argument("--seconds", type=float, default=60, help="for which talks begin")
        if name == "check":
            command.add_argument("--context", type=int, default=1024, help="the most tokens of a talk")
        if name == "run":
            command.add_argument("--replicas", type=int, nargs="+", default=[1, 10, 100, 1000, 10000])
            command.add_argument("--policy", nargs="+", default=["affinity", "least"])
            command.add_argument("--mtbf", type=float, default=0, help="mean seconds between failures of a replica; 0: none")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
