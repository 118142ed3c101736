import pytest
import torch

import graft
from graft.exporter import parts

MODES = pytest.mark.parametrize("mode", ["bilinear", "bicubic"])


@MODES
def test_antialiased_resizing(mode):
    """As PyTorch computes it, whether sides grow or shrink."""
    rule = parts.ANTIALIASED[getattr(torch.ops.aten, f"_upsample_{mode}2d_aa").default]
    x = torch.randn(2, 3, 12, 7)
    for size in ((5, 7), (12, 20), (1, 3), (31, 2)):
        expected = torch.nn.functional.interpolate(x, size, mode=mode, antialias=True)
        torch.testing.assert_close(rule(x, size, False), expected, atol=1e-5, rtol=1e-5)
    expected = torch.nn.functional.interpolate(x, scale_factor=(0.4, 1.7), mode=mode, antialias=True)
    torch.testing.assert_close(rule(x, expected.shape[-2:], False, 0.4, 1.7), expected, atol=1e-5, rtol=1e-5)


class _Resized(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, x):
        by_size = torch.nn.functional.interpolate(x, (5, 20), mode=self.mode, antialias=True)
        return by_size, torch.nn.functional.interpolate(x, scale_factor=(0.4, 1.7), mode=self.mode, antialias=True)


@MODES
def test_antialiased_resizing_is_exported(mode, tmp_path):
    """PyTorch has no decomposition of it; pictures of any size."""
    x, other = torch.randn(1, 3, 12, 7), torch.randn(1, 3, 31, 9)
    sizes = {2: torch.export.Dim("rows", min=8, max=64), 3: torch.export.Dim("columns", min=2, max=64)}
    module = _Resized(mode)
    program = torch.export.export(module, (x,), dynamic_shapes=(sizes,))
    before = str(program.graph)
    loaded = graft.load(graft.export(program, path=tmp_path / "resized.pte"))
    for one in (x, other):
        torch.testing.assert_close(tuple(loaded(one)), module(one), atol=1e-5, rtol=1e-5)
    assert str(program.graph) == before


def test_corners_are_refused_by_name(tmp_path):
    class Corners(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.interpolate(x, (5, 20), mode="bilinear", antialias=True, align_corners=True)

    with pytest.raises(graft.ExportError, match="_upsample_bilinear2d_aa"):
        graft.export(Corners(), (torch.randn(1, 3, 12, 7),), path=tmp_path / "corners.pte")


def test_parts_with_assertions():
    """Those give nothing."""

    class Hot(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.one_hot(x, 4)

    program = torch.export.export(Hot(), (torch.tensor([1, 3]),), strict=False)
    hot = [node for node in program.graph.nodes if node.target is torch.ops.aten.one_hot.default]
    assert len(hot) == 1 and parts.take_apart(program, hot, lambda target: target)
    assert not any(node.target is torch.ops.aten.one_hot.default for node in program.graph.nodes)
    assert torch.equal(program.module()(torch.tensor([0, 2])), torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0]]))
