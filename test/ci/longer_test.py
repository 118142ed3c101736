"""The slices of the longer tests: together they are all of them, and each ends as its command does."""

import re
import subprocess
import sys
from collections import Counter

import longer
import pytest


def _parts(*, of_one_file):
    commands = [each.command for each in longer.SLICES if any(word.startswith("--part=") for word in each.command)]
    return [command for command in commands if (longer.POPULATION in command) == of_one_file]


def _numbers(parts):
    return sorted(word.removeprefix("--part=") for command in parts for word in command if word.startswith("--part="))


def test_each_slow_test_is_in_one_part():
    assert _numbers(_parts(of_one_file=False)) == [f"{i}/{longer.PARTS}" for i in range(1, longer.PARTS + 1)]
    assert _numbers(_parts(of_one_file=True)) == ["1/2", "2/2"]
    names = [f"test/python/some_test.py::test_{i}[{i * i}]" for i in range(1000)]
    counts = Counter(part for name in names for part in range(1, 5) if longer.in_part(name, part, 4))
    assert counts.total() == len(names) and min(counts.values()) > 150


def test_files_that_parts_leave_out_have_a_slice():
    for file in longer.WHOLE:
        assert (longer.ROOT / file).is_file()
        assert sum(file in each.command for each in longer.SLICES) == (2 if file == longer.POPULATION else 1)
        assert all(f"--ignore={file}" in command for command in _parts(of_one_file=False))


@pytest.mark.parametrize(
    ("code", "seconds", "status"),
    [("pass", None, 0), ("raise SystemExit(3)", 60, 3), ("import time; time.sleep(600)", 1, None)],
)
def test_how_a_slice_ends(code, seconds, status):
    assert longer.run(longer.Slice("a test", (sys.executable, "-c", code)), seconds) == status


def test_what_comes_before_a_slice():
    fails, passes = ((sys.executable, "-c", f"raise SystemExit({status})") for status in (3, 0))
    assert longer.run(longer.Slice("a test", passes, fails), 60) == 3
    assert longer.run(longer.Slice("a test", fails, passes), 60) == 3
    assert longer.run(longer.Slice("a test", passes, passes), 60) == 0


def test_all_commands_are_there():
    commands = [command for each in (*longer.SLICES, *longer.SEARCHES) for command in (each.before, each.command)]
    makes = [command for command in commands if command and command[0] == "make"]
    assert len(makes) > 8
    for command in makes:
        subprocess.run([*command, "-n"], cwd=longer.ROOT, check=True, capture_output=True)


def test_a_search_begins_only_where_time_is_left():
    fails = longer.Slice("a search", (sys.executable, "-c", "raise SystemExit(3)"), needs=60)
    assert longer.search(fails, 59) == 0
    assert longer.search(fails, 61) == 3
    assert longer.search(fails, None) == 3
    endless = longer.Slice("a search", (sys.executable, "-c", "import time; time.sleep(600)"))
    assert longer.search(endless, 1) == 1


def test_searches_cover_every_kind_of_file():
    kinds = re.search(r"kinds=\$\{\*:-(.*)\}", (longer.ROOT / "test" / "fuzz" / "run.sh").read_text())
    chosen = [word.removeprefix("FUZZ=").split() for s in longer.SEARCHES for word in s.command if word.startswith("FUZZ=")]
    assert kinds and sorted(kinds[1].split()) == sorted(sum(chosen, []))


def test_the_landing_is_a_number():
    assert int((longer.ROOT / ".ci" / "landing").read_text()) > 0
