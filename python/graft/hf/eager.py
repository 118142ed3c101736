"""Calls of a model as eager PyTorch computes them, in f32 as the engine does, whatever the model's weights are stored as.

A module's weights are converted while it runs; those of a linear layer once for all calls that are run together, whose
rows are then multiplied at once.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from graft.errors import ExportError

Values = Callable[[str, torch.Tensor], torch.Tensor]  # of a weight, by its name; it may be a meta tensor in the model
_AT_ONCE = 1 << 20  # elements of a linear layer's weight that are converted together


def run_eagerly(
    model: torch.nn.Module, kind: type, values: Values, *, together: bool
) -> Callable[[Sequence[Mapping[str, Any]]], list[Any]]:
    """The outputs of calls of the model as its class `kind` computes them, by the arguments of each. together: each layer
    runs for all of them before the next one does, which a model that keeps something of a call in itself does not bear."""

    def run(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        compiled = type(model)
        model.__class__ = kind
        turns = _Turns()
        made = [functools.partial(_called, model, kind, arguments) for arguments in calls]
        try:
            with torch.no_grad(), _in_f32(model, values, turns):
                return turns.run(made) if together else [call() for call in made]
        finally:
            model.__class__ = compiled

    return run


def _called(model: torch.nn.Module, kind: type, arguments: Mapping[str, Any]) -> Any:
    try:
        return model(**arguments)
    except Exception as e:  # whatever the model's code raises
        raise ExportError(
            f"{kind.__name__}: eager PyTorch cannot run it on {list(arguments['input_ids'].shape)} tokens: "
            f"{type(e).__name__}: {e}"
        ) from e


Multiply = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]  # a linear layer of the inputs of some calls


class _Stopped(BaseException):
    """Ends a call whose result nobody waits for any more."""


class _Turns:
    """Calls that take turns, each in a thread of its own, one at a time: a call runs until it needs a linear layer. When all
    wait for one, the layer that the first of them waits for is computed for all that wait for it. So each weight is
    converted and read once, and PyTorch's own threads serve one caller. A call outside `run` waits for nobody."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}  # by thread

    def linear(self, layer: torch.nn.Linear, multiply: Multiply, inputs: torch.Tensor) -> torch.Tensor:
        """Of one call, within its thread."""
        if threading.get_ident() not in self._answers:
            return multiply([inputs])[0]
        self._events.put(("linear", (layer, multiply, inputs)))
        answer = self._answers[threading.get_ident()].get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Their results, or the exception of the first that has one."""
        threads = [self._thread(call) for call in calls]
        states: list[tuple[str, Any]] = []
        try:
            for thread in threads:
                thread.start()
                states.append(self._events.get())
            while waiting := [i for i, (what, _) in enumerate(states) if what == "linear"]:
                layer, multiply, _ = states[waiting[0]][1]
                group = [i for i in waiting if states[i][1][0] is layer]
                answers: Sequence[Any]
                try:
                    answers = multiply([states[i][1][2] for i in group])
                except Exception as e:
                    answers = [e] * len(group)
                for i, answer in zip(group, answers, strict=True):
                    states[i] = self._resume(threads[i], answer)
        finally:
            for thread, (what, _) in zip(threads, states, strict=False):
                while what == "linear":  # a model's code may go on after an exception
                    what, _ = self._resume(thread, _Stopped())
                thread.join()
        for what, result in states:
            if what == "failed":
                raise result
        return [result for _, result in states]

    def _resume(self, thread: threading.Thread, answer: Any) -> tuple[str, Any]:
        self._answers[thread.ident or 0].put(answer)
        return self._events.get()

    def _thread(self, call: Callable[[], Any]) -> threading.Thread:
        inference, context = torch.is_inference_mode_enabled(), contextvars.copy_context()

        def work() -> None:
            self._answers[threading.get_ident()] = queue.SimpleQueue()
            try:
                with torch.inference_mode(inference), torch.no_grad():  # both are states of a thread
                    result = "done", call()
            except BaseException as e:
                result = "failed", e
            self._events.put(result)

        return threading.Thread(target=context.run, args=[work], name="graft eager", daemon=True)


@contextlib.contextmanager
def _in_f32(model: torch.nn.Module, values: Values, turns: _Turns) -> Iterator[None]:
    """Within it, each module's parameters and buffers are f32 while it runs."""
    handles, linear = [], []
    widest = max((m.in_features for m in model.modules() if isinstance(m, torch.nn.Linear)), default=0)
    room = torch.empty(max(_AT_ONCE, widest), dtype=torch.float32)
    swapped: dict[torch.nn.Module, list[dict[str, Any]]] = {}

    def put(path: str, module: torch.nn.Module) -> None:
        held = swapped.setdefault(module, [])
        held.append({**module._parameters})
        held.append({**module._buffers})
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point() and (tensor.is_meta or tensor.dtype != torch.float32):
                    made = values(f"{path}.{name}" if path else name, tensor).detach()
                    made = made if _looks_up(module) else made.to(torch.float32)
                    parameter = tensors is module._parameters
                    tensors[name] = torch.nn.Parameter(made, requires_grad=False) if parameter else made

    def back(module: torch.nn.Module) -> None:
        if held := swapped.get(module):
            module._buffers.update(held.pop())
            module._parameters.update(held.pop())

    def needs(module: torch.nn.Module) -> bool:
        tensors = (*module._parameters.values(), *module._buffers.values())
        return any(t is not None and t.is_floating_point() and (t.is_meta or t.dtype != torch.float32) for t in tensors)

    try:
        for path, module in model.named_modules():
            if not needs(module):
                continue
            if type(module) is torch.nn.Linear and "forward" not in vars(module):
                multiply = functools.partial(_products, module, path, values, room)
                module.forward = functools.partial(turns.linear, module, multiply)
                linear.append(module)
            else:
                handles.append(module.register_forward_pre_hook(lambda m, _, path=path: put(path, m), prepend=True))
                handles.append(module.register_forward_hook(lambda m, *_: back(m), always_call=True))
                if _looks_up(module):
                    handles.append(module.register_forward_hook(lambda *called: called[-1].to(torch.float32)))
        yield
    finally:
        for module in linear:
            del module.forward
        for handle in handles:
            handle.remove()
        for module in list(swapped):
            while swapped[module]:
                back(module)


def _products(
    module: torch.nn.Linear, path: str, values: Values, room: torch.Tensor, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """In f32, some rows of the weight at a time: converted ones stay in the caches. room: for them; memory from the system
    would cost as much as the conversion."""
    weight = values(f"{path}.weight", module.weight).detach()
    rows, columns = weight.shape
    flat = [x.reshape(-1, columns) for x in inputs]
    all_rows = torch.cat(flat)
    found = all_rows.new_empty(len(all_rows), rows)
    step = room.numel() // columns if columns else rows
    block_found = all_rows.new_empty(min(step, rows), len(all_rows))
    for first in range(0, rows, step or 1):
        block = weight[first : first + step]
        converted = room[: block.numel()].view(block.shape).copy_(block)
        # This way round, a BLAS takes two thirds of the time: the weight is its first operand.
        product = torch.mm(converted, all_rows.t(), out=block_found[: len(block)])
        found[:, first : first + step].copy_(product.t())
    if module.bias is not None:
        found += values(f"{path}.bias", module.bias).detach().to(torch.float32)
    parts = found.split([len(x) for x in flat])
    return [part.view(*x.shape[:-1], rows) for x, part in zip(inputs, parts, strict=True)]


def _looks_up(module: torch.nn.Module) -> bool:
    """Whether it gives back rows of its weight: those are converted, not the table."""
    return type(module) is torch.nn.Embedding and module.max_norm is None


__all__ = ["Values", "run_eagerly"]
