"""tools/simulate: the events where their times can be told by hand, and real processes beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "simulate"
sys.path.insert(0, str(TOOL))
from events import Cluster, Request, Simulation, Times  # noqa: E402
from talks import Talks, arrivals  # noqa: E402

sys.path.pop(0)

TIMES = Times(step=1.0, row=0.1, token=0.01, request=0.5)


def alone(at: float = 0.0, tokens: int = 100, answer: int = 5, talk: int = 1, blocks=()) -> Request:
    return Request(at, list(blocks), talk, tokens, answer)


def test_one_request():
    (done,) = Simulation(Cluster(1), TIMES).run([alone()])
    assert done.first == pytest.approx(1 + 100 * 0.01 + 0.5)
    assert done.end == pytest.approx(done.first + 4 * 1.1)


def test_long_prompts_are_read_in_chunks():
    (done,) = Simulation(Cluster(1), TIMES).run([alone(tokens=1100, answer=1)])
    assert done.end == done.first == pytest.approx(3 + 1100 * 0.01 + 0.5)


def test_texts_run_side_by_side():
    """The second comes during a run of steps, which ends with the step that is computed then."""
    first, second = Simulation(Cluster(1), TIMES).run([alone(), alone(at=3.0, answer=3)])
    begins = 2.5 + 1.1  # the step that runs at 3
    assert second.at == 3.0 and second.first == pytest.approx(begins + 1 + 0.1 + 1 + 0.5)
    # Two steps of two texts, which is all that both lack.
    assert second.end == first.end == pytest.approx(second.first + 2 * 1.2)


def test_rows_are_bounded():
    done = Simulation(Cluster(1, rows=1), TIMES).run([alone(), alone(talk=2)])
    assert done[1].first == pytest.approx(done[0].end + 2.5)


def test_known_blocks_are_not_read_again():
    follow = alone(at=100, tokens=200, blocks=[1, 2, 3])
    done = Simulation(Cluster(1), TIMES).run([alone(tokens=130, blocks=[1, 2]), follow])
    assert [r.cached for r in done] == [0, 128]
    assert follow.first - follow.at == pytest.approx(1 + 72 * 0.01 + 0.5)
    # What was used longest ago makes room.
    (_, again) = Simulation(Cluster(1, cache=1), TIMES).run([alone(blocks=[1, 2]), alone(at=100, blocks=[1, 2])])
    assert again.cached == 0


def test_processes_share_the_cpus_of_a_host():
    requests = [alone(talk=i << 61) for i in range(4)]
    names = {}
    apart = Simulation(Cluster(4, cpus=4, per_host=4, policy="least"), TIMES)
    together = Simulation(Cluster(4, cpus=2, per_host=4, policy="least"), TIMES)
    for simulation in (apart, together):
        names[simulation is apart] = max(r.end for r in simulation.run([alone(talk=r.talk) for r in requests]))
    assert names[True] == pytest.approx(2.5 + 4 * 1.1)
    assert 1.5 * names[True] < names[False] <= 2 * names[True]


def test_a_failure_loses_no_request():
    talks = Talks(rate=2.0, seconds=200)
    simulation = Simulation(Cluster(4, mtbf=60, restart=5), Times(0.005, 0.001, 0.0003, 0.001))
    done = simulation.run(arrivals(talks), 1000)
    assert simulation.failures > 4 and sum(r.retried for r in done) > 0
    quiet = Simulation(Cluster(4), Times(0.005, 0.001, 0.0003, 0.001)).run(arrivals(talks), 1000)
    assert len(done) == len(quiet) > 400 and simulation._total == 0


def test_talks_stay_where_they_are_known():
    found = {}
    for policy in ("affinity", "least", "random"):
        done = Simulation(Cluster(50, policy=policy), Times(0.005, 0.001, 0.0003, 0.001)).run(
            arrivals(Talks(rate=10, seconds=100)), 200
        )
        found[policy] = sum(r.cached for r in done) / sum(r.tokens for r in done)
    assert found["affinity"] > 1.4 * max(found["least"], found["random"])


def test_the_same_seed_gives_the_same():
    def ends():
        return [r.end for r in Simulation(Cluster(8, mtbf=50), TIMES).run(arrivals(Talks(rate=1, seconds=50)), 100)]

    assert ends() == ends()


def test_commands(stories, tmp_path):
    """Figures of real processes are as the simulation's where they do not depend on how fast the machine is."""

    def command(*words: object) -> list[list[str]]:
        done = subprocess.run([sys.executable, TOOL, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[0] == "|"]

    times = tmp_path / "times.json"
    command("measure", stories, "--times", times)
    _, _, *rows = command("check", stories, "--times", times, "--seconds", 4, "--rate", 0.5, "--context", 480)
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "4", "4"]
    for real, simulated in zip(rows[::2], rows[1::2], strict=True):
        assert abs(float(real[5]) - float(simulated[5])) <= 0.05
    _, _, *rows = command("run", "--times", times, "--replicas", 1, 20, "--seconds", 10, "--mtbf", 30)
    assert [row[:2] for row in rows] == [[n, p] for n in ("1", "20") for p in ("affinity", "least")]
