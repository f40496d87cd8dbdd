"""Stand-ins for the loading thread, so that tests decide when a load ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class LoadsAtOnce(Executor):
    """An executor that runs each load before `submit` returns; the pool still learns of a load at its next
    `arrivals`."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class LoadsWhenTold(Executor):
    """An executor that queues loads until the test runs them."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted.append(lambda: function(*args, **kwargs))
        return Future()

    def run_next(self) -> None:
        self.submitted.pop(0)()
