"""Acknowledgements: engines are told that a usage is on disk, once the journal has got there.

Knows neither the journal nor engines.
"""

from __future__ import annotations

from collections import deque

import msgspec

from gateway.backends.usage import Acknowledged


class _Owed(msgspec.Struct, frozen=True):
    position: int
    source: Acknowledged
    attempt: tuple[str, int]


class Acknowledgements:
    """The acknowledgements that are due later. Positions are the journal's, and never go back."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()

    def owe(self, source: Acknowledged, attempt: tuple[str, int], position: int) -> None:
        """Tell source about an attempt, once all up to position is durable."""
        self._owed.append(_Owed(position, source, attempt))

    async def durable(self, position: int) -> None:
        """Acknowledge to each source at once what is owed up to position, which is durable."""
        by_source: dict[int, list[_Owed]] = {}
        while self._owed and self._owed[0].position <= position:
            owed = self._owed.popleft()
            by_source.setdefault(id(owed.source), []).append(owed)
        for told in by_source.values():
            await told[0].source.acknowledge([owed.attempt for owed in told])
