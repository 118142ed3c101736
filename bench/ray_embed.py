"""MiniLM in a Ray program of three nodes on one machine, two of which are killed on the way; and beside other engines.

    python bench/ray_embed.py kill PACKAGE --rows 200000     # every row once, equal to the single process, overhead
    python bench/ray_embed.py peers PACKAGE --rows 20000     # rows per second and core, the same program for all

Speeds are rows per CPU second of the process that computes them, its arrays and tables included: they hold on a machine that
others use too.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.cluster_utils import Cluster

import graft.ray
from graft.ray import arrow

os.environ.setdefault("RAY_worker_niceness", "0")  # as the single process
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from semantic_search import SentenceEmbedder, model_folder  # noqa: E402

LARGEST_DIFFERENCES = {"highest": 1e-4, "medium": 5e-3}  # of elements of unit vectors, by precision; medium rounds to bf16
WORDS = "river stone the quick of winter seven light bread over paper morning under green house sound".split()
FOLDER = str(model_folder())
TOKENIZER = f"{FOLDER}/tokenizer.json"


def texts(rows: int) -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 8))) for _ in range(rows)]


class Timed:
    """Calls another class and adds the CPU seconds of the process since the last call: a column "cpu", in the first row."""

    def __init__(self, make: Any, progress: Any = None) -> None:
        self.work, self.progress = make(), progress
        self.work(pa.table({"text": texts(64)}))  # plans, and what others make at their first call
        self.before = time.process_time()

    def __call__(self, table: Any) -> Any:
        found, cpu = self.work(table), np.zeros(table.num_rows)
        now = time.process_time()
        cpu[0], self.before = now - self.before, now
        if self.progress is not None:
            self.progress.add.remote(table.num_rows)
        return arrow.with_columns(found, {"cpu": cpu})


def graft_engine(package: str, precision: str = "highest") -> Any:
    import torch

    torch.set_float32_matmul_precision(precision)  # graft.load takes it from there
    return graft.ray.Embedder(package, tokenizer=TOKENIZER, threads=1)


class SentenceTransformers:
    def __init__(self, precision: str) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision(precision)
        self.model = sentence_transformers.SentenceTransformer(FOLDER, device="cpu")

    def __call__(self, table: Any) -> Any:
        found = self.model.encode(table["text"].to_pylist(), batch_size=64, normalize_embeddings=True)
        return arrow.with_columns(table, {"embedding": found})


class OnnxRuntime:
    """Texts in the order of their lengths, so that padding is little."""

    def __init__(self, model: str) -> None:
        import onnxruntime
        import tokenizers

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.tokenizer = tokenizers.Tokenizer.from_file(TOKENIZER)
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(512)

    def __call__(self, table: Any) -> Any:
        texts = table["text"].to_pylist()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = np.empty((len(texts), 384), np.float32)
        for begin in range(0, len(order), 64):
            rows = order[begin : begin + 64]
            coded = self.tokenizer.encode_batch([texts[i] for i in rows])
            ids, mask = (np.array([getattr(c, name) for c in coded], np.int64) for name in ("ids", "attention_mask"))
            found[rows] = self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return arrow.with_columns(table, {"embedding": found})


class Infinity:
    def __init__(self) -> None:
        import asyncio

        import torch
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        torch.set_num_threads(1)
        settings = EngineArgs(model_name_or_path=FOLDER, device="cpu", engine="torch", batch_size=64)
        self.loop, self.engine = asyncio.new_event_loop(), AsyncEmbeddingEngine.from_args(settings)
        self.loop.run_until_complete(self.engine.astart())

    def __call__(self, table: Any) -> Any:
        found, _ = self.loop.run_until_complete(self.engine.embed(sentences=table["text"].to_pylist()))
        return arrow.with_columns(table, {"embedding": np.stack(found).astype(np.float32)})


def export_onnx(path: Path) -> str:
    import torch

    ids = torch.randint(1000, 2000, (2, 9))
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("t", max=512)}
    torch.onnx.export(SentenceEmbedder(), (ids, torch.ones_like(ids)), path, input_names=["input_ids", "attention_mask"],
                      dynamic_shapes=(sizes, sizes), dynamo=True)  # fmt: skip
    return str(path)


@ray.remote(num_cpus=0, resources={"head": 0.001})
class Progress:
    """On the node that nobody kills."""

    def __init__(self) -> None:
        self.rows = 0

    def add(self, rows: int) -> None:
        self.rows += rows

    def seen(self) -> int:
        return self.rows


def embedded(rows: list[str], make: Any, actors: int, progress: Any = None) -> Iterator[Any]:
    table = pa.table({"id": np.arange(len(rows)), "text": rows})
    dataset = ray.data.from_arrow([table.slice(i, 2000) for i in range(0, len(rows), 2000)])
    return dataset.map_batches(
        Timed, fn_constructor_args=[make, progress], batch_format="pyarrow", batch_size=1000, concurrency=actors, num_cpus=1
    ).iter_batches(batch_format="pyarrow", batch_size=None)


def vectors(batches: Iterator[Any], rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    """Vectors by id, how often each id came, and CPU seconds."""
    found, times, cpu = np.empty((rows, 384), np.float32), np.zeros(rows, np.int64), 0.0
    for table in batches:
        for begin, (ids, column) in arrow.slices(table, ["id", "embedding"]):
            at = arrow.to_numpy(ids, "id")
            found[at] = arrow.to_numpy(column, "embedding")
            np.add.at(times, at, 1)
        cpu += float(np.sum(table["cpu"].to_numpy()))
    return found, times, cpu


def single(options: argparse.Namespace) -> None:
    rows, alone = texts(options.rows), graft_engine(options.package)
    found = np.empty((len(rows), 384), np.float32)
    alone.vectors(rows[:64])
    began = time.process_time()
    for begin in range(0, len(rows), 1000):
        found[begin : begin + 1000] = alone.vectors(rows[begin : begin + 1000])
    cpu = time.process_time() - began
    print(f"single process: {len(rows) / cpu:.0f} rows per CPU second", flush=True)
    with options.single.with_suffix(".tmp").open("wb") as file:
        np.savez(file, found=found, cpu=cpu)
    options.single.with_suffix(".tmp").rename(options.single)


def kill(options: argparse.Namespace) -> None:
    rows, make = texts(options.rows), lambda: graft_engine(options.package)
    if not options.beside:
        single(options)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "resources": {"head": 1}, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    made.wait_for_nodes()
    progress, killed = Progress.remote(), list[int]()

    def killer() -> None:
        for part, node in ((0.3, nodes[0]), (0.6, nodes[1])):
            while (seen := ray.get(progress.seen.remote())) < part * len(rows):
                time.sleep(0.1)
            killed.append(seen)
            print(f"a node is killed after {seen} rows", flush=True)
            made.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    wall = time.monotonic()
    found, times, cpu = vectors(embedded(rows, make, 3, progress), len(rows))
    wall = time.monotonic() - wall
    while not options.single.exists():
        time.sleep(1)
    with np.load(options.single) as stored:
        plain, alone = stored["found"], float(stored["cpu"])
    other = int((found != plain).any(axis=1).sum())
    print(f"in Ray: {len(rows) / cpu:.0f} rows per CPU second of the actors, {wall:.0f} s; "
          f"{cpu / alone - 1:+.1%} CPU beside the single process")  # fmt: skip
    print(f"nodes killed after {killed} rows; rows that came once: {int((times == 1).sum())} of {len(rows)}; with other bits: {other}")
    if (times != 1).any() or other or len(killed) != 2:
        raise SystemExit("rows are lost, doubled or different, or no two nodes were killed")


def peers(options: argparse.Namespace) -> None:
    rows, package, precision = texts(options.rows), options.package, options.precision
    kinds: dict[str, Any] = {"graft": lambda: graft_engine(package, precision)}
    if importlib.util.find_spec("sentence_transformers"):
        kinds["sentence-transformers"] = lambda: SentenceTransformers(precision)
    if importlib.util.find_spec("onnxruntime"):
        model = export_onnx(Path(options.package).with_suffix(".onnx"))
        kinds["ONNX Runtime"] = lambda: OnnxRuntime(model)
    if importlib.util.find_spec("infinity_emb"):
        kinds["infinity-emb"] = Infinity
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    expected = graft_engine(options.package).vectors(rows)
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, make in kinds.items():
            found, _, cpu = vectors(embedded(rows, make, 1), len(rows))
            error = float(np.abs(found - expected).max())
            if error > LARGEST_DIFFERENCES[precision]:
                raise SystemExit(f"{name}: vectors differ by {error}")
            speeds[name].append(len(rows) / cpu)
            print(f"{name}: {speeds[name][-1]:.0f} rows/s/core, largest difference {error:.1e}", flush=True)
    best = max((max(found), name) for name, found in speeds.items() if name != "graft")
    ratio = np.median(speeds["graft"]) / best[0]
    print(f"graft (median) is {ratio:.2f} times the best of the others ({best[1]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function, rows in (("kill", kill, 200_000), ("single", single, 200_000), ("peers", peers, 20_000)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("package")
        command.add_argument("--rows", type=int, default=rows)
        command.add_argument("--single", type=Path, default=Path("single.npz"), help="what the single process found")
        command.add_argument("--beside", action="store_true", help="`single` runs beside; its file is waited for")
        command.add_argument("--rounds", type=int, default=2)
        command.add_argument(
            "--precision",
            choices=list(LARGEST_DIFFERENCES),
            default="highest",
            help="of `peers`, as torch.set_float32_matmul_precision takes it; ONNX Runtime has f32 alone",
        )
    options = parser.parse_args()
    options.package = str(Path(options.package).resolve())
    options.function(options)


if __name__ == "__main__":
    main()
