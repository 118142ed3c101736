"""Files of sound through `graft batch`: what comes out is what the transcriber of the same package hears."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graft
from ctc_models import BY_NAME
from batches import batch, errors, files, good, read, write_rows
from speech_models import save_whisper, wav

TASK = "--task", "transcribe"
# Of the transcriber, as the server sets them.
FALLBACK = dict(
    temperatures=[0, 0.2, 0.4, 0.6, 0.8, 1],
    compression_ratio_threshold=2.4,
    logprob_threshold=-1,
    no_speech_threshold=0.6,
)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    save_whisper(folder / "whisper")
    return graft.export_llm(folder / "whisper", folder / "whisper.pte")


@pytest.fixture
def recordings(tmp_path) -> Path:
    folder = tmp_path / "recordings"
    (folder / "more").mkdir(parents=True)
    for i, name in enumerate(["b.wav", "a.wav", "more/c.wav", "z.wav"]):
        (folder / name).write_bytes(wav(0.4 + 0.9 * i, seed=i))
    (folder / "no sound.txt").write_text("some words")
    (folder / ".hidden").write_text("left out")
    return folder


def check(row: dict, transcriber: graft.Transcriber, path: Path, **options) -> None:
    found = transcriber(path, **{**FALLBACK, **options})
    assert row["transcript"] == found.text.strip() and row["language"] == found.language
    samples, rate = graft.load_audio(path)
    assert row["seconds"] == len(samples) / rate
    assert row["segments"] == [{"start": s.start, "end": s.end, "text": s.text} for s in found.segments]


def test_a_folder(whisper, recordings, tmp_path):
    rows = good(whisper, recordings, tmp_path / "out", *TASK)
    assert [row["path"] for row in rows] == ["a.wav", "b.wav", "more/c.wav", "z.wav"]
    transcriber = graft.Transcriber(whisper)
    for row in rows:
        check(row, transcriber, recordings / row["path"])
    (error,) = errors(tmp_path / "out")
    assert error["row"] == 3 and "WAV, FLAC" in error["error"]
    assert len({row["transcript"] for row in rows}) > 1, "these models hear something"


def test_rows_that_name_files(whisper, recordings, tmp_path):
    (tmp_path / "sub").mkdir()
    named = [{"id": 0, "file": "../recordings/a.wav"}, {"id": 1, "file": str(recordings / "z.wav")}, {"id": 2, "file": "gone.wav"}]
    rows = write_rows(tmp_path / "sub" / "rows.jsonl", named)
    args = *TASK, "--column", "path=file", "--set", 'language="de"', "--set", 'task="translate"'
    done = batch(whisper, rows, tmp_path / "bad", *args)
    assert done.returncode == 1 and "--set: unknown parameter 'language'" in done.stderr, "translations have none"
    found = good(whisper, rows, tmp_path / "out", *args[:6])
    assert [row["id"] for row in found] == [0, 1]
    transcriber = graft.Transcriber(whisper)
    for row in found:
        check(row, transcriber, tmp_path / "sub" / row["file"], language="de")
    (error,) = errors(tmp_path / "out")
    assert error["row"] == 2 and "gone.wav" in error["error"]


def test_a_folder_is_continued_as_it_was(whisper, recordings, tmp_path):
    out = tmp_path / "out"
    whole = good(whisper, recordings, out, *TASK, "--shard-rows", 2)
    before = files(out)
    (out / "part-00001.jsonl").unlink()
    assert good(whisper, recordings, out, *TASK, "--shard-rows", 2, "--resume") == whole and files(out) == before
    moved = tmp_path / "moved"
    recordings.rename(moved)
    assert batch(whisper, moved, out, *TASK, "--shard-rows", 2, "--resume").returncode == 0, "the same files elsewhere"
    (moved / "a.wav").write_bytes(wav(0.7, seed=9))
    done = batch(whisper, moved, out, *TASK, "--shard-rows", 2, "--resume")
    assert done.returncode == 1 and "the input is another one" in done.stderr
    (moved / "a.wav").rename(moved / "a2.wav")
    assert "the input is another one" in batch(whisper, moved, out, *TASK, "--shard-rows", 2, "--resume").stderr


def test_what_is_wrong(whisper, recordings, stories, tmp_path):
    cases = [
        (stories, recordings, TASK, "is no model of speech"),
        (whisper, recordings, (*TASK, "--set", "temperature=3"), "--set: "),
        (whisper, recordings, (*TASK, "--set", 'file="x"'), "--set cannot give 'file' to this task"),
        (whisper, recordings, ("--task", "openai"), "files of OpenAI's Batch API are JSON Lines"),
        (whisper, tmp_path / "nowhere", (*TASK, "--format", "jsonl"), "there is no file"),
        (stories, recordings, ("--task", "generate"), "has no column 'text'"),
    ]
    for i, (model, rows, args, said) in enumerate(cases):
        done = batch(model, rows, tmp_path / f"out{i}", *args)
        assert done.returncode != 0 and said in done.stderr, done.stderr
    (tmp_path / "empty").mkdir()
    done = batch(whisper, tmp_path / "empty", tmp_path / "none", *TASK)
    assert done.returncode == 0 and not read(tmp_path / "none") and "0 rows" in done.stderr
    assert json.loads((tmp_path / "none" / "manifest.json").read_text())["complete"]


def test_a_model_without_time_stamps(tmp_path, recordings):
    package = graft.export_llm(BY_NAME["wav2vec2"].save(tmp_path / "model"), tmp_path / "ctc.pte")
    transcriber = graft.Transcriber(package)
    rows = good(package, recordings, tmp_path / "out", *TASK)
    assert [row["path"] for row in rows] == ["a.wav", "b.wav", "more/c.wav", "z.wav"]
    for row in rows:
        found = transcriber(recordings / row["path"])
        assert row["transcript"] == found.text.strip() and row["language"] is None
        assert row["segments"] == [{"start": 0, "end": row["seconds"], "text": found.text}]
    done = batch(package, recordings, tmp_path / "other", *TASK, "--set", 'language="de"')
    assert done.returncode == 1 and "'language' is not supported by Wav2Vec2ForCTC" in done.stderr, done.stderr
