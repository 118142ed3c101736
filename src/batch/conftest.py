"""The models that tests of batches run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim

import graft
from serving import export_stories


@pytest.fixture(scope="session")
def stories(tmp_path_factory) -> Path:
    return export_stories(tmp_path_factory.mktemp("batch"))


class Net(torch.nn.Module):
    """Rows of 4 numbers and of ids, and a number for all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, n: int):
        self.calls.add_(1)
        y = self.linear(x)
        return {"y": y, "big": y > 0, "sum": ids.sum(1) + n, "calls": self.calls + torch.zeros_like(x[:, 0])}


@pytest.fixture(scope="session")
def net(tmp_path_factory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    model = Net().eval()
    rows, width = Dim("rows", min=1, max=64), Dim("width", min=2, max=9)
    inputs = (torch.randn(2, 4), torch.ones(2, 3, dtype=torch.int64), 5)
    path = tmp_path_factory.mktemp("net") / "net.pte"
    graft.export(model, inputs, dynamic_shapes=({0: rows}, {0: rows, 1: width}, Dim.DYNAMIC), path=path)
    return model, path


class Encoder(torch.nn.Module):
    """Of stories260K's tokens: hidden states, or logits of three classes."""

    def __init__(self, classes: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(512, 16)
        self.mix = torch.nn.Linear(16, 3 if classes else 8)
        self.classes = classes

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.mix(torch.tanh(self.table(input_ids))) * attention_mask[:, :, None]
        return states.sum(1) if self.classes else states


@pytest.fixture(scope="session", params=[False, True], ids=["embed", "classify"])
def encoder(request, stories, tmp_path_factory) -> tuple[Encoder, Path, Path]:
    """The module, its package and the folder of its tokenizer."""
    torch.manual_seed(1)
    model = Encoder(request.param).eval()
    rows, tokens = Dim("rows", min=1, max=16), Dim("tokens", min=2, max=64)
    ids = torch.ones(2, 8, dtype=torch.int64)
    dims = {0: rows, 1: tokens}
    path = tmp_path_factory.mktemp("encoder") / "encoder.pte"
    graft.export(model, (ids, ids), dynamic_shapes=(dims, dims), path=path)
    return model, path, stories.parent / "stories"
