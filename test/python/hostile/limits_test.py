"""Limits of files of strangers, as Python and the command line set them; src/load/limits_test.cpp has the limits themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import graft

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "golden.pte"


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(100))

    def forward(self, x):
        self.kept.add_(x)
        return self.kept * 2


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return graft.export(Keeps(), (torch.ones(100),), path=tmp_path_factory.mktemp("limits") / "keeps.pte")


def found_by(limit: str, load) -> int:
    """What the error of a limit of 0 says that it found."""
    with pytest.raises(graft.Unsupported, match=rf"at most 0 are allowed \({limit}\)") as caught:
        load({limit: 0})
    return int(re.search(r"(\d+) ?(bytes|nodes|graphs)?[^\d]*, at most 0", str(caught.value)).group(1))


@pytest.mark.parametrize("limit", ["max_file_bytes", "max_nodes", "max_graph_calls", "max_state_bytes"])
def test_a_limit_of_a_load(package, limit):
    def load(options):
        return graft.load(package, options=graft.LoadOptions(**options))

    found = found_by(limit, load)
    assert found > 0
    assert torch.equal(load({limit: found})(torch.ones(100)), torch.full((100,), 2.0))
    with pytest.raises(graft.Unsupported, match=limit):
        load({limit: found - 1})
    with pytest.raises(graft.InvalidArgument, match=f"{limit} must not be negative, got -1"):
        load({limit: -1})


def test_limits_of_a_tokenizer():
    document = '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 9}}}'
    assert len(graft.Tokenizer.from_json(document, max_vocabulary=10)) == 10
    with pytest.raises(graft.Unsupported, match="has the id 9, at most 9 ids are allowed .max_vocabulary"):
        graft.Tokenizer.from_json(document, max_vocabulary=9)
    short = graft.Tokenizer.from_json(document, max_template_bytes=3, max_template_steps=50)
    assert short.apply_chat_template([], chat_template="abc") == "abc"
    with pytest.raises(graft.InvalidArgument, match="has 4 bytes, at most 3 are allowed .max_template_bytes"):
        short.apply_chat_template([], chat_template="abcd")
    assert short.apply_chat_template([], chat_template="{% for i in range(5) %}{% endfor %}") == ""
    with pytest.raises(graft.InvalidArgument, match="at most 50 are allowed .max_template_steps"):
        short.apply_chat_template([], chat_template="{% for i in range(99) %}{% if i %}{% endif %}{% endfor %}")


def graft_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "graft", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "GRAFT_LOG": ""})


def test_limits_of_the_command_line(package, tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}'
    )
    tokenizer = tmp_path / "tokenizer.json"
    for arguments, limit in [
        (("inspect", package), "max-file-bytes"),
        (("inspect", package), "max-nodes"),
        (("inspect", package), "max-graph-calls"),
        (("inspect", package), "max-state-bytes"),
        (("tokenize", tokenizer, "a"), "max-vocabulary"),
    ]:
        assert graft_command(*arguments).returncode == 0
        refused = graft_command(*arguments, f"--{limit}", 0)
        assert refused.returncode == 1, refused
        assert limit.replace("-", "_") in refused.stderr and refused.stderr.count("\n") == 1
        assert graft_command(*arguments, f"--{limit}", 1 << 30).returncode == 0
    assert graft_command("inspect", package, "--no-map").returncode == 0


def test_arrays_that_take_much_more_than_their_file(tmp_path):
    """100 times the file, and 64 MiB in any case."""
    class Sums(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    count = 17 << 20  # 68 MiB of zeros
    package = graft.export(Sums(), (torch.zeros(count),), path=tmp_path / "sums.pte")
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(count, np.float32))
    np.savez(tmp_path / "plain.npz", x=np.zeros(count, np.float32))
    refused = graft_command("run", package, "--inputs", tmp_path / "zeros.npz")
    assert refused.returncode == 1 and "at most 100 are allowed (--max-zip-ratio)" in refused.stderr, refused
    for more in (("plain.npz",), ("zeros.npz", "--max-zip-ratio", 1100)):
        done = graft_command("run", package, "--inputs", tmp_path / more[0], *more[1:])
        assert done.returncode == 0, done


def test_a_file_that_is_read_in_may_be_truncated(package, tmp_path):
    path = tmp_path / "copy.pte"
    path.write_bytes(GOLDEN.read_bytes())
    call = torch.randint(0, 20, (2, 5)), torch.ones(2, 5, dtype=torch.int64)
    expected = graft.load(GOLDEN).encode(*call)["pooled"]
    loaded = graft.load(path, options=graft.LoadOptions(map=False))
    os.truncate(path, 0)
    assert torch.equal(loaded.encode(*call)["pooled"], expected)
