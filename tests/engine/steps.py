"""Stand-ins for a step that was launched."""

from __future__ import annotations

from collections.abc import Sequence as Many

import msgspec

from engine.sequence import ChunkResult


class Computed(msgspec.Struct):
    """Done when it was launched. fault: raised instead of the results."""

    results: Many[ChunkResult] = ()
    fault: Exception | None = None

    def await_half(self) -> None:
        pass

    def wait(self) -> Many[ChunkResult]:
        if self.fault is not None:
            raise self.fault
        return self.results
