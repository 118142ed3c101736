"""One package, any size: plans are made on the real sizes, and so is the memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import graft

LENGTH = Dim("length", min=1, max=1024)


def export(model: torch.nn.Module, args, dynamic_shapes=None, *, path: Path):
    return graft.load(graft.export(model.eval(), args, dynamic_shapes=dynamic_shapes, path=path))


def plans(model) -> list[dict]:
    return model.describe()["methods"][0]["plans"]


def bytes_of(plan: dict, segment: str) -> list[int]:
    """Sizes of the allocations of one segment, in order."""
    return [a["bytes"] for a in plan["allocations"] if a["memory"].lower() == segment]


def memory(model, *inputs) -> dict:
    """What the first call of a model plans and takes."""
    model(*inputs)
    (plan,) = plans(model)
    counters = model.counters()
    return {
        "arena": plan["arena_bytes"],
        "outputs": bytes_of(plan, "output"),
        "staging": counters["staging_bytes"],
    }


def test_linear_planned_at_3_and_at_7(tmp_path):
    model = torch.nn.Linear(8, 16)
    run = export(model, (torch.randn(5, 8),), ({0: LENGTH},), path=tmp_path / "linear.pte")
    for rows in (3, 7, 3):
        x = torch.randn(rows, 8)
        found = run(x)
        assert found.shape == (rows, 16)
        torch.testing.assert_close(found, model(x).detach(), atol=1e-6, rtol=1e-5)
    assert run.counters()["plan_misses"] == 2 and run.counters()["plan_hits"] == 1
    assert sorted(bytes_of(plan, "output") for plan in plans(run)) == [[3 * 16 * 4], [7 * 16 * 4]]


class Heads(torch.nn.Module):
    """[1, seq, hidden] to [1, seq, 16, 64], as Qwen3 does for its heads; the doubling keeps it from being a view."""

    def forward(self, x):
        return x.view(1, x.shape[1], 16, 64).transpose(1, 2) * 2


def test_reshape_at_7_after_an_export_at_127(tmp_path):
    run = export(Heads(), (torch.randn(1, 127, 1024),), ({1: LENGTH},), path=tmp_path / "heads.pte")
    x = torch.randn(1, 7, 1024)
    found = run(x)
    assert found.shape == (1, 16, 7, 64) and torch.equal(found, Heads()(x))
    # Seven positions are computed, not 127.
    (plan,) = plans(run)
    assert bytes_of(plan, "output") == [7 * 1024 * 4] and bytes_of(plan, "input") == [7 * 1024 * 4]
    assert memory(export(Heads(), (x,), path=tmp_path / "fixed.pte"), x)["arena"] == plan["arena_bytes"]


class Creation(torch.nn.Module):
    """Sizes, contents and bounds that follow the input's length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(1024, 3))

    def forward(self, x):
        length = x.shape[0]
        steps = torch.arange(length, dtype=torch.float32) + x[:, 0]
        filled = torch.full((length, 2), 0.25) + steps.unsqueeze(1)
        positions = self.table[:length] * x  # to a dynamic end
        tail = x[2:] * 1.5  # from a fixed begin to the end
        head = x[: length - 2] - 1
        spread = x[:1].expand(length, 3) * steps.unsqueeze(1)
        return steps, filled, positions, tail, head, spread


@pytest.fixture(scope="module")
def creation(tmp_path_factory):
    model, length = Creation(), Dim("length", min=4, max=1024)
    path = tmp_path_factory.mktemp("creation") / "creation.pte"
    return model, graft.export(model, (torch.randn(127, 3),), dynamic_shapes=({0: length},), path=path)


@pytest.mark.parametrize("length", [4, 7, 127, 300, 1024])
def test_arange_full_slice_and_expand_follow_the_input(creation, length):
    model, path = creation
    run, x = graft.load(path), torch.randn(length, 3)
    for found, expected in zip(run(x), model(x), strict=True):
        assert found.shape == expected.shape and torch.equal(found, expected)
    (plan,) = plans(run)
    elements = (length, 2 * length, 3 * length, 3 * (length - 2), 3 * (length - 2), 3 * length)
    assert bytes_of(plan, "output") == [4 * n for n in elements]


@pytest.fixture(scope="module")
def decoder():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # not 64 / 4
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.Qwen3ForCausalLM(config).eval()

        def forward(self, input_ids):
            return self.model(input_ids=input_ids, use_cache=False).logits

    model = Decoder()
    with torch.no_grad():
        # Away from values that would hide a weight that is not applied.
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(torch.rand_like(weight) + 0.5)
            else:
                weight.mul_(4)
    return model


@pytest.fixture(scope="module")
def decoder_package(decoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "decoder.pte"
    return graft.export(decoder, (torch.randint(0, 512, (1, 127)),), dynamic_shapes=({1: LENGTH},), path=path)


def test_decoder_at_any_length(decoder, decoder_package):
    run = graft.load(decoder_package)
    for length in (7, 127, 1, 33, 300, 7):
        ids = torch.randint(0, 512, (1, length))
        with torch.no_grad():
            expected = decoder(ids)
        found = run(ids)
        assert found.shape == (1, length, 512)
        error = ((found - expected).abs().max() / expected.abs().max()).item()
        assert error <= 1e-5, f"length {length}: {error}"


def test_decoder_is_causal(decoder_package):
    run = graft.load(decoder_package)
    ids = torch.randint(0, 512, (1, 20))
    other = ids.clone()
    other[0, 12:] = (other[0, 12:] + 1) % 512
    first, second = run(ids), run(other)
    torch.testing.assert_close(first[:, :12], second[:, :12], atol=1e-5, rtol=1e-5)
    assert (first[:, 12:] - second[:, 12:]).abs().max() > 0.1


def test_seven_tokens_compute_seven_positions(decoder, decoder_package, tmp_path):
    ids = torch.randint(0, 512, (1, 7))
    static = graft.export(decoder.eval(), (ids,), path=tmp_path / "fixed.pte")
    # One thread: on several, the launches that compute the dynamic program's sizes are in groups too, which keep memory.
    found, fixed = (memory(graft.load(path, threads=1), ids) for path in (decoder_package, static))
    assert found["outputs"] == [7 * 512 * 4]
    assert found["outputs"] == fixed["outputs"] and found["staging"] == fixed["staging"]
    # The mask, bool[7, 7], and the cosines and sines, f32[7, 32], are constants where the size is fixed.
    of_the_size = 64 + 2 * 7 * 32 * 4
    assert found["arena"] == fixed["arena"] + of_the_size
    found, fixed = (memory(graft.load(path, threads=2), ids) for path in (decoder_package, static))
    assert found["arena"] <= 1.02 * (fixed["arena"] + of_the_size)
    larger = memory(graft.load(decoder_package), torch.randint(0, 512, (1, 127)))
    assert larger["arena"] > 10 * found["arena"] and larger["outputs"] == [127 * 512 * 4]


def test_plans_of_one_session_share_the_arena_of_the_largest(decoder_package):
    run = graft.load(decoder_package)
    sizes = []
    for length in (8, 64, 8):
        run(torch.randint(0, 512, (1, length)))
        sizes.append(run.counters()["arena_bytes"])
    assert sizes[0] < sizes[1] and sizes[2] == sizes[1]


class Wide(torch.nn.Module):
    """1 MB of weights; at its upper bound of 2**18 rows the hidden tensor alone takes 1 GB."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(128, 1024)
        self.down = torch.nn.Linear(1024, 128)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_resident_memory_follows_the_real_size(tmp_path):
    rows = Dim("rows", min=1, max=2**18)
    path = graft.export(Wide(), (torch.randn(8, 128),), dynamic_shapes=({0: rows},), path=tmp_path / "wide.pte")
    code = f"""
        import torch, graft

        def kilobytes(field):
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))

        run = graft.load({str(path)!r}, threads=2)
        inputs = [torch.randn(rows, 128) for rows in (8, 1, 64)]
        before = kilobytes("VmRSS")
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # the peak starts from here
        for x in inputs:
            run(x)
        print(kilobytes("VmHWM") - before, run.counters()["arena_bytes"])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, arena = map(int, done.stdout.split())
    assert grown <= 10 * 1024, f"{grown} kB"
    assert arena <= 64 * 1024 * 4 * 2 + 4096


def test_unbounded_sizes(tmp_path):
    model = Wide()
    run = export(model, (torch.randn(3, 128),), ({0: Dim("rows")},), path=tmp_path / "unbounded.pte")
    (size, _) = run.describe()["methods"][0]["inputs"][0]["dims"]
    assert size["max"] is None
    for rows in (1, 3, 2000, 5):
        x = torch.randn(rows, 128)
        torch.testing.assert_close(run(x), model(x).detach(), atol=1e-5, rtol=1e-5)


def test_a_size_outside_its_range_is_an_error(tmp_path):
    run = export(torch.nn.ReLU(), (torch.randn(5, 2),), ({0: Dim("n", min=3, max=9)},), path=tmp_path / "relu.pte")
    for rows in (2, 10):
        with pytest.raises(graft.InvalidArgument, match=f"3..9, got {rows}"):
            run(torch.randn(rows, 2))
    x = torch.randn(9, 2)
    assert torch.equal(run(x), x.relu())
