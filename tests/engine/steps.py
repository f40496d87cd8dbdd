"""Stand-ins for a step that was launched."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import msgspec

from engine.sequence import ChunkResult


class Computed(msgspec.Struct):
    """Done when it was launched. tell: called with what is waited for, and may raise."""

    results: Many[ChunkResult] = ()
    tell: Callable[[str], None] = lambda awaited: None

    def await_half(self) -> None:
        self.tell("half")

    def wait(self) -> Many[ChunkResult]:
        self.tell("results")
        return self.results
