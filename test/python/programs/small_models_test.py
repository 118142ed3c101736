"""Small models of many kinds, whole in one delegate call, through ExecuTorch and through graft's own loader; and the
same comparison fails when any layer is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.runtime import Runtime
from torch import nn

import graft
from small_models import KINDS, Kind, alive

CLOSE = 1e-4  # relative to the largest value
pytestmark = pytest.mark.usefixtures("one_thread")


def flat(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def difference(found, expected) -> float:
    found, expected = flat(found), flat(expected)
    assert [f.shape for f in found] == [e.shape for e in expected]
    if not all(bool(e.isfinite().all()) for e in expected):
        return float("inf")
    return max(float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, expected, strict=True))


def calls(package: Path) -> list[str]:
    """What ExecuTorch does to run the method."""
    (plan,) = deserialize_pte_binary(package.read_bytes()).program.execution_plan
    return [type(i.instr_args).__name__ for chain in plan.chains for i in chain.instructions]


def without_each_layer(model: nn.Module):
    """Names of the layers with weights that a call meets, each while its results are zero."""
    for name, layer in model.named_modules():
        if not any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.children()):
            continue
        met = []
        handle = layer.register_forward_hook(lambda _, __, out, met=met: (met.append(0), out * 0)[1])
        yield name, met
        handle.remove()


@torch.no_grad()
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_small_model(kind: Kind, tmp_path):
    torch.manual_seed(0)
    model = alive(kind.make())
    inputs = [kind.args(size) for size in kind.sizes]
    package = graft.export(model, inputs[0], dynamic_shapes=kind.dynamic, path=tmp_path / "small.pte")
    assert calls(package) == ["DelegateCall"]
    loaded = graft.load(package)
    method = Runtime.get().load_program(str(package)).load_method("forward")
    for args in inputs:
        expected = model(*args)
        found = loaded(*args)
        assert difference(found, expected) <= CLOSE
        assert difference(method.execute(args), expected) <= CLOSE
    by_node = graft.compare(loaded, model, inputs[-1], dynamic_shapes=kind.dynamic)
    assert by_node.equal and len(by_node.compared) >= 20, str(by_node)
    layers = 0
    for name, met in without_each_layer(model):
        wrong = difference(found, model(*inputs[-1]))
        assert (wrong > CLOSE) == bool(met), (name, wrong)
        layers += bool(met)
    assert layers >= 5
