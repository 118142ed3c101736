"""`graft export` as a person calls it: the C++ program, which starts the Python beside it. What that Python then says of
mistakes is looked at in this process, where everything is imported already."""

import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import graft
import llm_models
from graft.llm import cli


def binary():
    path = os.environ.get("GRAFT_CLI") or Path(sys.executable).parent / "graft"
    if not Path(path).exists():
        pytest.skip(f"no command line at {path}: make build")
    return str(path)


def call(*args, **settings):
    settings = {"capture_output": True, "text": True, **settings}
    return subprocess.run([binary(), "export", *map(str, args)], **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "model"
    llm_models.BY_NAME["qwen3"].make().save_pretrained(path)
    return path


def test_export(tmp_path, folder):
    done = call(folder, "-o", tmp_path / "m.pte", "--weights", "external", "--context", 100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["reading", "tracing", "writing"]
    model = graft.load(tmp_path / "m.pte", kv_length=100)
    assert model.step.info["inputs"][0]["name"] == "input_ids"


def test_a_name_on_the_hub(tmp_path, folder):
    """From the local cache, which is all there is offline."""
    cache = tmp_path / "hub" / "models--graft--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    (cache / "snapshots").mkdir()
    shutil.copytree(folder, cache / "snapshots" / ("0" * 40))
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = call("graft/tiny", "-o", tmp_path / "m.pte", env=env)
    assert done.returncode == 0, done.stderr
    missing = call("graft/none", "-o", tmp_path / "n.pte", env=env)
    assert missing.returncode == 1 and "'graft/none' is no folder" in missing.stderr.splitlines()[-1], missing.stderr


def check_mistake(code, stderr, expected, message, tmp_path):
    assert code == expected, stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("graft: ") and message in last, stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["MODEL", "-o", "m.bin"], "expected a path that ends in .pte, found 'm.bin'"),
        (["MODEL"], "required: -o/--output"),
        (["MODEL", "-o", "m.pte", "--keep", "lm_head"], "--keep: expected NAME=TYPE, found 'lm_head'"),
        (["MODEL", "-o", "m.pte", "--weight", "package"], "unrecognized arguments: --weight package"),
    ],
)
def test_wrong_arguments(folder, tmp_path, args, message):
    done = call(*[folder if word == "MODEL" else word for word in args], cwd=tmp_path)
    check_mistake(done.returncode, done.stderr, 2, message, tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.gguf", "-o", "m.pte"], "there is no folder or GGUF file 'nowhere.gguf'"),
        (["MODEL", "-o", "/proc/none/m.pte"], "/proc/none"),
        (["MODEL", "-o", "m.pte", "--plan", "tokens=1"], "one of the dimensions seq, batch, kept, found 'tokens'"),
        (["MODEL", "-o", "m.pte", "--plan", "seq=0"], "expected sizes of seq from 1 to 512, found '0'"),
        (["MODEL", "-o", "m.pte", "--plan", "seq"], "expected NAME=SIZES such as seq=1,128, found 'seq'"),
    ],
)
def test_mistakes(folder, tmp_path, capfd, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")  # or it would stay set
    with warnings.catch_warnings():
        try:
            code = cli.main([str(folder) if word == "MODEL" else word for word in args])
        finally:
            logging.disable(logging.NOTSET)
    check_mistake(code, capfd.readouterr().err, 1, message, tmp_path)


def test_no_room_for_the_package(folder, tmp_path):
    """A limit on the size of files fails as a full disk does, in the middle of the write."""
    (tmp_path / "m.pte").write_bytes(b"before")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = call(folder, "-o", tmp_path / "m.pte", preexec_fn=limited)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("graft: ") and "File too large" in done.stderr, done.stderr
    assert (tmp_path / "m.pte").read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["m.pte"]


def test_interrupted(folder, tmp_path):
    command = [binary(), "export", folder, "-o", tmp_path / "m.pte"]
    # Tests started in the background may ignore the signal, and a child process would inherit that.
    heeding = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeding) as run:
        for line in run.stderr:
            if "tracing" in line:
                break
        time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
    assert run.returncode == 130, rest
    assert rest.splitlines()[-1] == "graft: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_without_python(tmp_path):
    alone = tmp_path / "graft"
    alone.write_bytes(Path(binary()).read_bytes())
    alone.chmod(0o755)
    libraries = str(Path(graft.__file__).parent / "lib")
    done = subprocess.run(
        [alone, "export", "x", "-o", "y.pte"], capture_output=True, text=True, env={"LD_LIBRARY_PATH": libraries}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("graft: export needs Python with the package graft"), done.stderr
