"""Runs the operator tests of ExecuTorch's backend test suite, which the executorch wheel ships, on graft: `make
executorch-suite`, about a quarter of an hour.

    python test/executorch_suite/run.py [--report FILE] [-k EXPRESSION]

What it requires: every test that is not skipped passes at atol and rtol 1e-4, no more tests are skipped than with
ExecuTorch's portable kernels, and at least 95 % of the passed tests leave no operator outside the delegate.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

# With the portable flow of executorch 1.5.1: tests that fail in eager mode or at export, use operators that ExecuTorch
# has no kernel for, or convolve three dimensions.
SKIPPED = 97
DELEGATED = 0.95


def _suite() -> Path:
    spec = importlib.util.find_spec("executorch")
    return Path(list(spec.submodule_search_locations)[0]) / "backends" / "test" / "suite" / "operators"


def _run(report: Path, expression: str | None) -> None:
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    # The root is where conftest.py lies.
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "graft_flow"]
    command += ["-W", "ignore", "--rootdir", str(_suite().parent), *(["-k", expression] if expression else [])]
    # Files by name, since pytest skips folders inside a virtual environment.
    command += [str(file) for file in sorted(_suite().glob("test_*.py"))]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=os.environ | {"GRAFT_SUITE_REPORT": str(report), "PYTHONPATH": path})


def _outside(test: dict) -> Counter:
    """Operators of a test that ran outside a delegate."""
    left: Counter = Counter()
    for part in test["parts"]:
        left.update(part["left"])
        if part["result"] == "SUCCESS_UNDELEGATED":
            left["(nothing delegated)"] += 1
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, help="keep the lines of JSON, one for each test, in this file")
    parser.add_argument("-k", dest="expression", help="only tests that fit, as pytest's -k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = (options.report or Path(folder) / "report.jsonl").resolve()
        report.unlink(missing_ok=True)
        report.touch()
        _run(report, options.expression)
        tests = [json.loads(line) for line in report.read_text().splitlines()]
    outcomes = Counter(test["outcome"] for test in tests)
    passed = [test for test in tests if test["outcome"] == "passed"]
    whole = [test for test in passed if not _outside(test)]
    for test in tests:
        if test["outcome"] == "failed":
            print(f"failed: {test['test']}: {'; '.join(p['result'] + ' ' + p['error'] for p in test['parts'])}")
    for test in passed:
        if left := _outside(test):
            print(f"outside: {test['test']}: {', '.join(sorted(left))}")
    share = len(whole) / max(len(passed), 1)
    print(
        f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped "
        f"(portable kernels: {SKIPPED}); {share:.1%} of the passed leave no operator outside the delegate"
    )
    good = passed and not outcomes["failed"] and outcomes["skipped"] <= SKIPPED and share >= DELEGATED
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
