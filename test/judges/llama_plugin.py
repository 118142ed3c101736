"""Plugin of pytest for llama.cpp's tests of its server: leaves out what left_out.json says, and counts per file.

Where a test compares a text with what llama.cpp's own random numbers draw, this comparison alone is left out; the test
counts as one of "other text".
"""

from __future__ import annotations

import collections
import json
import sys
import types
from pathlib import Path

import pytest

LISTS = json.loads((Path(__file__).parent / "left_out.json").read_text())
COUNTS: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
REASONS: collections.Counter[str] = collections.Counter()
sys.modules.setdefault("wget", types.ModuleType("wget"))  # the tests import it, and nothing uses it here


def _is_listed(item: pytest.Item, names: list[str]) -> bool:
    """By file, function, or function[parameters]."""
    file = Path(item.location[0]).name
    return any(name in (file, f"{file}::{item.originalname}", f"{file}::{item.name}") for name in names)


def pytest_configure() -> None:
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)  # it loads what only the internet has
    utils.download_file = lambda url, output_file_path=None: url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason, names in LISTS["left_out"].items():
            if _is_listed(item, names):
                item.add_marker(pytest.mark.skip(reason=reason))
        item.other_text = _is_listed(item, LISTS["other_text"])


@pytest.fixture(autouse=True)
def _other_text(request, monkeypatch):
    if request.node.other_text:
        monkeypatch.setattr(request.module, "match_regex", lambda pattern, text: isinstance(text, str))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.other_text = getattr(item, "other_text", False)


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" or report.outcome != "passed":
        if report.when == "teardown" and report.outcome == "passed":
            return
        outcome = "other text" if report.outcome == "passed" and report.other_text else report.outcome
        if outcome == "skipped":
            REASONS[report.longrepr[2].removeprefix("Skipped: ")] += 1
        COUNTS[Path(report.nodeid.split("::")[0]).name][outcome] += 1


def pytest_terminal_summary(terminalreporter) -> None:
    columns = ("passed", "other text", "skipped", "failed")
    terminalreporter.write_line("| file | " + " | ".join(columns) + " |")
    for file, counts in sorted(COUNTS.items()):
        terminalreporter.write_line(f"| {file} | " + " | ".join(str(counts[c]) for c in columns) + " |")
    for reason, count in REASONS.most_common():
        terminalreporter.write_line(f"{count} left out: {reason}")
    total = sum(COUNTS.values(), collections.Counter())
    terminalreporter.write_line("| all | " + " | ".join(str(total[c]) for c in columns) + " |")
