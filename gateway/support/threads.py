"""Runs work in threads, so that the event loop goes on serving others: much content, and calls that wait for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

ABOVE_BYTES = 1 << 20


async def maybe_in_thread(num_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on this many bytes, done in a thread if they are more than ABOVE_BYTES."""
    return await asyncio.to_thread(work) if num_bytes > ABOVE_BYTES else work()


def in_new_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start work in a thread made for it, and return its future result.

    For calls that may block for long: neither the executor's few threads nor the end of the process wait for them.

    name: the name of the thread.

    Raises RuntimeError: when the system has no more threads.
    """
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def run() -> None:
        error, result = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            done.get_loop().call_soon_threadsafe(_end, done, error, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


class OwnThread:
    """A thread that makes calls one after the other, for an owner that makes many of them a second.

    An executor of the standard library takes several times the processor time for a call.
    """

    def __init__(self, name: str) -> None:
        """Prepare the thread. It ends with the process at the latest."""
        self._calls: SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_calls, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def call(self, function: Callable[[], None]) -> None:
        """Wait until the thread has called a function.

        Raises the errors of the function: when it fails.
        """
        called = asyncio.get_running_loop().create_future()
        self._calls.put((function, called))
        await called

    def stop(self) -> None:
        """Wait until all calls are made, and end the thread. Blocks: for another thread."""
        self._calls.put(None)
        self._thread.join()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            function, called = call
            error: Exception | None = None
            try:
                function()
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                called.get_loop().call_soon_threadsafe(_end, called, error)


def _end(called: asyncio.Future[Any], error: Exception | None, result: Any = None) -> None:
    """End the wait for a call, unless nobody waits any more.

    error: the error of the call; None where it succeeded. result: what the call returned.
    """
    if called.done():
        return
    if error is None:
        called.set_result(result)
    else:
        called.set_exception(error)
