"""Decodes are replayed from captured graphs: which one serves a step, and how they are kept.

A graph serves any step of at most its rows and context, padded to them; padding is in `engine.cuda.fill`. Those with
adapters and those without are captured apart, so that a step without them runs no LoRA operation. The longest context
is the model's own: one long text does not take the graph from the short ones that are decoded beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.cuda.accelerator import Graph
from engine.cuda.metadata import Staged

# A graph launches programs for its longest context, and most of them end at once where contexts are short.
CONTEXTS = (4096, 32768)


class Bucket(NamedTuple):
    """num_rows: decode rows, padding included; max_context: in tokens."""

    num_rows: int
    max_context: int
    with_adapters: bool


class Captured(NamedTuple):
    """A graph, and where it finds its integers."""

    bucket: Bucket
    staged: Staged
    graph: Graph


def row_buckets(max_rows: int) -> list[int]:
    """1, 2, 4, 8, then multiples of 8 to 64, of 16 to 256, of 64; up to max_rows, which is the last."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_rows, 64)]
    return [*(rows for rows in steps if rows < max_rows), max_rows]


def context_buckets(max_context: int) -> list[int]:
    """CONTEXTS below max_context, which is the last."""
    return [*(context for context in CONTEXTS if context < max_context), max_context]


def buckets_for(max_rows: int, max_context: int, *, has_adapters: bool) -> list[Bucket]:
    """All that are captured, largest first: the memory of the first then serves the others as well. has_adapters: there
    are slots for any."""
    return [
        Bucket(rows, context, with_adapters)
        for context in reversed(context_buckets(max_context))
        for rows in reversed(row_buckets(max_rows))
        for with_adapters in ((True, False) if has_adapters else (False,))
    ]


class DecodeGraphs:
    """capture: makes one of these; called for all of them at once, before the first step."""

    def __init__(self, buckets: Sequence[Bucket], capture: Callable[[Bucket], Captured]) -> None:
        self._captured = [capture(bucket) for bucket in buckets]
        self._captured.sort(key=lambda captured: captured.bucket)

    def find(self, num_rows: int, max_context: int, *, with_adapters: bool) -> Captured | None:
        """The smallest that serves."""
        for captured in self._captured:
            bucket = captured.bucket
            if (
                bucket.num_rows >= num_rows
                and bucket.max_context >= max_context
                and bucket.with_adapters == with_adapters
            ):
                return captured
        return None
