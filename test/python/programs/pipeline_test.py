"""`graft.Pipeline`: calls of several models in the background."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import graft
from running_sum import Sum


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graft.export(Sum(), (torch.ones(1, dtype=torch.long),), path=tmp_path_factory.mktemp("sum") / "m.pte")


def numbers(count: int) -> list[torch.Tensor]:
    return [torch.tensor([i * i - 5]) for i in range(count)]


def expected(values: list[torch.Tensor]) -> list[int]:
    out, total = [], 0
    for value in values:
        total = (total * 3 + int(value)) % 2**64
        out.append(total - 2**64 if total >= 2**63 else total)
    return out


def test_order_of_each_model(package: Path) -> None:
    first = graft.load(package, threads=1)
    models = [first, first.fork(), first.fork()]
    values = numbers(80)
    with graft.Pipeline(models, workers=2, capacity=4) as pipeline:
        results = [[], [], []]

        def feed(index: int) -> None:
            results[index].extend(pipeline.submit(models[index] if index else 0, value) for value in values)

        callers = [threading.Thread(target=feed, args=(i,)) for i in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        pipeline.drain()
        counts = pipeline.counters()
        assert counts["submitted"] == counts["finished"] == 240
        assert counts["waiting"] == counts["running"] == 0 and counts["most_waiting"] <= 4
        assert all(future.done() for futures in results for future in futures)
    for futures in results:
        assert [int(future.result()) for future in futures] == expected(values)


def test_full_errors_cancelled_and_shut_down(package: Path) -> None:
    model = graft.load(package, threads=1)
    other = graft.load(package, threads=1)
    pipeline = graft.Pipeline([model], capacity=2)
    started, release = threading.Event(), threading.Event()

    class Blocks:  # an argument whose flattening blocks: the worker stops in the middle of a call
        pass

    original = model.methods["forward"]._flatten

    def slow(args, kwargs):
        if isinstance(args[0], Blocks):
            started.set()
            assert release.wait(60)
        return original(args, kwargs)

    model.methods["forward"]._flatten = slow
    blocked = pipeline.submit(0, Blocks())
    assert started.wait(60)
    one = torch.ones(1, dtype=torch.long)
    waiting = [pipeline.submit(0, one), pipeline.submit(0, one)]
    with pytest.raises(graft.Busy, match="the pipeline is full"):
        pipeline.try_submit(0, one)
    assert waiting[1].cancel()
    release.set()
    with pytest.raises(graft.InvalidArgument):  # the blocking argument itself
        blocked.result(60)
    assert int(waiting[0].result(60)) == 1
    last = pipeline.submit(model, one, method="forward")
    pipeline.shutdown()
    assert int(last.result(0)) == 4  # the cancelled call changed nothing
    with pytest.raises(graft.InvalidArgument, match="was shut down"):
        pipeline.submit(0, one)
    with pytest.raises(graft.InvalidArgument, match="is not one of the pipeline's"):
        pipeline.submit(other, one)
    with pytest.raises(graft.InvalidArgument, match="has 1 models, got index 1"):
        pipeline.submit(1, one)
    with pytest.raises(graft.InvalidArgument, match="at least one session"):
        graft.Pipeline([])
