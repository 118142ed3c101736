"""A model in stages as processes of a cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import graft
import graft.ray


def ask(url, prompt, **fields):
    body = json.dumps({"prompt": prompt, "max_tokens": 20, "temperature": 0, **fields}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["choices"][0]["text"]
        except urllib.error.HTTPError as error:
            assert error.code in (404, 503), error.read()  # the model is being loaded, or a stage is not back
            time.sleep(0.1)
    raise AssertionError("no answer")


def pids(name):
    return [int(pid) for pid in subprocess.run(["pgrep", "-f", name], capture_output=True, text=True).stdout.split()]


def test_a_model_in_stages_over_nodes(stories, cluster):
    first = graft.export_llm(stories.parent / "stories", stories.with_name("cut.pte"), stages=3)
    server = graft.ray.StagedServer(first, stages=3, arguments=["--rows", "2"])
    try:
        expected = graft.TextGenerator(stories, threads=1).generate("Once upon a time", max_new_tokens=20).text
        assert ask(server.url, "Once upon a time") == expected
        # Through another node would be TCP; nodes of this cluster are one host.
        [stage] = [pid for pid in pids("graft stage .*cut.stage2.pte") if "graft" in os.readlink(f"/proc/{pid}/exe")]
        os.kill(stage, signal.SIGKILL)
        assert ask(server.url, "Once upon a time") == expected
    finally:
        server.stop()
    assert [pid for pid in pids("cut.stage[012].pte") if "graft" in os.readlink(f"/proc/{pid}/exe")] == []


@pytest.mark.parametrize(
    ("package", "options", "text"),
    [
        ("model.pte", {"stages": 2}, "the first stage, FILE.stage0.pte, was expected"),
        ("model.stage0.pte", {"stages": 1}, "stages must be at least 2"),
        ("model.stage0.pte", {"stages": 2, "num_cpus": 0.5}, "num_cpus must be whole"),
    ],
)
def test_what_cannot_be(package, options, text):
    with pytest.raises(graft.InvalidArgument, match=re.escape(text)):
        graft.ray.StagedServer(package, **options)
