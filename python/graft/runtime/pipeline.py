"""Runs of several models in the background: `graft.Pipeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from graft import _C
from graft.errors import Busy, InvalidArgument
from graft.runtime import Model

__all__ = ["Pipeline"]


class Pipeline:
    """A queue of calls to several models, executed by its own threads.

    Calls of one model execute in the order of submission, one at a time; those of different models in parallel.
    `workers`: calls at a time. `capacity`: calls that may wait; when as many wait, `submit` blocks. Every accepted call
    completes: its future gets a result or an error. Leaving a `with` block shuts the pipeline down.

    Models of one program with states of their own come from `Model.fork`. A model must not be called directly while
    calls of it wait (`graft.Busy`).
    """

    def __init__(self, models: Iterable[Model], *, workers: int = 1, capacity: int = 16) -> None:
        self._models = list(models)
        self._pipeline = _C.Pipeline([model._session for model in self._models], workers, capacity)

    def submit(self, model: int | Model, *args: Any, method: str | None = None, **kwargs: Any) -> Future[Any]:
        """Appends a call of a model, which is one of the list or its index; waits while the pipeline is full. `method`
        and the other arguments are those of the call. Tensors are read when the call runs. Raises `InvalidArgument` after
        `shutdown`."""
        index = self._index(model)
        future: Future[Any] = Future()
        self._pipeline.submit(index, self._work(index, method, args, kwargs, future), True)
        return future

    def try_submit(self, model: int | Model, *args: Any, method: str | None = None, **kwargs: Any) -> Future[Any]:
        """The same without waiting: raises `Busy` while the pipeline is full."""
        index = self._index(model)
        future: Future[Any] = Future()
        if not self._pipeline.submit(index, self._work(index, method, args, kwargs, future), False):
            raise Busy("the pipeline is full")
        return future

    def drain(self) -> None:
        """Waits until no call waits or executes."""
        self._pipeline.drain()

    def shutdown(self) -> None:
        """Takes no more calls, finishes those that were accepted and ends the threads."""
        self._pipeline.shutdown()

    def counters(self) -> dict[str, int]:
        """submitted, finished, waiting, running, most_waiting. submitted = waiting + running + finished."""
        return self._pipeline.counters()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _index(self, model: int | Model) -> int:
        if isinstance(model, int):
            if not 0 <= model < len(self._models):
                raise InvalidArgument(f"the pipeline has {len(self._models)} models, got index {model}")
            return model
        for index, known in enumerate(self._models):
            if known is model:
                return index
        raise InvalidArgument("the model is not one of the pipeline's")

    def _work(
        self, index: int, method: str | None, args: Any, kwargs: Any, future: Future[Any]
    ) -> Callable[[], None]:
        model = self._models[index]

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # cancelled while waiting
            try:
                result = (model if method is None else getattr(model, method))(*args, **kwargs)
            except BaseException as error:  # reported through the future
                future.set_exception(error)
            else:
                future.set_result(result)

        return run
