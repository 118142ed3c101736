"""Tensors whose values are read while a model is traced."""

import pytest
import torch

from graft.hf import known_values
from graft.hf.known_values import Known
from graft.hf.structure import build, flatten

GRID = torch.tensor([[1, 4, 6], [2, 2, 2]])


class Cuts(torch.nn.Module):
    """As vision towers do: cuts by numbers of patches, positions by rows and columns."""

    def forward(self, x):
        grid = Known.of(GRID)
        lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        parts = torch.split(x, lengths.tolist())
        ramps = [torch.arange(length) for length in lengths]
        turned = torch.cat([part * ramp for part, ramp in zip(parts, ramps)])
        for frames, rows, columns in grid:
            turned = turned + int(frames) * (rows + columns)
        return turned * torch.ones(lengths.sum())


def test_code_may_read_them_in_a_trace():
    x = torch.randn(32)
    with known_values.Numbers():
        program = torch.export.export(Cuts(), (x,), strict=False)
        expected = Cuts()(x)
    assert torch.equal(program.module()(x), expected)


GRIDS = Known.of(torch.tensor([[4, 8], [4, 4]]))


class Merges(torch.nn.Module):
    """As Mistral 3 merges patches: each picture seen as its rows and columns, then cut by numbers of a copy of the sizes."""

    def forward(self, x):
        sizes = [(rows // 2, columns // 2) for rows, columns in GRIDS]
        parts = x.split([rows * columns for rows, columns in sizes])
        grids = [part.view(*size, 3).permute(2, 0, 1).unsqueeze(0) for part, size in zip(parts, sizes)]
        merged = torch.cat([torch.nn.functional.unfold(grid, 2, stride=2).flatten(0, 1).t() for grid in grids])
        counts = (torch.as_tensor(GRIDS.view(GRIDS[1, 0] // 2, 2), device=x.device) // 4).prod(-1).tolist()
        return [part.sum(0) for part in torch.split(merged, counts)]


def test_tensors_are_cut_and_seen_by_them():
    x = torch.randn(12, 3)
    with known_values.Numbers():
        program = torch.export.export(Merges(), (x,), strict=False)
        expected = Merges()(x)
    assert len(expected) == 2 and all(torch.equal(a, b) for a, b in zip(program.module()(x), expected))


def test_beside_other_tensors_they_are_constants():
    known = Known.of(GRID)
    assert type(known + 1) is Known and type(known.prod(-1)) is Known and known.prod(-1).tolist() == [24, 8]
    mixed = known + torch.zeros(2, 3)
    assert type(mixed) is torch.Tensor and torch.equal(mixed, GRID.float())
    assert known.shape == (2, 3) and known.dtype == torch.int64
    known[0, 0] = 5
    assert GRID[0, 0] == 1  # its own values


def test_values_belong_to_the_structure():
    def of(grid):
        return flatten({"x": torch.ones(3), "grid": grid}, valued=frozenset((".grid",)))

    flat = of(GRID)
    assert flat.structure == of(GRID.clone()).structure and len(flat.tensors) == 1
    assert hash(flat.structure) == hash(of(GRID.clone()).structure)
    for other in (GRID + 1, GRID.int(), GRID[:1]):
        assert flat.structure != of(other).structure
    again = build(flat.structure, flat.tensors, [])
    assert torch.equal(again["grid"], GRID) and again["grid"] is not GRID
    known = build(flat.structure, flat.tensors, [], values=Known.of)
    assert type(known["grid"]) is Known and flatten(known).structure == flat.structure


@pytest.mark.parametrize("known", [True, False])
def test_helpers_of_transformers_are_computed_at_once(known, monkeypatch):
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as code

    model = torch.nn.Linear(1, 1)
    monkeypatch.setattr(type(model), "__module__", code.__name__)
    plain = code.get_vision_window_index
    expected = plain(GRID, 2, 16, 4)
    with known_values.helpers(model):
        assert code.get_vision_window_index is not plain
        found = code.get_vision_window_index(Known.of(GRID) if known else GRID, 2, 16, 4)
    assert code.get_vision_window_index is plain
    assert all(torch.equal(a, b) and (type(b) is Known) == known for a, b in zip(expected, found))
