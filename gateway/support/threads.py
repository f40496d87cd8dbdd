"""Runs work in threads, so that the event loop goes on serving others: much content, and calls that wait for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

ABOVE_BYTES = 1 << 20


async def maybe_in_thread(num_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on this many bytes, done in a thread if they are more than ABOVE_BYTES."""
    return await asyncio.to_thread(work) if num_bytes > ABOVE_BYTES else work()


class OwnThread:
    """A thread that makes calls one after the other, for an owner that makes many of them a second.

    An executor of the standard library takes several times the processor time for a call.
    """

    def __init__(self, name: str) -> None:
        """Prepare the thread. It ends with the process at the latest."""
        self._calls: SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

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

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, called = call
            error: Exception | None = None
            try:
                function()
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                called.get_loop().call_soon_threadsafe(_end, called, error)


def _end(called: asyncio.Future[None], error: Exception | None) -> None:
    """End the wait for a call, unless nobody waits any more.

    error: the error of the call; None where it succeeded.
    """
    if called.done():
        return
    if error is None:
        called.set_result(None)
    else:
        called.set_exception(error)
