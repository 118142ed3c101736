"""Puts one known bug after the other into a copy of the tree and requires that the tests notice: `make mutations`.

    python test/mutations/run.py [--only NAME,...] [--jobs N] [-- CMAKE_OPTION ...]

The copy lies in build/mutations and keeps its build, so that each mutation compiles only what it changes. Without a
mutation every test must pass; with it, the tests that it names must fail.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mutations import ROOT, Mutation, load

COPY = ROOT / "build" / "mutations" / "tree"
BUILD = COPY / "build" / "mutations"
SITE = COPY / "build" / "site"
# : A mutation may make a test hang.
LIMIT_SECONDS = 300
# : All tests that mutations name, together.
WHOLE_LIMIT_SECONDS = 1800
# : The exit status where all cases of a test are skipped; pytest's own end with 5.
SKIPPED = 6


def copy_tree() -> None:
    """Makes the copy equal to the tree. What is equal keeps its time, so that it isn't compiled again."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, COPY / name
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
    shared, beside = ROOT.parent / "shared", COPY.parent / "shared"
    if shared.is_dir() and not beside.exists():
        beside.symlink_to(shared)
    kept_out = {COPY / "build", COPY / ".venv"}
    for folder, folders, files in os.walk(COPY):
        folders[:] = [name for name in folders if Path(folder, name) not in kept_out and name != "__pycache__"]
        for name in files:
            path = Path(folder, name)
            if str(path.relative_to(COPY)) not in names:
                path.unlink()


def configure(options: list[str]) -> None:
    command = ["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    command += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DNDEBUG"]
    command += ["-DGRAFT_EXECUTORCH=OFF", "-DGRAFT_WERROR=OFF", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def build(targets: list[str], jobs: int) -> str | None:
    """What the compiler said when it failed."""
    command = ["cmake", "--build", BUILD, "-j", str(jobs), "--target", *targets]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def make_package() -> None:
    """A folder with the package `graft` of the copy: it is never installed."""
    package = SITE / "graft"
    shutil.rmtree(SITE, ignore_errors=True)
    package.mkdir(parents=True)
    sources = [path for path in (COPY / "python" / "graft").iterdir() if path.name != "__pycache__"]
    sources += [*(BUILD / "python" / "graft").glob("_C*.so"), *BUILD.glob("**/graft/_fb")]
    for source in sources:
        (package / source.name).symlink_to(source)


@dataclasses.dataclass
class Outcome:
    code: int
    text: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.code == 1 or self.code < 0  # a crash counts as detected

    @property
    def how(self) -> str:
        if self.code == -signal.SIGKILL:
            return "over its limit"
        return f"signal {-self.code}" if self.code < 0 else {0: "passed", 1: "failed"}.get(self.code, f"code {self.code}")


class Passed:
    """A plugin of pytest that keeps the names of the tests of which a case passed."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.names.add(report.nodeid.partition("[")[0])


def run_here(tests: tuple[str, ...]) -> int:
    if "::" not in tests[0]:
        command = [str(BUILD / "graft_tests"), "--gtest_brief=1", "--gtest_filter=" + ":".join(tests)]
        os.execv(command[0], command)
    import pytest

    import graft._C

    assert Path(graft._C.__file__).is_relative_to(SITE), f"graft is {graft._C.__file__}, not of {BUILD}"
    passed = Passed()
    code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[passed]))
    skipped = {test.partition("[")[0] for test in tests} - passed.names
    if code == 0 and skipped:  # a test that is skipped, as slow, notices nothing
        print(f"no case of these ran: {', '.join(sorted(skipped))}")
        return SKIPPED
    return code


def run(tests: tuple[str, ...], limit: float = LIMIT_SECONDS) -> Outcome:
    """In a forked process: torch is imported once for all."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            code = 3
            try:
                code = run_here(tests)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        status = None
        while status is None:
            ended, status_now = os.waitpid(child, os.WNOHANG)
            if ended:
                status = status_now
            elif time.monotonic() - begin > limit:
                os.killpg(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
            else:
                time.sleep(0.02)
        log.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), log.read().decode(errors="replace"), time.monotonic() - begin)


def prepare_python() -> None:
    """Imports what all tests import, except graft, which every mutation changes."""
    os.environ["GRAFT_CASES"] = "60"
    temporary = BUILD / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"], os.environ["TEST_TMPDIR"] = str(temporary), f"{temporary}/"
    os.chdir(COPY)
    sys.path.insert(0, str(SITE))
    import torch  # noqa: F401
    from hypothesis import Phase, settings

    # Failing cases are not shrunk: only the failure matters.
    settings.register_profile("mutations", phases=[Phase.generate], deadline=None)
    settings.load_profile("mutations")


def passes_unchanged(chosen: list[Mutation]) -> bool:
    for by_pytest in (True, False):
        tests = sorted({test for mutation in chosen if mutation.is_pytest == by_pytest for test in mutation.tests})
        if not tests:
            continue
        outcome = run(tuple(tests), WHOLE_LIMIT_SECONDS)
        if outcome.code != 0 or " 0 tests from" in outcome.text:
            print(outcome.text, f"\nwithout a mutation, these do not pass ({outcome.how}): {tests}", file=sys.stderr)
            return False
        print(f"without a mutation {len(tests)} {'Python' if by_pytest else 'C++'} tests pass", flush=True)
    return True


def verdict_of(mutation: Mutation, jobs: int) -> tuple[str, Outcome]:
    path = COPY / mutation.file
    clean = path.read_text()
    path.write_text(mutation.apply(clean))
    try:
        begin = time.monotonic()
        error = build(["_C" if mutation.is_pytest else "graft_tests"], jobs)
        if error is not None:
            return "does not build", Outcome(2, error, time.monotonic() - begin)
        outcome = run(mutation.tests)
        if outcome.code != 0 and not outcome.failed:
            return "error", outcome
        return "caught" if outcome.failed else "MISSED", outcome
    finally:
        path.write_text(clean)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names of mutations, with commas between them; all without it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("cmake", nargs="*", help="more options for CMake")
    options = parser.parse_args()
    mutations = {mutation.name: mutation for mutation in load()}
    names = [name for name in options.only.split(",") if name] or list(mutations)
    unknown = [name for name in names if name not in mutations]
    if unknown:
        print(f"no mutation is named '{unknown[0]}'; there are: {', '.join(mutations)}", file=sys.stderr)
        return 2
    # Mutations of one file in a row: the restored file is then compiled together with the next mutation.
    chosen = sorted((mutations[name] for name in names), key=lambda mutation: mutation.file)

    print(f"copying the tree to {COPY.relative_to(ROOT)} and building it", flush=True)
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree()
    configure(options.cmake)
    error = build(["graft_tests", "_C"], options.jobs)
    if error is not None:
        print(error, file=sys.stderr)
        return 1
    make_package()
    prepare_python()
    if not passes_unchanged(chosen):
        return 1

    counts: collections.Counter[str] = collections.Counter()
    for i, mutation in enumerate(chosen, 1):
        begin = time.monotonic()
        verdict, outcome = verdict_of(mutation, options.jobs)
        counts[verdict] += 1
        took = f"{outcome.how}, tests {outcome.seconds:.1f} s of {time.monotonic() - begin:.1f} s"
        print(f"{i:3}/{len(chosen)}  {verdict:7} {mutation.name:40} {' '.join(mutation.tests)}  ({took})", flush=True)
        if verdict != "caught":
            print(outcome.text[-4000:], file=sys.stderr)
    print(f"{len(chosen)} mutations: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 0 if counts["caught"] == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
