"""What a person or a damaged file can do wrong: each a typed error that names the thing, and the next good call works.

The readers' own rules are tested beside them (src/ir, src/package), the command line in src/cli/cli_test.py; here
everything goes through the doors that people use.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.runtime import Runtime
from torch.export import Dim

import graft
import graft.executorch
from graft import _C

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "golden.pte"
ROWS = 7


class Lookup(torch.nn.Module):
    """One place for each way to read at an index."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(rows, 3)
        self.line = torch.nn.Linear(3, 5)

    def forward(self, ids, picks, x):
        rows = self.line(self.table(ids))
        return rows, x.index_select(1, picks), x.gather(1, picks[None].expand(x.shape[0], -1)), x[:, picks]


def example(n: int = 4):
    return torch.arange(n) % ROWS, torch.tensor([0, 3, 1]), torch.randn(n, 4)


SHAPES = {"ids": {0: Dim("n", min=1, max=32)}, "picks": None, "x": {0: Dim("n", min=1, max=32)}}


def export(path: Path, model: torch.nn.Module | None = None, **options) -> Path:
    return graft.export(model or Lookup(), example(), dynamic_shapes=SHAPES, path=path, **options)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("lookup") / "lookup.pte")


@pytest.fixture(scope="module")
def loaded(package) -> graft.Model:
    return graft.load(package)


def good_call(loaded, n: int = 5) -> None:
    call = example(n)
    with torch.no_grad():
        expected = Lookup()(*call)
    for found, wanted in zip(loaded(*call), expected, strict=True):
        torch.testing.assert_close(found, wanted)


# --- files ---


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 40, 64, 200, 0.1, 0.5, 0.9, -1])
def test_truncated_file(package, tmp_path, kept):
    whole = package.read_bytes()
    length = int(len(whole) * kept) if isinstance(kept, float) else kept if kept >= 0 else len(whole) + kept
    path = tmp_path / "cut.pte"
    path.write_bytes(whole[:length])
    with pytest.raises(graft.InvalidProgram, match="cut.pte"):
        graft.load(path)
    good_call(graft.load(package))


def test_flipped_bits(tmp_path):
    """Each copy loads or is refused; one that loads runs or fails with an error of ours. Weights differ by their hash."""
    whole = GOLDEN.read_bytes()
    call = torch.randint(0, 20, (2, 5)), torch.ones(2, 5, dtype=torch.int64)
    expected = graft.load(GOLDEN).encode(*call)["pooled"]
    chosen, refused, ran = random.Random(3), 0, 0
    path = tmp_path / "flipped.pte"
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chosen.choice([1, 1, 3])):
            damaged[chosen.randrange(len(damaged))] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        try:
            graft.load(path, options=graft.LoadOptions(verify_hashes=True)).methods["encode"](*call)
            ran += 1
        except graft.Error as e:
            assert str(e)
            refused += 1
        except KeyError as e:  # the damage is in the method's name
            assert e.args == ("encode",)
            refused += 1
    assert refused > 20 and ran > 20
    assert torch.equal(graft.load(GOLDEN).encode(*call)["pooled"], expected)


def program_at(data: bytes) -> int:
    """Where our program starts in a package: its identifier is in bytes 4 to 8."""
    at = data.index(b"GRFT") - 4
    assert data.find(b"GRFT", at + 8) == -1
    return at


def with_version(data: bytes, major: int) -> bytes:
    """`major` is the first field of the root table (schema/graft.fbs)."""
    start = program_at(data)
    table = start + struct.unpack_from("<I", data, start)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (offset,) = struct.unpack_from("<H", data, vtable + 4)
    assert offset != 0
    changed = bytearray(data)
    struct.pack_into("<H", changed, table + offset, major)
    return bytes(changed)


def test_wrong_version(package, tmp_path):
    path = tmp_path / "version.pte"
    whole = package.read_bytes()
    (major,) = {m for m in range(100) if with_version(whole, m) == whole}
    for other in (major + 1, 0xFFFF):
        path.write_bytes(with_version(whole, other))
        with pytest.raises(graft.InvalidProgram, match=f"version.pte.*{other}"):
            graft.load(path)
    path.write_bytes(with_version(whole, major))
    good_call(graft.load(path))
    container = bytearray(whole)
    container[4:8] = b"ET99"
    path.write_bytes(container)
    with pytest.raises(graft.InvalidProgram, match="version.pte"):
        graft.load(path)


@pytest.mark.parametrize("content", [b"", b"hello, I am a text", bytes(4096), b"\xff" * 4096, b"PK\x03\x04" * 100])
def test_other_files(tmp_path, content):
    (tmp_path / "other.pte").write_bytes(content)
    with pytest.raises(graft.InvalidProgram, match="other.pte"):
        graft.load(tmp_path / "other.pte")


def test_files_that_are_not_there(tmp_path, package):
    with pytest.raises(graft.NotFound, match="none.pte"):
        graft.load(tmp_path / "none.pte")
    with pytest.raises(graft.SystemError, match=str(tmp_path)):
        graft.load(tmp_path)
    with pytest.raises(graft.NotFound, match="none.ptd"):
        graft.load(package, weights=[tmp_path / "none.ptd"])


# --- weights ---


def test_missing_and_wrong_sized_weights(tmp_path):
    path = export(tmp_path / "a.pte", weights="ptd")
    export(tmp_path / "b.pte", Lookup(ROWS + 2), weights="ptd")
    with pytest.raises(graft.NotFound, match=r"no weight 'table.weight', weight 'line.weight', weight 'line.bias' in .*a.pte'"):
        graft.load(path)
    with pytest.raises(graft.InvalidProgram, match=r"'table.weight'.* must have 84 bytes, .*b.ptd' has 108"):
        graft.load(path, weights=[tmp_path / "b.ptd"])
    with pytest.raises(graft.InvalidProgram, match="a.pte"):
        graft.load(path, weights=[path])
    whole = (tmp_path / "a.ptd").read_bytes()
    (tmp_path / "cut.ptd").write_bytes(whole[: len(whole) - 4])
    with pytest.raises(graft.InvalidProgram, match="cut.ptd"):
        graft.load(path, weights=[tmp_path / "cut.ptd"])
    good_call(graft.load(path, weights=[tmp_path / "a.ptd"], options=graft.LoadOptions(verify_hashes=True)))


def test_a_damaged_weight_is_found_by_its_hash(package, tmp_path):
    weight = Lookup().table.weight.detach().numpy().tobytes()
    data = bytearray(package.read_bytes())
    at = data.index(weight)
    data[at + 5] ^= 4
    (tmp_path / "damaged.pte").write_bytes(data)
    with pytest.raises(graft.InvalidProgram, match=r"damaged.pte.*'table.weight'.*SHA-256"):
        graft.load(tmp_path / "damaged.pte", options=graft.LoadOptions(verify_hashes=True))


# --- calls ---

IDS, PICKS, X = example()

CALLS = {
    "dtype": ((IDS.int(), PICKS, X), "'ids'.* must have dtype i64, got i32"),
    "dtype of a float": ((IDS, PICKS, X.double()), "'x'.* must have dtype f32, got f64"),
    "dtype without a name here": ((IDS, PICKS, X.to(torch.complex64)), "input 2 .*complex64"),
    "rank": ((IDS[None], PICKS, X), r"'ids'.*\(rank 1\), got i64\[1, 4\] \(rank 2\)"),
    "rank 0": ((IDS[0], PICKS, X), r"'ids'.*\(rank 1\), got i64\[\] \(rank 0\)"),
    "size": ((IDS, PICKS[:2], X), "'picks'.*dimension 0 must be 3, got 2"),
    "size out of its range": ((torch.zeros(33, dtype=torch.int64), PICKS, torch.zeros(33, 4)), r"1..32, got 33"),
    "no elements": ((IDS[:0], PICKS, X[:0]), r"'ids'.*1..32, got 0"),
    "sizes that disagree": ((IDS[:3], PICKS, X), "'x'.*dimension 0 must be 3 as that of dimension 0 of .*'ids'"),
    "too few": ((IDS, PICKS), "arranged"),
    "too many": ((IDS, PICKS, X, X), "arranged"),
    "a keyword": ((IDS, PICKS), "keyword"),
    "a number": ((IDS, PICKS, 1.5), "'x'.* must be a tensor .*got a number"),
    "None": ((IDS, PICKS, None), "input 2"),
    "a text": ((IDS, PICKS, "x"), "input 2"),
    "an array of objects": ((IDS, PICKS, np.zeros((4, 4), object)), "input 2 .*dtype object"),
    "another device": ((IDS, PICKS, X.to("meta")), "input 2 .*CPU.*meta"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_bad_calls(loaded, kind):
    args, message = CALLS[kind]
    good_call(loaded)  # a plan with the same sizes is cached
    with pytest.raises(graft.InvalidArgument, match=message):
        loaded(*args, **({"x": X} if kind == "a keyword" else {}))
    good_call(loaded)


def test_bad_outputs(loaded):
    call = example(5)
    room = [torch.empty_like(t) for t in loaded(*call)]
    for k, wrong in [
        (0, room[0].double()),
        (1, torch.empty(5, 4)),
        (2, torch.empty(3, 5).t()),
        (3, torch.empty(0)),
        (0, None),
        (0, 3),
    ]:
        with pytest.raises(graft.InvalidArgument, match="out"):
            loaded(*call, out=tuple([*room[:k], wrong, *room[k + 1 :]]))
    with pytest.raises(graft.InvalidArgument, match="4 outputs"):
        loaded(*call, out=tuple(room[:3]))
    for found, wanted in zip(loaded(*call, out=tuple(room)), loaded(*call), strict=True):
        assert torch.equal(found, wanted)


def test_methods_that_are_not_there(loaded):
    with pytest.raises(AttributeError, match="no method 'backward'; it has .*forward"):
        loaded.backward(*example())
    good_call(loaded)


def test_sizes_that_no_memory_has(package):
    """Sizes of a caller below Python's tensors: bytes that do not fit 64 bits must not wrap."""
    session = _C.Session(_C.Program.load(str(package)), threads=1)
    for sizes in ((2**62,), (2**40, 2**40), (2**40, 2**40, 0), (-1,), (1,) * 9):
        with pytest.raises(graft.InvalidArgument):
            session.run("forward", [(0, 8, sizes), (0, 8, (3,)), (0, 0, (4, 4))], lambda *_: 0)


def test_a_result_larger_than_memory(tmp_path):
    class Grows(torch.nn.Module):
        def forward(self, x, n: int):
            return (torch.full((n, 8), 1.0) + x).sum(0)

    shapes = {"x": None, "n": Dim.DYNAMIC}
    loaded = graft.load(graft.export(Grows(), (torch.ones(8), 3), dynamic_shapes=shapes, path=tmp_path / "grows.pte"))
    good = torch.full((8,), 8.0)
    assert torch.equal(loaded(torch.ones(8), 4), good)
    with pytest.raises(graft.SystemError, match="cannot allocate"):
        loaded(torch.ones(8), 2**48)
    for n in (2**59, 2**62):
        with pytest.raises(graft.InvalidArgument, match="64 bits"):
            loaded(torch.ones(8), n)
    for n in (2**63, -(2**70)):
        with pytest.raises(graft.InvalidArgument, match="input 1 .*64 bits"):
            loaded(torch.ones(8), n)
    with pytest.raises(graft.InvalidArgument, match="-1"):
        loaded(torch.ones(8), -1)
    with pytest.raises(graft.InvalidArgument, match="input 1 .*must be a number, got f32"):
        loaded(torch.ones(8), torch.ones(1))
    with pytest.raises(graft.InvalidArgument, match="input 1"):
        loaded(torch.ones(8), 0.5)
    assert torch.equal(loaded(torch.ones(8), 4), good)


# --- devices ---


def test_a_device_that_is_not_there(package, monkeypatch):
    with pytest.raises(graft.NotFound, match="no device 'warp'; this machine has: .*cpu"):
        graft.load(package, device="warp")
    monkeypatch.setenv("GRAFT_DEVICE", "drive")
    with pytest.raises(graft.NotFound, match="no device 'drive'"):
        graft.load(package)
    good_call(graft.load(package, device="cpu"))


# --- indices out of range ---


@pytest.mark.parametrize("index", [ROWS, -1, 2**31, 2**40, -(2**63)])
def test_embedding_index_out_of_range(loaded, index):
    ids, picks, x = example(5)
    ids[3] = index
    with pytest.raises(graft.ExecutionError, match=rf"embedding.*index {index} is out of range for dimension 0 of size {ROWS}"):
        loaded(ids, picks, x)
    good_call(loaded)


@pytest.mark.parametrize("index", [4, -1, 2**40])
def test_index_select_and_gather_index_out_of_range(loaded, index):
    ids, picks, x = example(5)
    picks[1] = index
    # Three nodes read this index; the first one stops the run.
    with pytest.raises(graft.ExecutionError, match=rf"(index_select|gather|index).*index {index} is out of range for dimension 1"):
        loaded(ids, picks, x)
    good_call(loaded)


@pytest.mark.parametrize("name", ["index_select", "gather", "index", "index_put", "scatter"])
def test_each_kind_alone(tmp_path, name):
    class One(torch.nn.Module):
        def forward(self, x, at):
            match name:
                case "index_select":
                    return x.index_select(0, at)
                case "gather":
                    return x.gather(0, at[:, None])
                case "index":
                    return x[at]
                case "index_put":
                    return x.index_put((at,), x[:1])
                case _:
                    return x.scatter(0, at[:, None], x)

    x, at = torch.randn(3, 2), torch.tensor([0, 2])
    loaded = graft.load(graft.export(One(), (x, at), path=tmp_path / "one.pte"))
    for index in (3, -4, 2**33):
        with pytest.raises(graft.ExecutionError, match=rf"{name}.*index {index} is out of range for dimension 0 of size 3"):
            loaded(x, torch.tensor([1, index]))
        assert torch.equal(loaded(x, at), One()(x, at))


# --- ExecuTorch ---


def execute_good(method) -> None:
    call = example(5)
    with torch.no_grad():
        expected = Lookup()(*call)
    for found, wanted in zip(method.execute(call), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_executorch_bad_calls(package, capfd):
    program = Runtime.get().load_program(str(package))
    method = program.load_method("forward")
    execute_good(method)
    bad_id = IDS.clone()
    bad_id[2] = ROWS
    for args, code, message in [
        ((IDS.int(), PICKS, X), "0x", ""),
        ((torch.zeros(33, dtype=torch.int64), PICKS, torch.zeros(33, 4)), "0x", ""),
        ((IDS, PICKS), "0x12", ""),
        ((IDS[:3], PICKS, X), "0x12", "must be 3 as that of dimension 0"),
        ((bad_id, PICKS, X), "0x1", f"index {ROWS} is out of range for dimension 0 of size {ROWS}"),
        ((IDS, PICKS + 4, X), "0x1", "is out of range for dimension 1 of size 4"),
    ]:
        capfd.readouterr()
        with pytest.raises(RuntimeError, match=code):
            method.execute(args)
        assert message in capfd.readouterr().err
        execute_good(method)


def test_executorch_damaged_delegate(package, tmp_path, capfd):
    whole = package.read_bytes()
    start = program_at(whole)
    (major,) = {m for m in range(100) if with_version(whole, m) == whole}
    damaged = {"another version": with_version(whole, major + 1)}
    for at in (0, 1, 4, 16, 24, 40):  # root, identifier, the first tables
        copy = bytearray(whole)
        copy[start + at] ^= 0x55
        damaged[f"byte {at}"] = bytes(copy)
    failed = 0
    for name, data in damaged.items():
        path = tmp_path / "damaged.pte"
        path.write_bytes(data)
        capfd.readouterr()
        try:
            Runtime.get().load_program(path.read_bytes()).load_method("forward").execute(example())
        except RuntimeError:
            failed += 1
            assert "GraftBackend" in capfd.readouterr().err, name
    assert failed >= 3
    execute_good(Runtime.get().load_program(str(package)).load_method("forward"))


def test_executorch_missing_weight(tmp_path, capfd):
    path = export(tmp_path / "a.pte", weights="ptd")
    export(tmp_path / "b.pte", Lookup(ROWS + 2), weights="ptd")
    for data, message in [(None, "table.weight"), (tmp_path / "b.ptd", "table.weight")]:
        capfd.readouterr()
        with pytest.raises(RuntimeError):
            options = {"data_path": str(data)} if data else {}
            Runtime.get().load_program(str(path), **options).load_method("forward").execute(example())
        assert message in capfd.readouterr().err
    execute_good(Runtime.get().load_program(str(path), data_path=str(tmp_path / "a.ptd")).load_method("forward"))


# --- programs ---


def test_a_node_whose_argument_is_of_another_kind_is_refused(tmp_path):
    """By PyTorch where it runs the node again on the way, else by graft; python/graft/exporter/serialize_test.py has the kinds."""
    class Sums(torch.nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 1)

    program = torch.export.export(Sums(), (torch.randn(2, 3),))
    (node,) = [n for n in program.graph.nodes if n.op == "call_function"]
    node.args = (node.args[0], 0.5)
    with pytest.raises(RuntimeError, match="'dim'.*float"):
        graft.export(program, path=tmp_path / "p.pte")
    assert not (tmp_path / "p.pte").exists()
