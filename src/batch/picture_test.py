"""Files of pictures through `graft batch`: what comes out is what the models of transformers give for what their processors
make of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import graft
from batches import batch, errors, files, good, write_rows
from pictures import picture, vit

PIL = pytest.importorskip("PIL.Image")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The model, its processor and the package."""
    folder = tmp_path_factory.mktemp("vit")
    model = vit()
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    model.save_pretrained(folder / "vit")
    processor.save_pretrained(folder / "vit")
    return model, processor, graft.export_image_model(folder / "vit", folder / "vit.pte")


@pytest.fixture
def album(tmp_path):
    folder = tmp_path / "album"
    (folder / "more").mkdir(parents=True)
    for i in range(9):
        name = f"more/{i}.png" if i % 3 == 0 else f"{i}.bmp"
        PIL.fromarray(picture(30 + 7 * i, 60 - 4 * i, i)).save(folder / name)
    (folder / "broken.png").write_bytes((folder / "more" / "0.png").read_bytes()[:300])
    (folder / "notes.txt").write_text("no picture")
    return folder


def logits_of(exported, path):
    model, processor, _ = exported
    inputs = processor(PIL.open(path).convert("RGB"), return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits[0].double().numpy()


def test_classes(exported, album, tmp_path):
    rows = good(exported[2], album, tmp_path / "out", "--task", "classify", "--batch-rows", 4)
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows) and len(rows) == 9
    for row in rows:
        logits = logits_of(exported, album / row["path"])
        scores = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(row["scores"], scores, atol=2e-5)
        assert row["label"] == f"kind {scores.argmax()}" and row["score"] == max(row["scores"])
    assert np.ptp([row["scores"][0] for row in rows]) > 0.01, "pictures differ"
    said = {json.dumps(error["row"]): error["error"] for error in errors(tmp_path / "out")}
    assert len(said) == 2 and any("broken.png' is damaged" in text for text in said.values())
    assert any("notes.txt' cannot be read: expected PNG, JPEG or BMP" in text for text in said.values())


def test_embeddings_of_rows(exported, album, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": i, "file": f"album/{i}.bmp"} for i in (1, 2, 3, 4)])
    args = "--task", "embed", "--column", "path=file"
    found = good(exported[2], rows, tmp_path / "out", *args)
    assert [row["id"] for row in found] == [1, 2, 4] and "3.bmp" in errors(tmp_path / "out")[0]["error"]
    for row in found:
        logits = logits_of(exported, tmp_path / row["file"])
        np.testing.assert_allclose(row["embedding"], logits / np.linalg.norm(logits), atol=2e-5)
    again = good(exported[2], rows, tmp_path / "again", *args, "--batch-rows", 1)
    for one, other in zip(found, again):
        np.testing.assert_allclose(one["embedding"], other["embedding"], atol=1e-6)


def test_resume(exported, album, tmp_path):
    args = "--task", "classify", "--shard-rows", 3
    good(exported[2], album, tmp_path / "out", *args)
    before = files(tmp_path / "out")
    (tmp_path / "out" / "part-00001.jsonl").unlink()
    good(exported[2], album, tmp_path / "out", *args, "--resume")
    assert files(tmp_path / "out") == before


def test_what_is_wrong(exported, album, tmp_path):
    cases = [
        (("--task", "classify", "--labels", "a,b"), "the model has 3 classes, --labels names 2"),
        (("--task", "classify", "--truncate"), "pictures have no --truncate"),
        (("--task", "embed", "--column", "text=path"), "reads 'path' with this model, nothing that it calls 'text'"),
        (("--task", "embed", "--tokenizer", str(album)), "a model of pictures has no --tokenizer"),
        (("--task", "generate"), "graft"),
    ]
    for i, (args, said) in enumerate(cases):
        done = batch(exported[2], album, tmp_path / f"out{i}", *args)
        assert done.returncode != 0 and said in done.stderr, done.stderr
