"""Prompts that begin as earlier ones did: their keys and values are found, in whichever row, and after a restart."""

from __future__ import annotations

import concurrent.futures
import http.client
import os
import random
import resource
import signal
import subprocess
import time

import pytest

from serving import Server, binary

WORDS = "Once upon a time there was a little girl called Lily who liked to play outside in the sun with her dog".split()


def prompt(number: int) -> str:
    """Of about 100 tokens, that no other number has."""
    return " ".join(WORDS[(i * (number + 3)) % len(WORDS)] for i in range(60))


def ask(server, text: str, headers: dict | None = None) -> tuple[str, int]:
    """The text that follows, and how many tokens of the prompt were not computed."""
    status, answer = server.post(
        "/v1/completions", {"prompt": text, "max_tokens": 20, "temperature": 0}, headers=headers
    )
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_texts_are_those_of_a_cold_cache(stories):
    with Server(stories, "--rows", 2, "--prefix-cache-bytes", 0) as cold:
        expected = [ask(cold, prompt(i))[0] for i in range(10)]
        assert cold.gauge("graft_prefix_cache_bytes") == 0
    with Server(stories, "--rows", 2) as warm:
        first = [ask(warm, prompt(i)) for i in range(10)]
        second = [ask(warm, prompt(i)) for i in range(10)]
        assert warm.gauge("graft_prefix_cache_bytes") > 0
    assert [text for text, _ in first] == [text for text, _ in second] == expected
    assert all(cached >= 64 for _, cached in second)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
def test_numbers_do_not_depend_on_how_much_was_cached(stories, kv_type):
    """A prompt after every other one that shares its first tokens: log-probabilities have the bits of a cold cache."""
    draw = random.Random(1)
    ids = [draw.randrange(3, 500) for _ in range(90)]
    with Server(stories, "--rows", 1, "--prefix-cache-bytes", 0, "--kv-type", kv_type) as server:

        def numbers() -> tuple[dict, int]:
            answer = server.complete(ids, max_tokens=4, temperature=0, logprobs=3, ignore_eos=True)
            return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        cold, cached = numbers()
        assert cached == 0
        for shared in range(1, 90):
            server.complete(ids[:shared] + [2] * (90 - shared), max_tokens=1)
            assert numbers() == (cold, shared)


def test_a_cache_that_is_too_small_for_all(stories):
    with Server(stories, "--rows", 1, "--prefix-cache-bytes", 1_000_000) as server:
        first = [ask(server, prompt(i))[0] for i in range(30)]
        assert server.gauge("graft_prefix_cache_evictions_total") > 0
        assert 0 < server.gauge("graft_prefix_cache_bytes") <= 1_000_000
        assert [ask(server, prompt(i))[0] for i in range(30)] == first


def test_a_key_does_not_find_what_another_asked(stories, tmp_path):
    (tmp_path / "keys").write_text("one\ntwo\n")
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    args = stories, "--rows", 1, "--api-keys", tmp_path / "keys", "--prefix-cache-file", tmp_path / "prefixes"
    with Server(*args) as server:
        text, _ = ask(server, prompt(1), one)
        ask(server, prompt(2), one)
        assert ask(server, prompt(1), two) == (text, 0)
    (tmp_path / "keys").write_text("three\none\n")
    with Server(*args) as server:
        assert ask(server, prompt(1), {"Authorization": "Bearer three"}) == (text, 0)
        found = ask(server, prompt(1), one)
        assert found[0] == text and found[1] >= 64


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_file_serves_the_next_start(stories, tmp_path, kill):
    args = stories, "--rows", 2, "--prefix-cache-file", tmp_path / "prefixes"
    server = Server(*args)
    server.wait_for(lambda: server.get("/health")[0] == 200)
    first = [ask(server, prompt(i))[0] for i in range(5)]
    server.process.send_signal(kill)
    server.process.wait(60)
    assert oct(os.stat(tmp_path / "prefixes").st_mode & 0o777) == "0o600"
    with Server(*args) as again:
        second = [ask(again, prompt(i)) for i in range(5)]
        assert again.gauge("graft_prefix_cache_damaged_total") == 0
    assert [text for text, _ in second] == first
    assert all(cached >= 64 for _, cached in second)


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_a_file_of_servers_that_are_killed(stories, tmp_path, kills):
    """At any time: every answer before and after is the right one."""
    with Server(stories, "--rows", 2, "--prefix-cache-bytes", 0) as cold:
        expected = [ask(cold, prompt(i))[0] for i in range(12)]
    file, chosen, right, damaged = tmp_path / "prefixes", random.Random(1), 0, 0

    def ask_on(server: Server, numbers: list[int]) -> int:
        answers = 0
        for i in numbers:
            try:
                text, _ = ask(server, prompt(i))
            except (OSError, http.client.HTTPException):
                break
            assert text == expected[i]
            answers += 1
        return answers

    for _ in range(kills):
        server = Server(stories, "--rows", 2, "--prefix-cache-file", file, "--prefix-cache-bytes", 3_000_000)
        server.wait_for(lambda: server.get("/health")[0] == 200)  # noqa: B023
        with concurrent.futures.ThreadPoolExecutor() as threads:
            clients = [threads.submit(ask_on, server, chosen.sample(range(12), 12)) for _ in range(2)]
            time.sleep(chosen.random() * 0.15)
            server.process.kill()
            right += sum(client.result() for client in clients)
        server.process.wait(60)
        server.reader.join(60)
    with Server(stories, "--rows", 2, "--prefix-cache-file", file, "--prefix-cache-bytes", 3_000_000) as server:
        assert [ask(server, prompt(i))[0] for i in range(12)] == expected
        damaged = server.gauge("graft_prefix_cache_damaged_total")
    assert right > kills
    print(f"KILLS file of prefixes | {kills}: {right} answers before them, {damaged:.0f} damaged blocks at the end")


def test_a_full_disk_ends_the_keeping_and_nothing_else(stories, tmp_path):
    quiet = ["sh", "-c", 'trap "" XFSZ; exec "$0" "$@"']
    with Server(stories, "--rows", 1, "--prefix-cache-file", tmp_path / "prefixes", launcher=quiet) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        first = [ask(server, prompt(i))[0] for i in range(3)]
        assert [ask(server, prompt(i))[0] for i in range(3)] == first
        server.wait_for(lambda: any(line["event"] == "prefix_cache" for line in server.lines))
        (said,) = [line for line in server.lines if line["event"] == "prefix_cache"]
        assert said["level"] == "warning" and "cannot write the prefix cache" in said["error"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prefix-cache-bytes", 100), "has no room for a block of 64 tokens"),
        (("--prefix-cache-file", "/proc/none"), "cannot open the prefix cache"),
        (("--prefix-cache-file", "other=file"), "is not NAME=FILE with the name of a model"),
        (("--prefix-cache-bytes", -1), "--prefix-cache-bytes"),
    ],
)
def test_wrong_settings(stories, args, message):
    done = subprocess.run(
        [binary(), "serve", "--port", "0", str(stories), *map(str, args)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and message in done.stdout + done.stderr
