"""Kinds of wrong input by name. Each error names the thing, says what was expected and what was found, and leaves the
model usable. What a caller of the C++ library can do wrong besides is in src/session/errors_test.cpp."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import graft

ROWS, LARGEST = 7, 32


class Everything(nn.Module):
    """An input of each kind: ids [n] i64, x [n, 4] f32, a size and a factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, 4)
        self.register_buffer("last", torch.zeros(4))

    def forward(self, ids, x, size: int, factor: float):
        y = self.table(ids) + x
        self.last.copy_(y.sum(0))
        return y, torch.full((size,), 2.0) * x.shape[0]


N = Dim("n", min=3, max=LARGEST)
SHAPES = {"ids": {0: N}, "x": {0: N}, "size": Dim.DYNAMIC, "factor": None}


def call(n: int = 5) -> list:
    return [torch.arange(n) % ROWS, torch.randn(n, 4), 3, 0.5]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("errors") / "everything.pte"
    return graft.export(Everything(), tuple(call()), dynamic_shapes=SHAPES, path=path)


@pytest.fixture(scope="module")
def loaded(package):
    return graft.load(package)


def put(**values) -> list:
    """The good call with other arguments."""
    args = call()
    for name, value in values.items():
        args[["ids", "x", "size", "factor"].index(name)] = value
    return args


IDS, X = call()[:2]

# Arguments of a call, its keyword arguments, and the parts of the message: the thing, the expected, the found.
CALLS = {
    "integer dtype": (put(ids=IDS.int()), {}, ["'ids'", "dtype i64", "got i32"]),
    "boolean for integers": (put(ids=IDS.bool()), {}, ["'ids'", "dtype i64", "bool"]),
    "float dtype": (put(x=X.double()), {}, ["'x'", "dtype f32", "got f64"]),
    "half precision": (put(x=X.half()), {}, ["'x'", "dtype f32", "got f16"]),
    "complex dtype": (put(x=X.to(torch.complex64)), {}, ["input 1", "complex64", "not supported"]),
    "rank too high": (put(ids=IDS[None]), {}, ["'ids'", "rank 1", "rank 2"]),
    "rank too low": (put(x=X[0]), {}, ["'x'", "rank 2", "rank 1"]),
    "rank 0": (put(ids=IDS[0]), {}, ["'ids'", "rank 1", "rank 0"]),
    "rank above 8": (put(x=X[(None,) * 7]), {}, ["input 1", "at most 8 dimensions", "got 9"]),
    "fixed size": (put(x=X[:, :3]), {}, ["'x'", "dimension 1 must be 4", "got 3"]),
    "size above its range": (put(ids=torch.zeros(33, dtype=torch.int64)), {}, ["'ids'", "3..32", "got 33"]),
    "size below its range": (put(ids=IDS[:1], x=X[:1]), {}, ["'ids'", "3..32", "got 1"]),
    "no elements": (put(ids=IDS[:0], x=X[:0]), {}, ["'ids'", "3..32", "got 0"]),
    "sizes that disagree": (put(x=X[:4]), {}, ["'x'", "must be 5 as that of dimension 0", "'ids'", "got 4"]),
    "missing input": (call()[:3], {}, ["'forward'", "expected", "got"]),
    "extra input": ([*call(), X], {}, ["'forward'", "expected", "got"]),
    "unknown keyword": (call(), {"mask": X}, ["'forward'", "keyword arguments []", "['mask']"]),
    "number for a tensor": (put(x=1.5), {}, ["'x'", "must be a tensor f32[", "got a number"]),
    "tensor for a number": (put(size=torch.ones(1)), {}, ["'size'", "must be a number", "got f32[1]"]),
    "None for a tensor": (put(x=None), {}, ["input 1", "must be a tensor", "None"]),
    "text for a tensor": (put(x="x"), {}, ["input 1", "must be a tensor", "text"]),
    "array of objects": (put(x=np.zeros((5, 4), object)), {}, ["input 1", "dtype object"]),
    "list for a tensor": (put(x=[1.0, 2.0]), {}, ["'forward'", "expected", "got"]),
    "wrong device": (put(x=X.to("meta")), {}, ["input 1", "must be on the CPU", "meta"]),
    "infinite size": (put(size=float("inf")), {}, ["'size'", "int", "got inf"]),
    "size that is not a number": (put(size=float("nan")), {}, ["'size'", "int", "got nan"]),
    "fractional size": (put(size=2.5), {}, ["'size'", "int", "got 2.5"]),
    "negative size": (put(size=-1), {}, ["must", "-1"]),
    "size beyond 64 bits": (put(size=2**63), {}, ["input 2", "64 bits", str(2**63)]),
    "bytes beyond 64 bits": (put(size=2**62), {}, [str(2**62), "64 bits"]),
}


def fails(error: type[Exception], parts: list[str], work) -> None:
    with pytest.raises(error) as caught:
        work()
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def good(loaded) -> None:
    args = call(6)
    with torch.no_grad():
        expected = Everything()(*args)
    for found, wanted in zip(loaded(*args), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", CALLS)
def test_wrong_call(loaded, kind):
    args, kwargs, parts = CALLS[kind]
    good(loaded)
    fails(graft.InvalidArgument, parts, lambda: loaded(*args, **kwargs))
    good(loaded)


# An action on a package, the error, and the parts of its message.
LOADS = {
    "device that is not there": (lambda p: graft.load(p, device="warp"), graft.NotFound, ["'warp'", "has", "cpu"]),
    "negative number of threads": (lambda p: graft.load(p, threads=-1), graft.InvalidArgument, ["threads", "-1"]),
    "file that is not there": (lambda p: graft.load("none.pte"), graft.NotFound, ["none.pte"]),
    "weights that are not there": (lambda p: graft.load(p, weights=["none.ptd"]), graft.NotFound, ["none.ptd"]),
    "weight that the program lacks": (
        lambda p: graft.load(p, tensors={"head": torch.ones(2)}), graft.InvalidArgument, ["'head'"]
    ),
    "weight of another size": (
        lambda p: graft.load(p, tensors={"table.weight": torch.ones(ROWS + 1, 4)}),
        graft.InvalidArgument,
        ["'table.weight'", "f32[7, 4]", "f32[8, 4]"],
    ),
    "weight of another dtype": (
        lambda p: graft.load(p, tensors={"table.weight": torch.ones(ROWS, 4, dtype=torch.int32)}),
        graft.InvalidArgument,
        ["'table.weight'", "f32[7, 4]", "i32[7, 4]"],
    ),
    "output of another size": (
        lambda p: graft.load(p)(*call(), out=(torch.empty(5, 3), torch.empty(3))),
        graft.InvalidArgument,
        ["out[0]", "float32[5, 4]", "float32[5, 3]"],
    ),
    "number of outputs": (
        lambda p: graft.load(p)(*call(), out=(torch.empty(5, 4),)), graft.InvalidArgument, ["'forward'", "2 outputs", "1"]
    ),
    "method that is not there": (lambda p: graft.load(p).backward, AttributeError, ["'backward'", "it has ['forward']"]),
    "plan of too many bytes": (
        lambda p: graft.load(p, options=graft.LoadOptions(max_plan_bytes=1 << 20))(*put(size=1 << 20)),
        graft.Unsupported,
        ["4194304 bytes", "at most 1048576", "max_plan_bytes"],
    ),
    "plan of too many kernels": (
        lambda p: graft.load(p, options=graft.LoadOptions(max_plan_launches=1))(*call()),
        graft.Unsupported,
        ["'forward'", "more than 1 launches", "max_plan_launches"],
    ),
}


@pytest.mark.parametrize("kind", LOADS)
def test_wrong_load(package, loaded, kind):
    work, error, parts = LOADS[kind]
    fails(error, parts, lambda: work(package))
    good(loaded)


# Reads and writes at an index, x [3, 2] and at [2]; the name of the operator in the message.
INDEXED = {
    "embedding": lambda x, at: nn.functional.embedding(at, x),
    "index": lambda x, at: x[at],
    "index_of_two": lambda x, at: x[at, torch.zeros_like(at)],
    "index_select": lambda x, at: x.index_select(0, at),
    "gather": lambda x, at: x.gather(0, at[:, None]),
    "scatter": lambda x, at: x.scatter(0, at[:, None], x + 1),
    "scatter_value": lambda x, at: x.scatter(0, at[:, None], 2.0),
    "scatter_add": lambda x, at: x.scatter_add(0, at[:, None], x),
    "scatter_reduce": lambda x, at: x.scatter_reduce(0, at[:, None], x, "amax"),
    "index_put": lambda x, at: x.index_put((at,), x[:1]),
    "index_put_accumulate": lambda x, at: x.index_put((at,), x[:1], accumulate=True),
    "index_add": lambda x, at: x.index_add(0, at, x[:2]),
    "index_copy": lambda x, at: x.index_copy(0, at, x[:2] + 1),
    "take": lambda x, at: x[:, 0].take(at),
}


@pytest.mark.parametrize("kind", INDEXED)
def test_index_out_of_range(kind, tmp_path):
    class One(nn.Module):
        def forward(self, x, at):
            return INDEXED[kind](x, at)

    x, at = torch.randn(3, 2), torch.tensor([0, 2])
    loaded = graft.load(graft.export(One(), (x, at), path=tmp_path / "one.pte"))
    for index in (3, -4, 2**33, -(2**63)):
        with pytest.raises(graft.ExecutionError) as caught:
            loaded(x, torch.tensor([1, index]))
        said = str(caught.value)
        node = r"\w*(embedding|index|gather|scatter)\w*"
        assert re.search(rf"{node}: index {index} is out of range for dimension \d of size 3", said), said
        assert torch.equal(loaded(x, at), One()(x, at))


def test_there_are_thirty_kinds():
    assert len(CALLS) >= 30
