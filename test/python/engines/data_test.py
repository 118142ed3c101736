"""Steps of Ray Data on clusters of several nodes."""

from __future__ import annotations

import inspect
import sys
import threading
import time

import numpy as np
import pytest

import graft
import graft.ray
from graft.ray import data

ray = pytest.importorskip("ray", reason="no ray: pip install -r requirements/engines.txt")
pytest.importorskip("ray.data", reason="no ray.data: pip install -r requirements/engines.txt")

# Workers cannot import a test.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

THREE = {"concurrency": 3, "num_cpus": 1, "batch_size": 50}


def texts(count: int) -> list[str]:
    words = ["river", "stone", "the", "quick", "of", "winter", "seven", "light"]
    rng = np.random.default_rng(5)
    return [f"{' '.join(rng.choice(words, 1 + row % 9))} {row}" for row in range(count)]


def vectors(rows: list[dict]) -> np.ndarray:
    return np.stack([row["embedding"] for row in rows])


def test_helpers_are_short():
    for helper in (data.embed, data.classify, data.generate):
        assert len(inspect.getsource(helper).splitlines()) <= 20


def test_embed_while_nodes_are_killed(cluster, minilm):
    """Every row once, equal to the single process bit by bit, though two of three nodes end on the way."""
    made, nodes = cluster
    package, tokenizer = minilm
    rows = texts(3000)
    progress = ray.remote(num_cpus=0, resources={"head": 0.001})(Progress).remote()
    dataset = ray.data.from_items([{"id": i, "text": text} for i, text in enumerate(rows)], override_num_blocks=60)
    dataset = graft.ray.embed(dataset, package, tokenizer=str(tokenizer), resources=THREE)
    dataset = dataset.map_batches(Counted, fn_constructor_args=[progress], concurrency=1, num_cpus=0, batch_size=None)
    killed = []

    def kill() -> None:
        for part, node in ((0.3, nodes[0]), (0.6, nodes[1])):
            while ray.get(progress.rows.remote()) < part * len(rows):
                time.sleep(0.05)
            killed.append(ray.get(progress.rows.remote()))
            made.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    found = sorted(dataset.take_all(), key=lambda row: row["id"])
    killer.join()
    assert len(killed) == 2 and killed[0] < len(rows) and len(ray.nodes()) == 4
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert [row["id"] for row in found] == list(range(len(rows)))
    expected = graft.ray.Embedder(package, tokenizer=tokenizer, threads=1).vectors(rows)
    np.testing.assert_array_equal(vectors(found), expected)


class Progress:
    """Rows that were seen, of all batches."""

    def __init__(self) -> None:
        self.seen = 0

    def add(self, rows: int) -> None:
        self.seen += rows

    def rows(self) -> int:
        return self.seen


class Counted:
    """Batches as they are; tells how many rows passed."""

    def __init__(self, progress) -> None:
        self.progress = progress

    def __call__(self, batch):
        self.progress.add.remote(len(batch["id"]))
        return batch


class Told(graft.ray.Embedder):
    """Tells its threads and what it packed, besides."""

    def __call__(self, table):
        model = self.predictor.model
        count = table.num_rows
        facts = {"threads": model.threads, "packed": model.stats()["packed_files_written"]}
        return graft.ray.arrow.with_columns(
            super().__call__(table), {name: np.full(count, value) for name, value in facts.items()}
        )


def test_threads_are_those_of_ray_and_weights_are_packed_once(minilm, tmp_path, monkeypatch):
    (tmp_path / "packed").mkdir()
    monkeypatch.setenv("GRAFT_PACKED_FOLDER", str(tmp_path / "packed"))
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        settings = {"tokenizer": str(minilm[1])}
        graft.ray.Embedder(minilm[0], threads=1, **settings)
        dataset = ray.data.from_items([{"text": text} for text in texts(40)], override_num_blocks=8)
        found = dataset.map_batches(
            Told, fn_constructor_args=[str(minilm[0])], fn_constructor_kwargs=settings, batch_format="pyarrow",
            concurrency=2, num_cpus=2, batch_size=5,
        ).take_all()  # fmt: skip
        assert len(found) == 40 and {(row["threads"], row["packed"]) for row in found} == {(2, 0)}
    finally:
        ray.shutdown()


def test_generate_and_classify(cluster, stories, minilm, tmp_path):
    prompts = ["Once upon a time", "Lily saw", "The dog"] * 4
    dataset = ray.data.from_items([{"text": text} for text in prompts], override_num_blocks=4)
    found = graft.ray.generate(dataset, stories, max_new_tokens=8, resources={"concurrency": 2}).take_all()
    alone = graft.TextGenerator(stories, threads=1)
    for row in found:
        assert row["answer"] == alone.generate(row["text"], max_new_tokens=8).text
    assert sorted(row["text"] for row in found) == sorted(prompts)
    # An encoder's vectors stand for logits.
    labelled = graft.ray.classify(dataset, minilm[0], tokenizer=str(minilm[1])).take_all()
    numbers, scores = graft.ray.Classifier(minilm[0], tokenizer=minilm[1], threads=1).classes(prompts)
    expected = {(text, int(n), float(s)) for text, n, s in zip(prompts, numbers, scores, strict=True)}
    assert {(row["text"], row["label"], row["score"]) for row in labelled} == expected


def test_errors_reach_the_caller(cluster, minilm):
    dataset = ray.data.from_items([{"words": "a"}])
    with pytest.raises(Exception, match="the table has no column 'text'"):
        graft.ray.embed(dataset, minilm[0], tokenizer=str(minilm[1])).take_all()
