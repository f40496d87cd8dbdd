"""Bounds the exports that one gateway makes at once: each takes a connection and a share of its processor.

A project or organization gets one export at a time, so that a slow reader holds up nobody but itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.domain.errors import Overloaded

MAX_RUNNING = 4
DEADLINE_S = 600.0
"""The seconds that one download may take, however slowly it is read: its snapshot keeps the database from removing dead
rows."""


class Downloads:
    """The exports under way in one gateway. clock: seconds on a monotonic clock."""

    def __init__(self, max_running: int = MAX_RUNNING, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_running = max_running
        self._clock = clock
        self._ends_at: dict[str, float] = {}  # by owner

    @contextmanager
    def reserve_place(self, owner: str) -> Iterator[None]:
        """Reserve a place for an export until the end of the block, at most for DEADLINE_S seconds.

        After that time the export has no connection to the database any more, whether its client reads or not. owner:
        the id of the project or the organization that asks.

        Raises Overloaded: when the owner has a place already or all places are taken.
        """
        now = self._clock()
        self._ends_at = {each: ends_at for each, ends_at in self._ends_at.items() if ends_at > now}
        if owner in self._ends_at:
            raise Overloaded(
                "This gateway is already making an export for you. Try again when that export is done.",
                retry_after_s=10,
            )
        if len(self._ends_at) >= self._max_running:
            raise Overloaded(
                "This gateway is making as many exports at once as it can. Try again soon.", retry_after_s=10
            )
        ends_at = self._ends_at[owner] = now + DEADLINE_S
        try:
            yield
        finally:
            if self._ends_at.get(owner) == ends_at:
                del self._ends_at[owner]
