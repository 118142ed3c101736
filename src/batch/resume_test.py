"""A run that ends at any moment goes on later, and its output is that of a run that did not end."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

from batches import batch, command, errors, files, good, read, write_rows

WORDS = "Once upon a time there was a little girl called Lily who liked to play outside in the sun with her dog".split()
GENERATE = "--task", "generate", "--set", "max_tokens=4", "--set", "temperature=1", "--rows", 4


def story_rows(count: int) -> list:
    """One in fifty is none."""
    chosen = random.Random(count)
    rows: list = [{"text": " ".join(chosen.choices(WORDS, k=chosen.randrange(1, 12))), "id": i} for i in range(count)]
    for i in range(7, count, 50):
        rows[i] = ['{"text"', {"id": i}, {"text": 5}][i // 50 % 3]
    return rows


def killed_run(model, rows, out, args, kills: int, seed: int, whole: float, start: float) -> tuple[int, int]:
    """Starts until the run ends, killing the first `kills` starts at random moments; how many of these kills came in
    time, and how many times the run had written something new by then."""
    chosen, landed, moved, before = random.Random(seed), 0, 0, 0
    for _ in range(kills):
        process = subprocess.Popen(command(model, rows, out, *args, "--resume"), stderr=subprocess.DEVNULL)
        time.sleep(chosen.uniform(0, start + 2 * whole / kills))
        process.kill()
        landed += process.wait() == -signal.SIGKILL
        now = len(list(out.glob("part-*"))) if out.exists() else 0
        moved += now > before
        before = now
    return landed, moved


def check_killed(model, rows, tmp_path, args, kills: int) -> str:
    begun = time.monotonic()
    good(model, rows, tmp_path / "whole", *args)
    whole = time.monotonic() - begun
    first = tmp_path / "first.jsonl"
    first.write_text(rows.read_text().split("\n")[0] + "\n")
    begun = time.monotonic()
    good(model, first, tmp_path / "first", *args)
    start = time.monotonic() - begun
    landed, moved = killed_run(model, rows, tmp_path / "killed", args, kills, 1, whole, start)
    done = batch(model, rows, tmp_path / "killed", *args, "--resume")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    manifest = json.loads((tmp_path / "killed" / "manifest.json").read_text())
    assert manifest["complete"] and sum(shard["rows"] for shard in manifest["shards"]) == rows.read_text().count("\n")
    assert landed >= kills // 2 and moved > 0
    return f"{kills} kills, {landed} before the end, {moved} after new files; one run {whole:.1f} s, its start {start:.1f} s"


def test_kills(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(400))
    print(check_killed(stories, rows, tmp_path, (*GENERATE, "--shard-rows", 20), 5))
    assert len(read(tmp_path / "whole")) == 392 and len(errors(tmp_path / "whole")) == 8


@pytest.mark.slow
@pytest.mark.parametrize("task", ["generate", "method"])
def test_100_000_rows_and_20_kills(request, tmp_path, task):
    if task == "generate":
        rows = write_rows(tmp_path / "rows.jsonl", story_rows(100_000))
        said = check_killed(request.getfixturevalue("stories"), rows, tmp_path, (*GENERATE, "--shard-rows", 500), 20)
    else:
        chosen = random.Random(0)
        given = [{"x": [chosen.uniform(-2, 2) for _ in range(4)], "ids": [i] * (2 + i % 7), "n": i % 2} for i in range(100_000)]
        rows = write_rows(tmp_path / "rows.jsonl", given)
        package = request.getfixturevalue("net")[1]
        said = check_killed(package, rows, tmp_path, ("--task", "method", "--column", "input_2=n", "--shard-rows", 500), 20)
    print(f"KILLS {task} | {said}")


def test_a_run_that_is_complete(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(60))
    good(stories, rows, tmp_path / "out", *GENERATE)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    done = batch(stories, rows, tmp_path / "out", *GENERATE, "--resume")
    assert done.returncode == 0 and "60 rows, 2 of them errors; 60 were computed before" in done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")} == before
    # Threads and rows side by side change nothing, and are no other run.
    assert batch(stories, rows, tmp_path / "out", *GENERATE[:-1], 2, "--threads", 1, "--resume").returncode == 0


def test_another_run_is_refused(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(30))
    out = tmp_path / "out"
    good(stories, rows, out, *GENERATE)
    before = files(out)
    other_rows = write_rows(tmp_path / "other.jsonl", story_rows(31))
    other_model = shutil.copy(stories, tmp_path / "stories.pte")
    with open(other_model, "ab") as file:
        file.write(b"x")
    for model, given, args, message in (
        (stories, rows, GENERATE, "is not empty: --resume continues the run that wrote to it"),
        (stories, other_rows, (*GENERATE, "--resume"), "the input is another one: bytes ("),
        (other_model, rows, (*GENERATE, "--resume"), "the model is another one: package ("),
        (stories, rows, (*GENERATE, "--set", "seed=1", "--resume"), "the options are others: set ("),
        (stories, rows, (*GENERATE, "--shard-rows", 5, "--resume"), "shard_rows (1000, now 5)"),
    ):
        done = batch(model, given, out, *args)
        assert done.returncode == 1 and message in done.stderr, done.stderr
        assert files(out) == before
    moved = shutil.copy(rows, tmp_path / "moved.jsonl")
    assert batch(stories, moved, out, *GENERATE, "--resume").returncode == 0, "the same rows at another place"


def test_a_file_that_is_gone_is_made_again(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(60))
    args = *GENERATE, "--shard-rows", 10
    out = tmp_path / "out"
    good(stories, rows, out, *args)
    before = files(out)
    (out / "part-00002.jsonl").unlink()
    (out / "errors-00005.jsonl").unlink()
    assert batch(stories, rows, out, *args, "--resume").returncode == 0 and files(out) == before
    with open(out / "part-00003.jsonl", "a") as file:
        file.write("x\n")
    done = batch(stories, rows, out, *args, "--resume")
    assert done.returncode == 1 and "part-00003.jsonl' is not as 'manifest.json' says" in done.stderr
    (out / "manifest.json").write_text("{")
    done = batch(stories, rows, out, *args, "--resume")
    assert done.returncode == 1 and "is no manifest of graft batch" in done.stderr


def test_openai_answers_are_the_same_after_a_kill(stories, tmp_path):
    """But for the time that is in them: that of the run's begin."""
    given = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions",
         "body": {"model": "stories", "prompt": "Once upon a time " * (i % 3), "max_tokens": 3, "temperature": 1.5}}
        for i in range(60)
    ]  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", given)
    args = "--task", "openai", "--shard-rows", 10, "--rows", 4
    whole = good(stories, rows, tmp_path / "whole", *args)
    out = tmp_path / "out"
    process = subprocess.Popen(command(stories, rows, out, *args), stderr=subprocess.DEVNULL)
    while not (out / "part-00001.jsonl").exists() and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()
    created = json.loads((out / "manifest.json").read_text())["created"]
    resumed = good(stories, rows, out, *args, "--resume")
    assert {line["response"]["body"].pop("created") for line in resumed} == {created}
    for line in whole:
        del line["response"]["body"]["created"]
    assert resumed == whole and len({line["response"]["body"]["choices"][0]["text"] for line in whole}) > 20


def test_a_full_disk(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text["text"] * n} for n, text in
                                                zip([1] * 20 + [18] * 20, story_rows(6)[:5] * 8)])  # fmt: skip
    args = *GENERATE, "--shard-rows", 10
    good(stories, rows, tmp_path / "whole", *args)
    out = tmp_path / "out"
    sizes = [path.stat().st_size for path in sorted((tmp_path / "whole").glob("part-*"))]
    assert max(sizes[:2]) < 3000 < min(sizes[2:]), sizes
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))}
    quiet = ["sh", "-c", 'trap "" XFSZ; exec "$0" "$@"']
    done = subprocess.run([*quiet, *command(stories, rows, out, *args)], capture_output=True, text=True, timeout=600, **limits)
    assert done.returncode == 1 and "cannot write '" in done.stderr and "File too large" in done.stderr, done.stderr
    assert sorted(files(out)) == ["part-00000.jsonl", "part-00001.jsonl"]
    done = batch(stories, rows, out, *args, "--resume")
    assert done.returncode == 0 and "20 were computed before" in done.stderr
    assert files(out) == files(tmp_path / "whole")


def test_an_input_that_changes_meanwhile(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(3000))
    process = subprocess.Popen(
        command(stories, rows, tmp_path / "out", *GENERATE, "--shard-rows", 20), stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "out" / "part-00000.jsonl").exists():
        time.sleep(0.01)
    with open(rows, "a") as file:
        file.write('{"text": "more"}\n')
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "was changed while it was read" in said


def test_one_run_at_a_time(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(3000))
    first = subprocess.Popen(command(stories, rows, tmp_path / "out", *GENERATE), stderr=subprocess.DEVNULL)
    while not (tmp_path / "out" / "manifest.json").exists():
        time.sleep(0.01)
    done = batch(stories, rows, tmp_path / "out", *GENERATE, "--resume")
    first.kill()
    first.wait()
    assert done.returncode == 1 and "another process writes to the folder" in done.stderr


@pytest.mark.parametrize("where", ["file", "no rights"])
def test_a_folder_that_cannot_be_written(stories, tmp_path, where):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(5))
    if where == "no rights":
        out = "/proc/batch"
    else:
        out = tmp_path / "out"
        out.write_text("")
    done = batch(stories, rows, out, *GENERATE)
    assert done.returncode == 1 and str(out) in done.stderr


def test_a_bar_on_a_terminal(stories, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", story_rows(1500))
    read_end, write_end = os.openpty()
    process = subprocess.Popen(command(stories, rows, tmp_path / "out", *GENERATE), stderr=write_end)
    os.close(write_end)
    said = b""
    try:
        while part := os.read(read_end, 4096):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(read_end)
    assert process.wait(60) == 0
    assert said.count(b"\r") > 2 and b"rows/s, 0:" in said and b"/1500 rows" in said and b"[#" in said
