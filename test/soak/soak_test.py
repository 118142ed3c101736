"""The soak, some rounds of it; and that it notices what it is for."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import server_soak
import soak
import soak_models

BASE = soak.Held(heap=10 << 20, resident=90 << 20, objects=100_000, descriptors=9, threads=3, mappings=200)


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("soak")
    soak_models.make(folder)
    return folder


def test_rounds_give_the_same_results_and_hold_no_more(packages, tmp_path):
    done = subprocess.run(
        [sys.executable, soak.__file__, "--rounds", "40", "--packages", packages, "--folder", tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert "40 rounds" in done.stdout and "SOAK passed" in done.stdout


def test_a_server_gives_the_same_answers_and_holds_no_more(tmp_path):
    arguments = ["--rounds", "4", "--idle", "100", "--folder", tmp_path]
    done = subprocess.run([sys.executable, server_soak.__file__, *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert "4 rounds, 256 requests" in done.stdout and "SERVER SOAK passed" in done.stdout


def test_another_result_is_noticed(packages, tmp_path):
    work = soak.Soak(packages, tmp_path)
    work.same("x", 1)
    work.same("x", 1)
    with pytest.raises(SystemExit, match="x is not what it was"):
        work.same("x", 2)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(soak.Held)])
def test_what_grows_is_noticed(name):
    flat = [BASE] * 100
    assert soak.grown(flat) == []
    step = 3 * getattr(soak.ROOM, name) // 100 + 1
    rising = [dataclasses.replace(BASE, **{name: getattr(BASE, name) + i * step}) for i in range(100)]
    (found,) = soak.grown(rising)
    assert found.startswith(name)
