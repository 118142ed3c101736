"""Stages on two hosts, which are network namespaces with a cable between them: the bits of one process, and a cable that is
pulled and put back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import graft
import serving
import stages

SECRET = "a secret of the tests"
_DRIVER = """
import json, sys, time
import graft
package, address, secret = sys.argv[1:]
def say(**what): print(json.dumps(what), flush=True)
generator = graft.TextGenerator(package, stages=[address], secret=secret, threads=1)
options = dict(max_new_tokens=24)
say(tokens=generator.generate("Once", **options).tokens)
sys.stdin.readline()
say(tokens=generator.generate("Once", **options).tokens)
try:
    generator.generate("Once upon", max_new_tokens=400, on_text=lambda text: say(begun=True))
    say(error="none")
except graft.Unavailable as e:
    say(error=str(e))
sys.stdin.readline()
for attempt in range(100):  # a cable takes a moment
    try:
        say(tokens=generator.generate("Once", **options).tokens)
        break
    except graft.Unavailable:
        time.sleep(0.1)
"""


class Host:
    """A network namespace with one device, `cable`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.enter = ["nsenter", "--target", str(self.process.pid), "--net"]

    def ip(self, *args: object) -> None:
        subprocess.run([*self.enter, "ip", *map(str, args)], check=True, capture_output=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: two hosts are network namespaces")
    made: list[Host] = []
    try:
        if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
            pytest.skip("may not make network namespaces")
        made += [Host(), Host()]
        try:
            made[0].ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", made[1].process.pid)
        except subprocess.CalledProcessError as e:
            pytest.skip(f"no veth devices: {e.stderr.decode().strip()}")
        for number, host in enumerate(made, 1):
            host.ip("address", "add", f"10.77.0.{number}/24", "dev", "cable")
            host.ip("link", "set", "cable", "up")
        yield made
    finally:
        for host in made:
            host.end()


def test_two_hosts_and_a_pulled_cable(hosts: list[Host], tmp_path: Path) -> None:
    whole = serving.export_stories(tmp_path)
    first = graft.export_llm(tmp_path / "stories", tmp_path / "cut.pte", stages=2)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    expected = graft.TextGenerator(whole, threads=1).generate("Once", max_new_tokens=24).tokens
    package = first.with_name("cut.stage1.pte")
    with stages.Worker(package, "10.77.0.2:0", "--secret-file", secret, launcher=hosts[1].enter) as worker:
        command = [*hosts[0].enter, sys.executable, "-c", _DRIVER, str(first), worker.address, SECRET]
        driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def said() -> dict:
            return json.loads(driver.stdout.readline())

        def go_on() -> None:
            driver.stdin.write("\n")
            driver.stdin.flush()

        try:
            assert said()["tokens"] == expected
            go_on()
            assert said()["tokens"] == expected
            assert said() == {"begun": True}
            hosts[1].ip("link", "set", "cable", "down")
            while "begun" in (last := said()):
                pass
            assert worker.address in last["error"]
            hosts[1].ip("link", "set", "cable", "up")
            go_on()
            assert said()["tokens"] == expected
            assert driver.wait(serving.PATIENCE) == 0
        finally:
            driver.kill()
            driver.wait()
