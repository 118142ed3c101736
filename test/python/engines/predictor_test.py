"""Classes of graft.ray on Arrow tables, without an engine around."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import graft
import graft.ray
from graft.ray import arrow

pa = pytest.importorskip("pyarrow", reason="no pyarrow: pip install -r requirements/engines.txt")

TEXTS = [f"{'word ' * (1 + i % 7)}number {i}" for i in range(50)]


def tensors(values):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


def a_table(n: int = 150):
    x = np.random.default_rng(0).standard_normal((n, 3, 2), np.float32)
    shift = np.arange(n, dtype=np.float32)
    return x, shift, pa.table({"x": tensors(x), "by": pa.array(shift), "kept": pa.array([str(i) for i in range(n)])})


def test_tensors_in_and_out(two_results):
    x, shift, table = a_table()
    predictor = graft.ray.Predictor(two_results, inputs={"shift": "by"}, outputs=["moved", "sums"], threads=1)
    found = predictor(table)
    assert found.column_names == ["x", "by", "kept", "moved", "sums"] and found.num_rows == 150
    moved = np.concatenate([chunk.to_numpy_ndarray() for chunk in found["moved"].chunks])
    np.testing.assert_array_equal(moved, x + shift[:, None, None])
    np.testing.assert_allclose(found["sums"].to_numpy(), x.sum((1, 2)), atol=1e-5)
    assert predictor.model.counters()["io_copies"] == 0
    assert predictor.rows == 64  # the most that the method takes


def test_no_tensor_is_copied(two_results):
    x, _, table = a_table(8)
    predictor = graft.ray.Predictor(two_results, inputs={"shift": "by"}, threads=1)
    given = []
    run = predictor._run
    predictor._run = lambda inputs: given.append((inputs, run(inputs))) or given[-1][1]
    found = predictor(table)
    ((inputs, results),) = given
    assert np.shares_memory(inputs[0], x) and np.shares_memory(inputs[1], table["by"].chunk(0).to_numpy())
    for column, result in zip(found.columns[3:], results, strict=True):
        assert np.shares_memory(arrow.to_numpy(column.chunk(0), ""), result)


def test_parts_of_a_table_are_not_joined(two_results):
    x, shift, table = a_table(90)
    parts = pa.table(
        {
            "x": pa.chunked_array([tensors(x[:40]), tensors(x[40:])]),
            "by": pa.chunked_array([shift[:7], shift[7:50], shift[50:]]),
        }
    )
    found = graft.ray.Predictor(two_results, inputs={"shift": "by"}, outputs=["moved", "sums"], threads=1)(parts)
    assert [len(chunk) for chunk in found["sums"].chunks] == [7, 33, 10, 40]
    moved = np.concatenate([chunk.to_numpy_ndarray() for chunk in found["moved"].chunks])
    np.testing.assert_array_equal(moved, x + shift[:, None, None])


@pytest.mark.parametrize("kind", ["list", "nested", "slice"])
def test_other_columns_of_tensors(two_results, kind):
    x, shift, _ = a_table(6)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 2)
    columns = {"list": tensors(x), "nested": pa.FixedSizeListArray.from_arrays(flat, 3), "slice": tensors(x)}
    table = pa.table({"x": columns[kind], "shift": shift})
    if kind == "slice":
        table, x, shift = table.slice(2, 3), x[2:5], shift[2:5]
    found = graft.ray.Predictor(two_results, outputs=["moved", "sums"], threads=1)(table)
    np.testing.assert_array_equal(found["moved"].chunk(0).to_numpy_ndarray(), x + shift[:, None, None])


def test_a_table_without_rows(two_results):
    _, _, table = a_table(4)
    assert graft.ray.Predictor(two_results, inputs={"shift": "by"}, threads=1)(table.slice(0, 0)).num_rows == 0


def test_wrong_tables_and_settings(two_results):
    _, _, table = a_table(4)
    predictor = graft.ray.Predictor(two_results, inputs={"shift": "by"}, threads=1)
    for change, message in [
        (table.drop_columns(["by"]), "no column 'by'"),
        (table.set_column(1, "by", pa.array([1.0, None, 2.0, 3.0], pa.float32())), "'by': must have no nulls, has 1"),
        (table.set_column(1, "by", table["kept"]), "'by': must be numbers.* is string"),
        (table.set_column(1, "by", pa.array(np.zeros(4))), "shift.*f64|f64.*shift|float64"),
    ]:
        with pytest.raises(graft.InvalidArgument, match=message):
            predictor(change)
    with pytest.raises(graft.InvalidArgument, match="has a column 'kept' already"):
        graft.ray.Predictor(two_results, inputs={"shift": "by"}, outputs=["kept", "b"], threads=1)(table)
    with pytest.raises(graft.InvalidArgument, match=r"no inputs \['y'\]"):
        graft.ray.Predictor(two_results, inputs={"y": "by"})
    with pytest.raises(graft.InvalidArgument, match="2 results, outputs names 1"):
        graft.ray.Predictor(two_results, outputs=["a"])
    with pytest.raises(graft.NotFound, match="no method 'backward'"):
        graft.ray.Predictor(two_results, method="backward")
    with pytest.raises(graft.InvalidArgument, match="rows must be at least 1, got 0"):
        graft.ray.Predictor(two_results, rows=0)


def test_results_need_a_row_for_each(tmp_path):
    class Sum(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    n = torch.export.Dim("n", min=1, max=64)
    path = graft.export(Sum(), (torch.randn(3),), dynamic_shapes=({0: n},), path=tmp_path / "sum.pte")
    predictor = graft.ray.Predictor(path, inputs={"x": "v"}, threads=1)
    with pytest.raises(graft.InvalidArgument, match="must have a row for each of 4"):
        predictor(pa.table({"v": np.zeros(4, np.float32)}))


def test_vectors_do_not_depend_on_the_others(minilm):
    package, tokenizer = minilm
    embedder = graft.ray.Embedder(package, tokenizer=tokenizer, threads=1)
    alone = np.concatenate([embedder.vectors([text]) for text in TEXTS])
    assert alone.shape == (50, 384) and alone.dtype == np.float32
    np.testing.assert_array_equal(embedder.vectors(TEXTS), alone)
    np.testing.assert_array_equal(embedder.vectors(TEXTS[::-1])[::-1], alone)
    np.testing.assert_array_equal(graft.ray.Embedder(package, tokenizer=tokenizer, threads=2, rows=3).vectors(TEXTS), alone)
    table = embedder(pa.table({"text": TEXTS}))
    np.testing.assert_array_equal(table["embedding"].chunk(0).to_numpy_ndarray(), alone)


def test_vectors_are_those_of_the_model(minilm):
    import semantic_search
    import transformers

    package, tokenizer = minilm
    model = semantic_search.SentenceEmbedder()
    tokens = semantic_search.tokens(transformers.AutoTokenizer.from_pretrained(semantic_search.model_folder()), TEXTS)
    with torch.no_grad():
        expected = model(*tokens).numpy()
    found = graft.ray.Embedder(package, tokenizer=tokenizer, threads=1).vectors(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_long_texts_are_cut(minilm):
    package, tokenizer = minilm
    embedder = graft.ray.Embedder(package, tokenizer=tokenizer, threads=1)
    limit = embedder.max_length
    assert limit is not None and limit <= 512
    np.testing.assert_array_equal(embedder.vectors(["a " * 2 * limit]), embedder.vectors(["a " * limit]))


class Logits(torch.nn.Module):
    """input_ids, attention_mask [B, T] -> logits [B, 3]: how many ids are below 3000, from 6000, in between."""

    def forward(self, input_ids, attention_mask):
        low, high = input_ids < 3000, input_ids >= 6000
        counts = torch.stack([low, high, ~(low | high)], -1).to(torch.float32) * attention_mask.unsqueeze(-1)
        return counts.sum(1)


def test_classes(minilm, tmp_path):
    ids = torch.randint(0, 9000, (2, 9))
    b, t = torch.export.Dim("b", min=1, max=8), torch.export.Dim("t", min=1, max=64)
    shapes = {"input_ids": {0: b, 1: t}, "attention_mask": {0: b, 1: t}}
    path = graft.export(Logits(), (ids, torch.ones_like(ids)), dynamic_shapes=shapes, path=tmp_path / "logits.pte")
    settings = {"tokenizer": minilm[1], "threads": 1}
    found = graft.ray.Classifier(path, labels=["low", "high", "middle"], **settings)(pa.table({"text": TEXTS}))
    tokenizer = graft.Tokenizer.load(minilm[1])
    for text, label, score in zip(TEXTS, found["label"].to_pylist(), found["score"].to_pylist(), strict=True):
        row = torch.tensor([tokenizer.encode(text)])
        chances = torch.softmax(Logits()(row, torch.ones_like(row))[0].double(), 0)
        assert label == ["low", "high", "middle"][int(chances.argmax())]
        assert score == pytest.approx(float(chances.max()), abs=1e-12)
    numbers = graft.ray.Classifier(path, **settings)(pa.table({"text": TEXTS}))["label"].to_pylist()
    assert [["low", "high", "middle"][i] for i in numbers] == found["label"].to_pylist()
    with pytest.raises(graft.InvalidArgument, match=r"expected logits \[B, 2\], found \(.*3\)"):
        graft.ray.Classifier(path, labels=["a", "b"], **settings)(pa.table({"text": TEXTS}))


def test_answers(stories):
    prompts = ["Once upon a time", "Lily saw", "The dog"] * 3
    generator = graft.ray.Generator(stories, rows=4, threads=1, max_new_tokens=12)
    found = generator(pa.table({"text": prompts}))["answer"].to_pylist()
    alone = graft.TextGenerator(stories, threads=1)
    assert found == [alone.generate(prompt, max_new_tokens=12).text for prompt in prompts]
    # Drawn texts are those of a row, not of its place.
    drawn = graft.ray.Generator(stories, rows=4, threads=1, max_new_tokens=12, temperature=1.0, seed=3)
    first = drawn.answers(prompts)
    assert drawn.answers(prompts[2:3]) == first[2:3] and first[:3] == first[3:6]
    chat = graft.ray.Generator(stories, rows=1, threads=1, max_new_tokens=5, chat=True)
    message = [{"role": "user", "content": "Hi"}]
    assert chat.answers(["Hi"]) == [alone.generate(message, max_new_tokens=5).text]


def test_wrong_texts_and_packages(minilm, two_results):
    embedder = graft.ray.Embedder(minilm[0], tokenizer=minilm[1], threads=1)
    with pytest.raises(graft.InvalidArgument, match="no column 'text'"):
        embedder(pa.table({"t": ["a"]}))
    with pytest.raises(graft.InvalidArgument, match="'text': must be texts, row 1 is NoneType"):
        embedder(pa.table({"text": ["a", None]}))
    with pytest.raises(graft.InvalidArgument, match=r"takes no texts: its inputs are \['x', 'shift'\]"):
        graft.ray.Embedder(two_results, tokenizer=minilm[1])
    assert embedder(pa.table({"text": pa.array([], pa.string())})).num_rows == 0


def test_weights_are_mapped(minilm, tmp_path, monkeypatch):
    """What is packed once is mapped by every later load of the host."""
    monkeypatch.setenv("GRAFT_PACKED_FOLDER", str(tmp_path / "packed"))
    (tmp_path / "packed").mkdir()
    first = graft.ray.Embedder(minilm[0], tokenizer=minilm[1], threads=1)
    made = first.predictor.model.stats()
    assert made["packed_files_written"] > 0
    del first
    again = graft.ray.Embedder(minilm[0], tokenizer=minilm[1], threads=1).predictor.model.stats()
    assert again["packed_file_bytes"] > 30e6 and again["packed_files_written"] == again["packed_bytes"] == 0
