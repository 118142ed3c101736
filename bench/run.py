"""Measures the workloads of workloads.toml and keeps every sample.

    python run.py [--workload NAME] [--peers a,b | --without a,b] [--rounds N] [--fresh]

Each peer lives in a process of its own and waits for its turn, so that they run A B C A B C on the same machine in the
same minutes. A round is all cases by all peers; it is written to the results when it is complete, and a rerun does only
the rounds that are missing. Samples count as long as machine, definition and the peers' versions are the same; otherwise
the workload starts over, and the earlier samples are kept in RESULTS.previous.json. A peer that cannot be installed,
prepared or run is left out, with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import language
import machine
import neighbour
import peers
import report
import workloads
from workloads import BENCH, Workload

# Pause between turns, until the previous peer's threads stop spinning.
SETTLE_SECONDS = 0.2
# A turn during which the hypervisor gave a larger fraction to other machines is repeated a few times; the least
# disturbed one counts.
MOST_STOLEN = 0.05
TURNS = 5
ANSWER_SECONDS = 3600  # a large model runs all its cases once before it answers


class PeerFailed(Exception):
    pass


def python_of(peer: str) -> str:
    environment = peers.get(peer).environment
    if environment == "project":
        return sys.executable
    folder = BENCH / {"peers": ".venv", "language": ".venv-language"}[environment]
    if not (folder / "bin" / "python").exists():
        raise PeerFailed(f"its environment bench/{folder.name} is missing")
    return str(folder / "bin" / "python")


def environment(threads: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "GRAFT_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(BENCH / "cache" / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def call(peer_python: str, *args: str, log: Path, threads: int) -> dict[str, Any]:
    """One answer of a worker that then ends."""
    with log.open("a") as errors:
        done = subprocess.run(
            [peer_python, str(BENCH / "worker.py"), *args],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(threads),
            text=True,
        )
    if done.returncode != 0:
        raise PeerFailed(last_line(log))
    return json.loads(done.stdout.splitlines()[-1])


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it ended without a word"


class Worker:
    """A served peer. Bound to the given cores before it starts, so that its thread pools see them."""

    def __init__(
        self, peer: str, workload: Workload, folder: Path, references: Path, cores: list[int], log: Path,
        python: str = "", script: Path = BENCH / "worker.py",
    ) -> None:  # fmt: skip
        self.peer = peer
        self._log = log
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [python or python_of(peer), str(script), "serve", peer, workload.name, str(folder), str(references)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(workload.threads),
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        try:
            self.loaded = self._answer()
        except PeerFailed:
            self.close()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        def expired(*_: Any) -> None:
            raise PeerFailed(f"no answer within {ANSWER_SECONDS} s")

        before = signal.signal(signal.SIGALRM, expired)
        signal.alarm(ANSWER_SECONDS)
        try:
            line = self._process.stdout.readline()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        if not line:
            self._process.wait()
            raise PeerFailed(last_line(self._log))
        return json.loads(line)

    def close(self) -> None:
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def prepare(peer: str, workload: Workload, folder: Path, log: Path) -> dict[str, Any]:
    """The peer's identity. Makes its files unless those there are of the same identity."""
    log.unlink(missing_ok=True)
    identity = call(python_of(peer), "identify", peer, log=log, threads=workload.threads)
    stamp = folder / "identity.json"
    wanted = {**identity, "model": workload.model, "weights": workload.weights}
    if workload.kind == "language":
        wanted["context"] = language.capacity(workload)[0]
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        say(f"  {peer}: preparing")
        stamp.unlink(missing_ok=True)
        call(python_of(peer), "prepare", peer, workload.name, str(folder), log=log, threads=workload.threads)
        stamp.write_text(json.dumps(wanted))
    return identity


def measure(workload: Workload, chosen: list[str], rounds: int, results_path: Path, fresh: bool) -> None:
    say(f"== {workload.name}: {workload.title}")
    cache = BENCH / "cache" / workload.name
    cache.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    cores = machine.distinct_cores(workload.threads)
    left_out = {}
    identities = {}
    call(sys.executable, "model", workload.name, str(cache / "model"), log=cache / "model.log", threads=workload.threads)
    for peer in chosen:
        try:
            identities[peer] = prepare(peer, workload, cache / peer, cache / f"{peer}.log")
        except PeerFailed as reason:
            left_out[peer] = str(reason)
            say(f"  {peer}: left out: {reason}")
    if not identities:
        raise SystemExit(f"bench: no peer of {workload.name} could be prepared")

    results = report.read(results_path)
    key = {
        "machine": machine.identity(facts),
        "workload": json.loads(json.dumps(workload.measured())),
        "peers": identities,
    }
    entry = results["workloads"].get(workload.name)
    if fresh or entry is None or not continues(entry["key"], key):
        if entry is not None:
            kept = results_path.with_name(f"{results_path.stem}.previous.json")
            report.write(results, kept)
            say(f"  starting over; the samples so far are kept in {kept.name}")
        entry = {"key": key, "rounds": [], "peers": {}}
    for peer, reason in entry.get("left_out", {}).items():
        if peer not in chosen:
            left_out[peer] = reason
    entry.update(title=workload.title, machine=facts, cores=cores, left_out=left_out)
    if complete(entry, identities) >= rounds:
        say(f"  all {rounds} rounds are there")
        results["workloads"][workload.name] = entry
        report.write(results, results_path)
        return

    call(sys.executable, "reference", workload.name, str(cache / "references"), log=cache / "reference.log",
         threads=workload.threads)  # fmt: skip
    workers: dict[str, Worker] = {}
    try:
        for peer in identities:
            log = cache / f"{peer}.log"
            try:
                workers[peer] = Worker(peer, workload, cache / peer, cache / "references", cores, log)
                say(f"  {peer}: loaded in {workers[peer].loaded['load_ms']:.0f} ms")
            except PeerFailed as reason:
                drop(entry, workers, peer, reason)
        session = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        # A round during which a peer failed still counts: the peer does not run again in this invocation.
        while workers and complete(entry, workers) < rounds:
            limits = machine.limits(workload.threads, cores)
            done = {"limits": limits, **one_round(workload, entry, workers, len(entry["rounds"]))}
            entry["rounds"].append({"session": session, **done})
            for peer, worker in list(workers.items()):
                try:
                    memory = worker.ask(do="memory")
                    entry["peers"][peer] = {**worker.loaded, **memory}
                except PeerFailed as reason:
                    drop(entry, workers, peer, reason)
            results["workloads"][workload.name] = entry
            report.write(results, results_path)
            say(f"  round {complete(entry, workers)} of {rounds}")
    finally:
        for worker in workers.values():
            worker.close()


def continues(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether new samples may stand beside those there. Fewer peers may; another version of one may not."""
    same = old["machine"] == new["machine"] and old["workload"] == new["workload"]
    return same and all(old["peers"].get(peer) == identity for peer, identity in new["peers"].items())


def complete(entry: dict[str, Any], names: Iterable[str]) -> int:
    """Rounds in which all of these peers ran every case."""
    return sum(all(name in turns for turns in done["ms"].values() for name in names) for done in entry["rounds"])


def turns(names: list[str], case: str, number: int) -> list[str]:
    """An order of the round's own: what the one before leaves behind, such as empty caches, is not always the same."""
    return random.Random(f"{case} {number}").sample(names, len(names))


def one_turn(worker: Worker, case: dict[str, Any], number: int, core: int) -> dict[str, Any]:
    """core: where the case has other work beside it, the one that it is on."""
    best: dict[str, Any] = {}
    for attempt in range(TURNS):
        time.sleep(SETTLE_SECONDS * (1 + attempt))
        with neighbour.beside(case.get("load", 0), core if case.get("pinned", True) else -1):
            turn = worker.ask(do="turn", case=case["name"], round=number)
        if not best or turn["stolen"] < best["stolen"]:
            best = turn
        if best["stolen"] <= MOST_STOLEN:
            break
    return best


def one_round(workload: Workload, entry: dict[str, Any], workers: dict[str, Worker], number: int) -> dict[str, Any]:
    """Every case by every peer."""
    samples: dict[str, dict[str, list[float]]] = {}
    errors: dict[str, dict[str, float]] = {}
    stolen: dict[str, dict[str, float]] = {}
    divergences: dict[str, dict[str, float]] = {}
    load = os.getloadavg()[0]
    for case in workload.case_names:
        samples[case], errors[case], stolen[case], divergences[case] = {}, {}, {}, {}
        for peer in turns(list(workers), case, number):
            try:
                turn = one_turn(workers[peer], workload.case(case), number, entry["cores"][-1])
            except PeerFailed as reason:
                drop(entry, workers, peer, reason)
                continue
            samples[case][peer] = [round(ms, 4) for ms in turn["ms"]]
            errors[case][peer] = turn["max_abs_error"]
            stolen[case][peer] = round(turn["stolen"], 3)
            if "kl" in turn:
                divergences[case][peer] = turn["kl"]
    return {"load_average": round(load, 2), "ms": samples, "max_abs_error": errors, "stolen": stolen, "kl": divergences}


def drop(entry: dict[str, Any], workers: dict[str, Worker], peer: str, reason: PeerFailed) -> None:
    say(f"  {peer}: failed: {reason}")
    entry["left_out"][peer] = str(reason)
    worker = workers.pop(peer, None)
    if worker:
        worker.close()


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    all_workloads = workloads.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=sorted(all_workloads), help="by default all but the optional ones")
    parser.add_argument("--peers", default="", help="only these, separated by commas")
    parser.add_argument("--without", default="", help="all but these")
    parser.add_argument("--rounds", type=int, help="instead of the workload's own number")
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    parser.add_argument("--fresh", action="store_true", help="forget the samples there")
    options = parser.parse_args()

    only = [name for name in options.peers.split(",") if name]
    without = [name for name in options.without.split(",") if name]
    known = sorted({peer for workload in all_workloads.values() for peer in workload.peers})
    for name in only + without:
        if name not in known:
            parser.error(f"expected peers of {', '.join(known)}, found {name}")
    for name in options.workload or workloads.usual(all_workloads):
        workload = all_workloads[name]
        chosen = [peer for peer in workload.peers if (not only or peer in only) and peer not in without]
        measure(workload, chosen, options.rounds or workload.rounds, options.results, options.fresh)
    print(report.write_tables(options.results, all_workloads).read_text())


if __name__ == "__main__":
    main()
