"""Texts in: vectors, labels or answers out. Classes for `map_batches`, as `Predictor`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graft.errors import InvalidArgument
from graft.ray import _needs, arrow
from graft.ray.arrow import Array
from graft.ray.predictor import Predictor
from graft.runtime.tokenizer import Tokenizer

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextPredictor:
    """Runs a package that takes token ids on texts.

    package: whose first input is input_ids [B, T]; attention_mask and token_type_ids of the same size may follow.
    tokenizer: a file or a folder, as `graft.Tokenizer.load` takes it; None: the package's own.
    column: of the texts.
    threads: as of `Predictor`.
    rows: the most texts of one call.

    Only texts of equally many tokens share a call, so no token is padding, and what a text gives does not depend on the
    others. Texts of more tokens than the model or the tokenizer allows are cut.
    """

    def __init__(
        self,
        package: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        column: str = "text",
        threads: int | None = None,
        rows: int = 64,
    ) -> None:
        self.predictor = Predictor(package, threads=threads, rows=rows)
        self.tokenizer = Tokenizer.load(package if tokenizer is None else tokenizer)
        self.column = column
        names = self.predictor.columns
        if not names or names[0] != _INPUTS[0] or not set(names) <= set(_INPUTS):
            raise InvalidArgument(f"'{self.predictor.package}' takes no texts: its inputs are {names}, expected {_INPUTS}")
        sizes = [entry["dims"][1] for entry in self.predictor.inputs if len(entry.get("dims", ())) == 2]
        if len(sizes) != len(names):
            raise InvalidArgument(f"'{self.predictor.package}' takes no texts: its inputs must be [B, T]")
        limits = [size["max"] for size in sizes if size["max"] is not None]
        limits += [self.tokenizer.truncation] if self.tokenizer.truncation else []
        self.max_length = min(limits) if limits else None
        self.least = max(size["min"] for size in sizes)

    def first(self, texts: Sequence[str]) -> Iterator[tuple[Array, Array, Array]]:
        """(rows, tokens [B, T], the model's first result [B, ...]) of each call."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        ids = self.tokenizer.encode_all(texts, max_length=self.max_length)
        for row, tokens in enumerate(ids):
            if not tokens:
                raise InvalidArgument(f"row {row} of column '{self.column}' has no tokens")
            groups[len(tokens)].append(row)
        for length, members in groups.items():
            for begin in range(0, len(members), self.predictor.rows):
                rows = members[begin : begin + self.predictor.rows]
                yield np.asarray(rows), *self._call([ids[row] for row in rows], length)

    def _call(self, ids: list[list[int]], length: int) -> tuple[Array, Array]:
        width = max(length, self.least)  # a program may have a least size
        inputs: list[Array] = []
        tokens = np.full((len(ids), width), self.tokenizer.special_ids["pad"] or 0, np.int64)
        tokens[:, :length] = ids
        for entry in self.predictor.inputs:
            values = tokens if entry["name"] == "input_ids" else np.zeros_like(tokens)
            if entry["name"] == "attention_mask":
                values[:, :length] = 1
            inputs.append(values.astype(np.int32 if entry["dtype"] == "i32" else np.int64, copy=False))
        return tokens[:, :length], self.predictor.arrays(*inputs)[0]


class Embedder(TextPredictor):
    """Texts to vectors of length 1, as `/v1/embeddings` of `graft serve` gives them: hidden states [B, T, H] are averaged
    over the tokens, vectors [B, H] taken as they are. to: the column of the vectors, f32 [H]. The rest as `TextPredictor`."""

    def __init__(self, package: str | os.PathLike[str], *, to: str = "embedding", **settings: Any) -> None:
        super().__init__(package, **settings)
        self.to = to

    def vectors(self, texts: Sequence[str]) -> Array:
        """f32 [n, H], in the order of the texts."""
        result: Array | None = None
        for rows, tokens, found in self.first(texts):
            sums = found[:, : tokens.shape[1]].sum(axis=1, dtype=np.float64) if found.ndim == 3 else found
            if sums.ndim != 2:
                raise InvalidArgument(f"'{self.predictor.package}': expected [B, T, H] or [B, H], found {found.shape}")
            exact = sums.astype(np.float64)
            lengths = np.maximum(np.sqrt((exact * exact).sum(axis=1, keepdims=True)), 1e-12)
            if result is None:
                result = np.empty((len(texts), exact.shape[1]), np.float32)
            result[rows] = exact / lengths
        return np.empty((0, 0), np.float32) if result is None else result

    def __call__(self, table: Any) -> Any:
        """The table (pyarrow.Table) with the column of vectors."""
        texts = arrow.strings(table, self.column)
        return arrow.with_columns(table, {self.to: self.vectors(texts)}) if texts else table


class Classifier(TextPredictor):
    """Texts to the likeliest class of logits [B, C], and its probability (a softmax in f64). labels: names of the C classes;
    without them the column has their numbers. to, score: the columns. The rest as `TextPredictor`."""

    def __init__(
        self,
        package: str | os.PathLike[str],
        *,
        labels: Sequence[str] | None = None,
        to: str = "label",
        score: str = "score",
        **settings: Any,
    ) -> None:
        super().__init__(package, **settings)
        self.labels, self.to, self.score = labels, to, score

    def classes(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Numbers of classes, i64 [n], and probabilities, f64 [n]."""
        numbers, scores = np.empty(len(texts), np.int64), np.empty(len(texts), np.float64)
        for rows, _, logits in self.first(texts):
            if logits.ndim != 2 or (self.labels is not None and logits.shape[1] != len(self.labels)):
                wanted = "C" if self.labels is None else len(self.labels)
                raise InvalidArgument(f"'{self.predictor.package}': expected logits [B, {wanted}], found {logits.shape}")
            exact = logits.astype(np.float64)
            exact = np.exp(exact - exact.max(axis=1, keepdims=True))
            numbers[rows] = logits.argmax(axis=1)
            scores[rows] = exact.max(axis=1) / exact.sum(axis=1)
        return numbers, scores

    def __call__(self, table: Any) -> Any:
        """The table (pyarrow.Table) with the columns of classes and probabilities."""
        pa = _needs.package("pyarrow", "graft.ray.Classifier")
        numbers, scores = self.classes(arrow.strings(table, self.column))
        named: Any = numbers if self.labels is None else pa.array([self.labels[i] for i in numbers], pa.string())
        return arrow.with_columns(table, {self.to: named, self.score: scores})


class Generator:
    """Prompts to answers, by a package of `graft.export_llm`; rows run side by side as in `graft.BatchGenerator`.

    column: of the prompts. to: the column of the answers. chat: each prompt is a user's message for the model's chat
    template. rows: texts that run at once. seed: what the text of a row draws from where temperature is above 0, mixed with
    a digest of its prompt: it is the same wherever and however often the row runs. The rest as
    `graft.BatchGenerator.submit` and `graft.BatchGenerator` (tokenizer) have it.
    """

    def __init__(
        self,
        package: str | os.PathLike[str],
        *,
        column: str = "text",
        to: str = "answer",
        chat: bool = False,
        rows: int = 8,
        threads: int | None = None,
        tokenizer: str | os.PathLike[str] = "",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        from graft.llm.generate import BatchGenerator

        count = _needs.threads() if threads is None else threads
        with _packed_folder():
            self.generator = BatchGenerator(package, tokenizer=tokenizer, rows=rows, threads=count)
        self.column, self.to, self.chat, self.seed, self.settings = column, to, chat, seed, settings

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """In the order of the prompts."""
        requests = [self._submit(prompt) for prompt in prompts]
        while self.generator.step():
            pass
        results = [self.generator.take(request) for request in requests]
        return [result.text for result in results if result is not None]

    def _submit(self, prompt: str) -> int:
        digest = int.from_bytes(hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()[:7])
        given: Any = [{"role": "user", "content": prompt}] if self.chat else prompt
        return self.generator.submit(given, seed=self.seed ^ digest, **self.settings)

    def __call__(self, table: Any) -> Any:
        """The table (pyarrow.Table) with the column of answers."""
        pa = _needs.package("pyarrow", "graft.ray.Generator")
        answers = self.answers(arrow.strings(table, self.column))
        return arrow.with_columns(table, {self.to: pa.array(answers, pa.string())})


@contextlib.contextmanager
def _packed_folder() -> Iterator[None]:
    """Language models find the folder in the environment alone."""
    before = os.environ.get("GRAFT_PACKED_FOLDER")
    os.environ["GRAFT_PACKED_FOLDER"] = os.fspath(_needs.packed_folder())
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRAFT_PACKED_FOLDER"]


__all__ = ["Classifier", "Embedder", "Generator", "TextPredictor"]
