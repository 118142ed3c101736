"""The Containerfile keeps what an image for a server needs: test/containerfile.py runs its steps in `make clean-check`."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("containerfile", ROOT / "test" / "containerfile.py")
containerfile = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(containerfile)
STEPS = containerfile.instructions(containerfile.CONTAINERFILE.read_text())


def arguments(name):
    return [value for key, value in STEPS if key == name]


def test_base_is_a_slim_debian_of_a_named_release():
    assert len(arguments("FROM")) == 1
    assert re.fullmatch(r"docker\.io/library/debian:[a-z]+-slim", arguments("FROM")[0])


def test_the_server_runs_as_a_user_without_rights():
    (user,) = arguments("USER")
    uid, _, gid = user.partition(":")
    assert int(uid) > 999 and int(gid) > 999  # numbers, which runAsNonRoot of Kubernetes reads
    names = [name for name, _ in STEPS]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "RUN" not in names[names.index("USER") :]


def test_nothing_of_the_installation_stays():
    assert any("--no-install-recommends" in step and "rm -rf /var/lib/apt/lists/*" in step for step in arguments("RUN"))
    assert any("--no-cache-dir" in step and "rm -r /tmp/wheels" in step for step in arguments("RUN"))


def test_the_copied_wheel_is_what_make_wheels_writes():
    (copy,) = arguments("COPY")
    assert copy.split()[0].startswith("dist/wheels/graft-*-cp311-cp311-")
    assert "dist/wheels" in re.search(r"^wheels:.*\n\t@.*$", (ROOT / "Makefile").read_text(), re.M)[0]
    assert (ROOT / ".dockerignore").read_text().splitlines()[-2:] == ["*", "!dist/wheels/*.whl"]


def test_health_check_asks_the_port_that_the_server_listens_at():
    words = json.loads(arguments("ENTRYPOINT")[0])
    port = words[words.index("--port") + 1]
    assert arguments("EXPOSE") == [port]
    program, flag, code = containerfile.healthcheck(arguments("HEALTHCHECK")[0])
    assert (program, flag) == ("python3", "-c")
    ast.parse(code)
    assert f"http://127.0.0.1:{port}/health" in code


def test_an_unknown_instruction_is_named():
    with pytest.raises(ValueError, match="found ADD"):
        containerfile.instructions("FROM x\nADD a b\n")
