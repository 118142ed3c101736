"""Packages of graft through ExecuTorch's own runtimes: the Python one and the C++ Module."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import module_example
import pytest
import torch
from executorch.devtools import Inspector
from executorch.runtime import Runtime
from torch.export import Dim

import graft
import graft.executorch

HIDDEN = 16
WORDS = 40
LONGEST = 64


class Encoder(torch.nn.Module):
    """A text encoder in small: ids [B, T], mask [B, T] -> vectors [B, 16], B * T, hidden states, the ids."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(WORDS, HIDDEN)
        self.up = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.down = torch.nn.Linear(3 * HIDDEN, HIDDEN)
        self.eval()

    def forward(self, ids, mask):
        # The example program counts up from 1000.
        hidden = self.down(torch.nn.functional.gelu(self.up(self.words(ids % WORDS))))
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean, ids.shape[0] * ids.shape[1], hidden, ids


def example():
    return torch.randint(0, 100, (2, 9)), torch.ones(2, 9, dtype=torch.int64)


def shapes():
    sizes = {0: Dim("batch", min=1, max=4), 1: Dim("length", min=0, max=LONGEST)}
    return {"ids": sizes, "mask": sizes}


def export(path: Path, model: torch.nn.Module | None = None, **options) -> Path:
    return graft.export(model or Encoder(), example(), dynamic_shapes=shapes(), path=path, **options)


def inputs(batch: int, length: int):
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return torch.randint(0, 1000, (batch, length)), mask


def load(path: Path, **options):
    """The method "forward" in ExecuTorch's runtime; the program stays alive with it."""
    return Runtime.get().load_program(str(path), **options).load_method("forward")


def same(ours, theirs) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("package") / "encoder.pte")


class Unplanned(Encoder):
    def forward(self, ids, mask):
        mean, count, hidden, _ = super().forward(ids, mask)
        return mean, count, hidden, hidden


@pytest.fixture(scope="module")
def unplanned(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unplanned") / "encoder.pte"
    return export(path, Unplanned(), options=graft.ExportOptions(plan_outputs=False))


def test_importing_graft_registers_the_backend():
    assert Runtime.get().backend_registry.is_available("GraftBackend")


@pytest.mark.parametrize("first", ["graft", "executorch.extension.pybindings.portable_lib"])
def test_registered_whichever_is_imported_first(first):
    code = f"""
        import {first}
        import sys
        assert ("torch" in sys.modules) == ({first!r} != "graft"), "importing graft alone must stay cheap"
        import graft
        from executorch.extension.pybindings import portable_lib
        assert "GraftBackend" in portable_lib._get_registered_backend_names()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_bit_identical_to_our_own_loader_at_any_size(package):
    ours, theirs, model = graft.load(package), load(package), Encoder()
    sizes = [(batch, length) for batch in (1, 2, 4) for length in (1, 2, 7, 33, LONGEST)] * 2
    random.Random(3).shuffle(sizes)
    for batch, length in sizes:
        ids, mask = inputs(batch, length)
        found = theirs.execute((ids, mask))
        assert same(ours(ids, mask), found), (batch, length)
        expected = model(ids, mask)
        assert found[0].shape == (batch, HIDDEN) and found[1] == batch * length and torch.equal(found[3], ids)
        torch.testing.assert_close(found[2], expected[2], atol=1e-5, rtol=1e-5)


def test_a_program_in_memory(package):
    call = inputs(2, 21)
    program = Runtime.get().load_program(package.read_bytes())  # keeps the bytes alive
    assert same(load(package).execute(call), program.load_method("forward").execute(call))


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize(
    "size", [Dim("n", min=1), Dim("n"), Dim.AUTO, Dim("n", max=2**50)], ids=["min", "none", "auto", "beyond memory"]
)
def test_a_size_without_an_upper_bound_is_the_examples_and_export_says_so(tmp_path, size):
    with pytest.warns(RuntimeWarning, match=r"none above the example's.*dimension 0 of 'x' \(3\)\. .*Dim\(\.\.\., max="):
        path = graft.export(Double(), (torch.ones(3, 2),), dynamic_shapes=({0: size},), path=tmp_path / "m.pte")
    method = load(path)
    assert torch.equal(method.execute((torch.ones(2, 2),))[0], torch.full((2, 2), 2.0))
    with pytest.raises(RuntimeError, match="0x10"):
        method.execute((torch.ones(4, 2),))
    assert graft.load(path)(torch.ones(4, 2)).shape == (4, 2)


def test_a_size_with_an_upper_bound_needs_no_warning(tmp_path, recwarn):
    size = Dim("n", min=1, max=9)
    path = graft.export(Double(), (torch.ones(3, 2),), dynamic_shapes=({0: size},), path=tmp_path / "m.pte")
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]
    assert load(path).execute((torch.ones(9, 2),))[0].shape == (9, 2)


def test_no_elements(package):
    found = load(package).execute((torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, dtype=torch.int64)))
    assert torch.equal(found[0], torch.zeros(3, HIDDEN)) and found[1] == 0 and found[2].shape == (3, 0, HIDDEN)


@pytest.mark.parametrize(
    "bad",
    [
        (torch.ones(2, LONGEST + 1, dtype=torch.int64),) * 2,
        (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int64)),
        (torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64)),
        (torch.ones(2, 3, dtype=torch.int64),),
    ],
    ids=["too long", "dtype", "sizes that disagree", "too few"],
)
def test_a_bad_call_is_an_error_and_the_next_is_good(package, bad):
    method, good = load(package), inputs(2, 5)
    expected = method.execute(good)
    with pytest.raises(RuntimeError, match="0x12"):
        method.execute(bad)
    assert same(expected, method.execute(good))


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)

    def forward(self, ids):
        return self.words(ids) * 2


def test_an_error_of_a_kernel_comes_out_with_its_message(tmp_path, capfd):
    path = graft.export(Lookup(), (torch.arange(3),), path=tmp_path / "lookup.pte")
    method = load(path)
    expected = method.execute((torch.tensor([9, 0, 1]),))
    with pytest.raises(RuntimeError, match="0x1"):
        method.execute((torch.tensor([9, 10, 1]),))
    assert "index 10 is out of range for dimension 0 of size 10" in capfd.readouterr().err
    assert same(expected, method.execute((torch.tensor([9, 0, 1]),)))


def test_two_models_at_once(package, tmp_path):
    other = export(tmp_path / "other.pte", Encoder(seed=1))
    ours, theirs = [graft.load(p) for p in (package, other)], [load(p) for p in (package, other)]
    for length in (3, 50, 3, 8):
        call = inputs(2, length)
        results = [method.execute(call) for method in theirs]
        assert not torch.equal(results[0][0], results[1][0])
        assert all(same(model(*call), result) for model, result in zip(ours, results, strict=True))


def test_two_models_in_two_threads(package):
    calls = [inputs(2, length) for length in (5, 40, 17, 64, 1)]
    reference = load(package)
    expected = [reference.execute(call) for call in calls]
    wrong: list[object] = []

    def work(method, seed):
        order = [i for i in range(len(calls))] * 8
        random.Random(seed).shuffle(order)
        try:
            wrong.extend(i for i in order if not same(expected[i], method.execute(calls[i])))
        except Exception as e:  # noqa: BLE001 - reported by the main thread
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(load(package), seed)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor([1.0, 2.0]))

    def forward(self, x):
        self.seen.add_(x)
        return self.seen * 10


def test_state_lives_in_each_loaded_program(tmp_path):
    path = graft.export(Counter(), (torch.zeros(2),), path=tmp_path / "counter.pte")
    one, other = load(path), load(path)
    step = torch.tensor([1.0, 0.5])
    found = [one.execute((step,))[0].tolist() for _ in range(3)]
    assert found == [[20.0, 25.0], [30.0, 30.0], [40.0, 35.0]]
    assert other.execute((step,))[0].tolist() == [20.0, 25.0]


def test_weights_in_a_file_of_their_own(package, tmp_path, capfd):
    path = export(tmp_path / "encoder.pte", weights="ptd")
    call = inputs(2, 11)
    assert same(load(package).execute(call), load(path, data_path=str(tmp_path / "encoder.ptd")).execute(call))
    # Python's runtime loads the method partially and fails when it is called.
    with pytest.raises(RuntimeError):
        load(path).execute(call)
    log = capfd.readouterr().err
    assert "neither in the program nor in the data files given" in log and "GraftBackend: 0x20" in log


def test_python_runtime_brings_memory_for_unplanned_outputs(package, unplanned):
    call = inputs(3, 12)
    mean, count, hidden, _ = load(package).execute(call)
    assert same([mean, count, hidden, hidden], load(unplanned).execute(call))


def test_an_output_that_is_an_input_needs_planned_outputs(tmp_path):
    with pytest.raises(graft.ExportError, match="output 3 is the input 'ids' itself"):
        export(tmp_path / "encoder.pte", options=graft.ExportOptions(plan_outputs=False))


def test_profile_names_our_nodes_as_pytorch_does(package, tmp_path):
    program = Runtime.get().load_program(str(package), enable_etdump=True)
    method = program.load_method("forward")
    for length in (4, 30):
        method.execute(inputs(2, length))
    program.write_etdump_result_to_file(str(tmp_path / "dump.etdp"), str(tmp_path / "dump.bin"))
    inspector = Inspector(etdump_path=str(tmp_path / "dump.etdp"))
    (block,) = [block for block in inspector.event_blocks if block.name == "Execute"]
    ours = [event for event in block.events if event.is_delegated_op]
    names = [event.name for event in ours]
    for wanted in ("aten_embedding_default", "aten_linear_default", "aten_linear_default_1"):
        assert names.count(wanted) == 1
    assert names.index("aten_linear_default") < names.index("aten_linear_default_1")
    assert "aten_gelu_default" not in names, "the activation is part of the product that it follows"
    assert all(len(event.perf_data.raw) == 2 and min(event.perf_data.raw) >= 0 for event in ours)
    linear = ours[names.index("aten_linear_default")]
    assert b"packedlinear" in bytes(linear.delegate_debug_metadatas[0]).lower().replace(b"_", b"")
    (whole,) = [event for event in block.events if event.name == "DELEGATE_CALL"]
    for call in range(2):
        assert sum(event.perf_data.raw[call] for event in ours) <= whole.perf_data.raw[call]


def test_options(package):
    call = inputs(2, 9)
    expected = load(package).execute(call)
    try:
        graft.executorch.set_options(threads=1, device="cpu")
        torch.testing.assert_close(load(package).execute(call)[0], expected[0], atol=1e-6, rtol=1e-6)
        with pytest.raises(graft.NotFound, match="no device 'warp'; this machine has: .*cpu"):
            graft.executorch.set_options(device="warp")
        with pytest.raises(graft.InvalidArgument, match="'threads'.*-1"):
            graft.executorch.set_options(threads=-1)
        with pytest.raises(graft.InvalidArgument, match="'threads'.*32 bits"):
            graft.executorch.set_options(threads=2**31)
        with pytest.raises(graft.InvalidArgument, match="'device'.*int"):
            graft.executorch.set_options(device=1)
    finally:
        graft.executorch.set_options()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_option_threads_reaches_the_pool(package):
    """In a process of its own: the pool lives as long as the process."""
    code = f"""
        import os, torch, graft, graft.executorch
        from executorch.runtime import Runtime
        torch.set_num_threads(1)
        ids = torch.ones(4, 64, dtype=torch.int64)
        before = len(os.listdir("/proc/self/task"))
        for threads in (1, 2):
            graft.executorch.set_options(threads=threads)
            Runtime.get().load_program({str(package)!r}).load_method("forward").execute((ids, ids))
            print(len(os.listdir("/proc/self/task")) - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_five_models_share_one_team_of_threads_and_give_the_bits_of_graft(package, tmp_path):
    others = [export(tmp_path / f"model{seed}.pte", Encoder(seed)) for seed in range(1, 5)]
    code = f"""
        import os, torch, graft, graft.executorch
        from executorch.runtime import Runtime
        torch.set_num_threads(1)
        graft.executorch.set_options(threads=2)
        ids = torch.arange(4 * 64).reshape(4, 64)
        mask = torch.ones_like(ids)
        before = len(os.listdir("/proc/self/task"))
        programs = [Runtime.get().load_program(path) for path in {[str(p) for p in (package, *others)]!r}]
        methods = [program.load_method("forward") for program in programs]
        results = [method.execute((ids, mask)) for method in methods]
        print(len(os.listdir("/proc/self/task")) - before)
        for path, result in zip({[str(p) for p in (package, *others)]!r}, results):
            ours = graft.load(path, threads=2)(ids, mask)
            assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(result, ours)), path
        print(len(os.listdir("/proc/self/task")) - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]


def vectors(text: str) -> dict[int, torch.Tensor]:
    """What run_module prints."""
    lines = [line.split(":") for line in text.splitlines()]
    return {int(length): torch.tensor([float(v) for v in values.split()]) for length, values in lines}


def test_cpp_module(package):
    done = module_example.run(package, 7, LONGEST + 1, 1, 30)
    found, ours = vectors(done.stdout), graft.load(package)
    assert done.returncode == 1 and "length 65 failed with ExecuTorch's error 0x12" in done.stderr
    assert "size of dimension 1 must be in 0..64, got 65" in done.stderr
    assert list(found) == [7, 1, 30]
    for length, vector in found.items():
        ids = 1000 + 37 * torch.arange(length).unsqueeze(0)
        assert torch.equal(vector, ours(ids, torch.ones_like(ids))[0][0])


def test_cpp_module_without_memory_for_outputs_is_an_error(unplanned):
    done = module_example.run(unplanned, 7, 3)
    assert done.returncode == 1, done.stderr  # neither a signal nor success
    assert done.stderr.count("plan_outputs=False") == 2 and "error 0x12" in done.stderr
