"""Models and functions connected by data: `graft.Flow`."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from graft import _C
from graft._dtypes import NUMBER_OF
from graft.errors import Busy, Error, InvalidArgument
from graft.runtime.model import CancelToken, Copies, Method, Model, flat_value
from graft.runtime.submitted import Submitted

__all__ = ["Flow", "FlowStage"]

# What an input or output is: dtype and sizes (None: any size), or anything.
Port = tuple[torch.dtype, Sequence[int | None]] | None


@dataclass(frozen=True, kw_only=True)
class FlowStage:
    """A function as a stage of a `Flow`.

    function: called with a value for each input, on a thread of the stage; returns a value, or for several outputs a
        tuple of them. Values are tensors, numbers, strings or None. Inputs are not copied, and other stages may read
        them: it must not write to them. Tensors that it returns are passed on without a copy where they are contiguous
        and on the CPU; it must not write to them afterwards. What it raises ends the run.
    inputs, outputs: their names, or a dict of names with what they are: (dtype, sizes), where a size may be None for any,
        or None for any value.
    workers: threads that call it. With one it is called in the order of runs and items.
    fan_out: it returns or yields any number of items, each as above. Stages that get an item run once for each.
    fan_in: it is called once per run, with a list of all items for each input that has items.
    """

    function: Callable[..., Any]
    inputs: Sequence[str] | Mapping[str, Port]
    outputs: Sequence[str] | Mapping[str, Port]
    workers: int = 1
    fan_out: bool = False
    fan_in: bool = False


class Flow:
    """Models and functions connected by data, each stage with threads of its own, so that stages of several runs overlap.

        flow = graft.Flow(
            inputs=["image"],
            stages={
                "detect": detector,                   # a Model, a Method, or a list of either: a worker for each
                "crop": graft.FlowStage(function=crop, inputs=["image", "boxes"], outputs=["crop"], fan_out=True),
                "classify": [classifier, classifier.fork()],
            },
            connections={
                "detect.image": "image", "crop.image": "image", "crop.boxes": "detect.0", "classify.x": "crop.crop",
            },
            outputs=["detect.0", "classify.0"],
        )
        boxes, scores = flow.submit(image).result()   # scores: a list, one for each crop

    inputs: names of the flow's inputs.
    stages: by name, without ".".
    connections: for each "stage.input" the value it gets: an input of the flow or "stage.output". Inputs and outputs of
        stages go by name (`Method.info`) or number.
    outputs: values that a run returns; those of a stage that runs for items as a list.
    runs: that may be in flight; when as many are, `submit` blocks.
    items: of a fan-out, that may be ready to be processed before it waits.

    Outputs of a stage are inputs of the next in the same memory. A stage with one worker takes runs in the order of
    submission and items in theirs; a method with states or random numbers has one model. A failed run affects no other,
    and its error names the stage. Models must not be used elsewhere meanwhile (`graft.Busy`). Leaving a `with` block
    shuts the flow down. Raises `graft.InvalidArgument` for a graph that is wrong, naming stage and port.
    """

    def __init__(
        self,
        *,
        inputs: Sequence[str],
        stages: Mapping[str, Model | Method | Sequence[Model | Method] | FlowStage],
        connections: Mapping[str, str],
        outputs: Sequence[str],
        runs: int = 8,
        items: int = 16,
    ) -> None:
        self._inputs = list(inputs)
        self._count_copies = _CopyCount()
        for name, number in (("runs", runs), ("items", items)):
            if number < 1:
                raise InvalidArgument(f"{name}: must be at least 1, got {number}")
        made = [self._stage(name, stage) for name, stage in stages.items()]
        self._flow = _C.Flow(self._inputs, made, dict(connections), list(outputs), runs, items)
        self._one_output = len(outputs) == 1
        _flows.add(self)

    def submit(
        self, *args: Any, timeout: float | None = None, cancel: CancelToken | None = None, priority: int = 0
    ) -> Submitted:
        """Begins a run with a value for each input and returns at once, or waits while the flow is full. Tensors must not
        change until it is done. `timeout`, `cancel` and `priority` as those of a call (`Method`); they hold for all
        stages. The result is the output, or a tuple of several."""
        run = self._flow.submit(self._values(args), timeout or 0.0, cancel, priority, True)
        return Submitted(_Run(run), True, self._arranged)

    def try_submit(
        self, *args: Any, timeout: float | None = None, cancel: CancelToken | None = None, priority: int = 0
    ) -> Submitted:
        """The same without waiting: raises `Busy` while the flow is full."""
        run = self._flow.submit(self._values(args), timeout or 0.0, cancel, priority, False)
        if run is None:
            raise Busy("the flow is full")
        return Submitted(_Run(run), True, self._arranged)

    def drain(self) -> None:
        """Waits until no run is in flight."""
        self._flow.drain()

    def shutdown(self) -> None:
        """Takes no more runs, finishes those that were accepted and ends the threads."""
        self._flow.shutdown()

    def counters(self) -> dict[str, Any]:
        """submitted, finished, failed, running, most_running; buffers and buffer_bytes (allocated for outputs of models;
        runs of the same sizes come to need no more), copies (of tensors that could not be passed on as they were), and
        for each of stages calls, waiting and most_waiting. Units as in graft/flow.h (FlowCounters)."""
        counters = self._flow.counters()
        counters["copies"] += self._count_copies.count
        return counters

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _values(self, args: Sequence[Any]) -> list[tuple[Any, Any]]:
        if len(args) != len(self._inputs):
            raise InvalidArgument(f"the flow takes {len(self._inputs)} inputs {self._inputs}, got {len(args)}")
        return _kept(zip(args, self._inputs), self._count_copies)

    def _arranged(self, results: list[Any]) -> Any:
        return results[0] if self._one_output else tuple(results)

    def _stage(self, name: str, stage: Any) -> tuple[Any, ...]:
        if isinstance(stage, FlowStage):
            function = _function(name, stage, self._count_copies)
            ports = (_ports(name, stage.inputs), _ports(name, stage.outputs))
            return (name, function, *ports, stage.workers, stage.fan_out, stage.fan_in)
        methods = [_method(name, item) for item in (stage if isinstance(stage, (list, tuple)) else [stage])]
        if len({method.name for method in methods}) != 1:
            raise InvalidArgument(f"stage '{name}' of the flow: needs one method, got {[m.name for m in methods]}")
        return (name, [method._session for method in methods], methods[0].name)


_flows: weakref.WeakSet[Flow] = weakref.WeakSet()


@atexit.register
def _shut_down_all() -> None:
    """Their threads must not be in a function when the interpreter ends."""
    for flow in list(_flows):
        flow.shutdown()


class _Run:
    """`_C.FlowRun`, whose errors have what a function raised as their cause."""

    def __init__(self, run: _C.FlowRun) -> None:
        self._run = run

    def wait(self, seconds: float) -> bool:
        return self._run.wait(seconds)

    def results(self, _of_torch: bool) -> list[Any]:
        try:
            return self._run.results()
        except Error as error:
            raise error from self._run.cause()


class _CopyCount:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def add(self, count: int) -> None:
        with self._lock:
            self.count += count


def _kept(values: Any, counted: _CopyCount) -> list[tuple[Any, Any]]:
    """As the engine takes values, each with the tensor that keeps its memory. values: pairs of a value and its name."""
    out, copies = [], Copies()
    for value, name in values:
        keep: list[torch.Tensor] = []
        flat = flat_value(value, lambda name=name: f"'{name}' of the flow", keep, copies)
        out.append((flat, keep[0] if keep else None))
    if copies.count:
        counted.add(copies.count)
    return out


def _function(name: str, stage: FlowStage, counted: _CopyCount) -> Callable[[list[Any]], Any]:
    names = [f"{name}.{output}" for output in stage.outputs]

    def outputs(result: Any) -> list[tuple[Any, Any]]:
        values = (result,) if len(names) == 1 else () if not names else result
        if not isinstance(values, (tuple, list)) or len(values) != len(names):
            found = f"{len(values)} values" if isinstance(values, (tuple, list)) else type(values).__name__
            raise InvalidArgument(f"the function must return a tuple of {len(names)} outputs, got {found}")
        return _kept(zip(values, names), counted)

    def call(args: list[Any]) -> list[tuple[Any, Any]]:
        with torch.no_grad():
            return outputs(stage.function(*args))

    def items(args: list[Any]) -> Iterator[list[tuple[Any, Any]]]:
        with torch.no_grad():
            for item in stage.function(*args):
                yield outputs(item)

    return items if stage.fan_out else call


def _method(name: str, item: Any) -> Method:
    if isinstance(item, Method):
        return item
    if not isinstance(item, Model):
        raise InvalidArgument(
            f"stage '{name}' of the flow: must be a FlowStage, a Model, a Method or a list of these, "
            f"got {type(item).__name__}"
        )
    if "forward" not in item.methods and len(item.methods) != 1:
        raise InvalidArgument(f"stage '{name}' of the flow: give one of the methods {sorted(item.methods)}")
    return item.methods.get("forward") or next(iter(item.methods.values()))


def _ports(stage: str, ports: Sequence[str] | Mapping[str, Port]) -> list[tuple[str, Any]]:
    if not isinstance(ports, Mapping):
        return [(str(name), None) for name in ports]
    out: list[tuple[str, Any]] = []
    for name, port in ports.items():
        if port is None:
            out.append((name, None))
            continue
        if not isinstance(port, tuple) or len(port) != 2 or port[0] not in NUMBER_OF:
            raise InvalidArgument(f"'{stage}.{name}' of the flow: must be (dtype, sizes) or None, got {port!r}")
        out.append((name, (NUMBER_OF[port[0]], [_range(size) for size in port[1]])))
    return out


def _range(size: int | None) -> tuple[int, int]:
    return (0, 2**63 - 1) if size is None else (size, size)
