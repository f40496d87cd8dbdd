"""Acknowledgements: engines are told that a usage is on disk, once the journal has got there.

Knows neither the journal nor engines.
"""

from __future__ import annotations

from collections import deque

import msgspec

from gateway.backends.usage import Acknowledged


class _Pending(msgspec.Struct, frozen=True):
    position: int
    source: Acknowledged
    attempt: tuple[str, int]


class Acknowledgements:
    """The acknowledgements that are due later. Positions are the journal's, and never go back."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def add(self, source: Acknowledged, attempt: tuple[str, int], position: int) -> None:
        """Tell source about an attempt, once all up to position is durable."""
        self._pending.append(_Pending(position, source, attempt))

    async def durable(self, position: int) -> None:
        """Acknowledge to each source the usage that the journal holds up to a position, which is durable."""
        by_source: dict[int, list[_Pending]] = {}
        while self._pending and self._pending[0].position <= position:
            pending = self._pending.popleft()
            by_source.setdefault(id(pending.source), []).append(pending)
        for group in by_source.values():
            await group[0].source.acknowledge([pending.attempt for pending in group])
