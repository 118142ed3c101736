"""Tests that `make test` leaves out because they take long, beside those that are marked slow in their files.

    make test-python PYTEST_ARGS="--timed --junitxml=build/tests.xml"
    python test/ci/slow_tests.py build/tests.xml

writes `slow_tests.txt` anew (`--timed` runs those that it lists too): what took longer than LIMIT. Of the cases of one test
the quickest stays, and so do KEPT: each front door keeps one test from end to end.
"""

from __future__ import annotations

import argparse
import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
LIMIT = 2.0  # seconds, on the machine where the list was made, with nothing else running there
QUICKEST = 9.0  # a case that takes longer stays out even if it is the quickest
# Files, or tests of them. The last test of the operators counts the cases of all.
KEPT = (
    "src/op/",
    "src/serve/any_model_test.py",
    "test/golden/",
    "test/python/docs/",
    "test/python/hf/population_test.py",
    "test/python/hostile/server_faults_test.py",
    "test/python/readme_test.py",
    "test/python/programs/tasks_test.py",
    "test/python/programs/minilm_test.py::test_one_delegate_call_and_nothing_else",
    "test/python/programs/small_models_test.py::test_small_model[vit]",
    "test/python/hf/compile_test.py::test_quantized",
    "test/python/hf/general_test.py::test_generation[own attention]",
    "test/python/hf/static_test.py::test_on_graft",
    "test/python/llm/seq2seq_test.py::test_text_to_text[t5]",
    "test/python/llm/runner_test.py::test_texts_to_vectors",
    "src/executorch/shared_state_test.py::test_the_example",
)


@functools.cache
def slow_tests() -> frozenset[str]:
    lines = LIST.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def durations(report: Path) -> Iterator[tuple[str, float]]:
    """Of the tests of a junit file that ran, by their pytest ids."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            yield f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}", float(case.attrib["time"])


def chosen(times: dict[str, float], limit: float = LIMIT, quickest: float = QUICKEST) -> list[str]:
    cases: dict[str, list[str]] = {}
    for test in times:
        cases.setdefault(test.partition("[")[0], []).append(test)
    stays = set()
    for tests in cases.values():
        first = min(tests, key=lambda test: times[test])
        if len(tests) > 1 and times[first] <= quickest:
            stays.add(first)
    return sorted(t for t, seconds in times.items() if seconds > limit and t not in stays and not t.startswith(KEPT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path, help="junit file of a run with --timed")
    parser.add_argument("--scale", type=float, default=1.0, help="what times are multiplied by, of a busy machine")
    args = parser.parse_args()
    times = {test: seconds * args.scale for test, seconds in durations(args.report)}
    tests = chosen(times)
    LIST.write_text("# Written by slow_tests.py.\n" + "".join(f"{test}\n" for test in tests))
    left = sum(times.values()) - sum(times[test] for test in tests)
    print(f"{len(tests)} of {len(times)} tests are slow; the others take {left:.0f} s of {sum(times.values()):.0f} s")


if __name__ == "__main__":
    main()
