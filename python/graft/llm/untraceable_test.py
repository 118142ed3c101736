"""What is said of code that cannot be traced."""

import pytest
import torch

from graft.llm.untraceable import Untraceable, decides_by_values, no_graph_printed, reason


class Branching(torch.nn.Module):
    def forward(self, x):
        with no_graph_printed():
            return x * 2 if x.sum() > 0 else x


def test_no_graph_is_printed(capfd):
    with pytest.raises(Untraceable) as raised:
        torch.export.export(Branching(), (torch.ones(3),), strict=False)
    assert "def forward" not in capfd.readouterr().err
    assert decides_by_values(raised.value)
    assert reason(raised.value).endswith("decides by values of a tensor")
