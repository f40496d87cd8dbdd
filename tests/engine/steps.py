"""Stand-ins for a step that was launched on an accelerator, for tests that need its results and no model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import msgspec

from engine.sequence import ChunkResult


class ComputedStep(msgspec.Struct):
    """A step that is finished at its launch."""

    results: Many[ChunkResult] = ()
    tell: Callable[[str], None] = lambda awaited: None
    """Called with the name of the event that is waited for, "half" or "results"; may raise an error."""

    def await_half(self) -> None:
        self.tell("half")

    def wait(self) -> Many[ChunkResult]:
        self.tell("results")
        return self.results
