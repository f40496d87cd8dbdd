"""Acknowledgements: engines are told that a usage is on disk, once the journal has written and synced it.

Knows neither the journal nor engines.
"""

from __future__ import annotations

from collections import deque

import msgspec

from gateway.backends.usage import Acknowledged


class _Pending(msgspec.Struct, frozen=True):
    """An acknowledgement that waits."""

    position: int
    """The position up to which the journal has to be on disk."""
    source: Acknowledged
    """The connection that is told."""
    attempt: tuple[str, int]
    """The request's id and the number of the attempt."""


class Acknowledgements:
    """Acknowledgements that wait until the journal is durable up to the position of each. Positions never decrease."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def add(self, source: Acknowledged, attempt: tuple[str, int], position: int) -> None:
        """Have source told that an attempt's usage is on disk, once the journal is durable up to position."""
        self._pending.append(_Pending(position, source, attempt))

    async def durable(self, position: int) -> None:
        """Acknowledge to each source the usage that the journal holds up to a position, which is durable."""
        by_source: dict[int, list[_Pending]] = {}
        while self._pending and self._pending[0].position <= position:
            pending = self._pending.popleft()
            by_source.setdefault(id(pending.source), []).append(pending)
        for group in by_source.values():
            await group[0].source.acknowledge([pending.attempt for pending in group])
