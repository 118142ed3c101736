"""Values of tensors that a model's code decides by while it is traced: whether a token has global attention, the largest
length of a batch. The trace has the values of the call that it is made for; they become results of the program, and
another call with other ones has a program of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from graft.hf.known_values import Known, real
from graft.llm.untraceable import Untraceable

_MOST = 1024  # elements of such a tensor
_ASKING = {
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.__int__,
    torch.Tensor.item,
    torch.Tensor.tolist,
}
# Their results have sizes by values.
_SIZED = {torch.nonzero, torch.Tensor.nonzero, torch.unique, torch.Tensor.unique, torch.unique_consecutive}


class Decisions(TorchFunctionMode):
    """Within it, code that asks a tensor for its values gets them. tensors: those that were asked, of the trace. values:
    what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = function in _ASKING or function in _SIZED or (function is torch.where and len(args) == 1)
        if asked and args and (value := _value(args[0])) is not None:
            if value.numel() > _MOST:
                raise Untraceable(f"its code asks for the values of {value.numel()} elements, expected {_MOST} at most")
            self.tensors.append(args[0].clone())  # which may be changed in place later
            with real():
                self.values.append(value.clone())
                found = function(value, *args[1:], **(kwargs or {}))
            return tree_map_only(torch.Tensor, Known.of, found)
        return function(*args, **(kwargs or {}))


def _value(tensor: Any) -> torch.Tensor | None:
    """That the tracer carries along (fake_tensor_propagate_real_tensors)."""
    if isinstance(tensor, Known):
        return None
    if isinstance(tensor, FunctionalTensor):
        tensor = torch._from_functional_tensor(tensor.elem)
    return tensor.real_tensor if isinstance(tensor, FakeTensor) else None


__all__ = ["Decisions"]
