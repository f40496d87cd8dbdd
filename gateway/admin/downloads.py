"""Bounds how many exports one gateway makes at once: each takes a connection and a share of its processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Overloaded

MAX_RUNNING = 2


class Downloads:
    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._num_free = max_running

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises Overloaded."""
        if self._num_free == 0:
            raise Overloaded("This gateway makes as many exports as it may; try again soon.", retry_after_s=10)
        self._num_free -= 1
        try:
            yield
        finally:
            self._num_free += 1
