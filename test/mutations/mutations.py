"""The mutations of the engine: known bugs that the tests must notice.

Each `*.toml` file beside this one holds a list of tables:

    [[mutation]]
    name = "..."
    file = "src/..."      # the source that is changed
    find = '...'          # its text, which must occur exactly once
    replace = '...'       # what a careless author would have written
    tests = ["..."]       # the tests that must fail: pytest nodes, or names of C++ tests

`make mutations` (run.py) applies one after the other to a copy of the tree. `mutations_test.py` asserts in `make test`
that all of them still apply.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """The source with the bug in it."""
        count = text.count(self.find)
        if count != 1:
            raise ValueError(f"mutation '{self.name}': its text must occur once in {self.file}, found {count} times")
        if self.find == self.replace:
            raise ValueError(f"mutation '{self.name}' changes nothing")
        return text.replace(self.find, self.replace)

    @property
    def is_pytest(self) -> bool:
        return "::" in self.tests[0]


def load(folder: Path = Path(__file__).parent) -> list[Mutation]:
    """All mutations of a folder, in the order of its files."""
    found = [
        Mutation(**{**table, "tests": tuple(table["tests"])})
        for path in sorted(folder.glob("*.toml"))
        for table in tomllib.loads(path.read_text())["mutation"]
    ]
    names = [mutation.name for mutation in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two mutations are named '{twice[0]}'")
    return found


def missing_tests(mutations: list[Mutation], root: Path = ROOT) -> list[str]:
    """The tests that a mutation names and the tree lacks."""
    cpp = "".join(path.read_text() for path in (root / "src").rglob("*_test.cpp"))
    cpp_tests = {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", cpp)}
    missing = []
    for test in dict.fromkeys(test for mutation in mutations for test in mutation.tests):
        if "::" not in test:
            # A test with parameters is "Instances/Suite.Name/*".
            there = any(part in cpp_tests for part in test.split("/"))
        else:
            file, name = test.split("::")
            path = root / file
            function = rf"^\s*(async )?def {re.escape(name.split('[')[0])}\("
            there = path.exists() and re.search(function, path.read_text(), re.MULTILINE) is not None
        if not there:
            missing.append(test)
    return missing
