"""Steps are replayed from captured graphs: the choice of the graph for a step, and the keeping of graphs.

There are graphs for decodes alone, and for chunks of prompts, of so many rows together, beside decodes; more rows take
a GPU longer than their launches take the host. A graph serves any step that is no larger in anything, padded to it
(`engine.cuda.fill`). Graphs with adapters and graphs without are captured apart, so that a step without adapters runs
no LoRA operation. The longest context is the model's own: one long text does not take the graph from the short ones
that are decoded beside it.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.cuda.accelerator import Graph
from engine.cuda.fill import Extent
from engine.cuda.metadata import StagedIntegers

log = logging.getLogger(__name__)

# A graph launches programs for its longest context, and most of them end at once where contexts are short.
CONTEXTS = (4096, 32768)
# Computed in vain: few rows beside what reading a model's weights takes, then at most half of the others, or 256.
PROMPT_ROWS = (64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048)
DECODE_ROWS_BESIDE_PROMPTS = (64, 256, 1024)
MOST_REMEMBERED = 4096  # answers of `StepGraphs.find`


class StepLimits(NamedTuple):
    """The largest numbers of any step."""

    max_rows: int
    """The most rows of a step."""
    max_decode_rows: int
    """The most rows of decodes in a step."""
    max_prefills: int
    """The most chunks of prompts in a step."""
    max_sequences: int
    """The most sequences of a step, of which each decode row is one."""
    max_context: int
    """Tokens of the longest context."""


class CapturedGraph(NamedTuple):
    """A graph, its extent, and the place of its integers."""

    extent: Extent
    staged: StagedIntegers
    graph: Graph


def row_buckets(max_rows: int) -> list[int]:
    """Return 1, 2, 4, 8, then multiples of 8 to 64, of 16 to 256, and of 64 up to max_rows, which is the last."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_rows, 64)]
    return [*(rows for rows in steps if rows < max_rows), max_rows]


def prompt_buckets(max_rows: int) -> list[int]:
    """Return the sizes in PROMPT_ROWS that are below max_rows, then the smaller of max_rows and the largest size."""
    most = min(max_rows, PROMPT_ROWS[-1])
    return [*(rows for rows in PROMPT_ROWS if rows < most), most]


def beside_buckets(max_rows: int) -> list[int]:
    """Return the DECODE_ROWS_BESIDE_PROMPTS up to half of max_rows, and max_rows as the last."""
    return [*(rows for rows in DECODE_ROWS_BESIDE_PROMPTS if 2 * rows <= max_rows), max_rows]


def context_buckets(max_context: int) -> list[int]:
    """Return the CONTEXTS below max_context, and max_context as the last."""
    return [*(context for context in CONTEXTS if context < max_context), max_context]


def extents_for(limits: StepLimits, *, has_adapters: bool) -> list[Extent]:
    """Return all extents that are captured, the largest in everything first: its memory then serves the others as well.

    has_adapters: True: the device has slots for adapters, so steps with adapters are captured, too.
    """
    contexts = context_buckets(limits.max_context)
    mixed = [
        Extent(prompts, decodes, min(prompts, limits.max_prefills), context, context)
        for context in sorted({contexts[0], contexts[-1]}, reverse=True)  # tiles' programs do not depend on it
        for prompts in reversed(prompt_buckets(limits.max_rows))
        for decodes in reversed(beside_buckets(limits.max_decode_rows))
    ]
    decodes = [
        Extent(0, rows, 0, context, 0)
        for context in reversed(contexts)
        for rows in reversed(row_buckets(limits.max_decode_rows))
    ]
    kinds = (True, False) if has_adapters else (False,)
    return [extent._replace(with_adapters=kind) for extent in (*mixed, *decodes) for kind in kinds]


class StepGraphs:
    """The captured graphs. capture: makes a graph; called for all of them at once, before the first step."""

    def __init__(self, extents: Sequence[Extent], capture: Callable[[Extent], CapturedGraph]) -> None:
        start_s = time.monotonic()
        self._captured = sorted((capture(extent) for extent in extents), key=lambda captured: captured.extent)
        self._contexts = sorted({extent.decode_context for extent in extents})
        self._found: dict[tuple[Extent, int], CapturedGraph | None] = {}
        if extents:
            log.info("captured %d graphs in %.1f s", len(extents), time.monotonic() - start_s)

    def find(self, extent: Extent, num_outputs: int) -> CapturedGraph | None:
        """Return the smallest graph that holds a step of this extent; None where no graph does.

        num_outputs: the number of rows whose hidden states are wanted; a graph gives one for each of its sequences.
        """
        decode_context, prefill_context = map(self._rounded, (extent.decode_context, extent.prefill_context))
        key = extent._replace(decode_context=decode_context, prefill_context=prefill_context), num_outputs
        if key not in self._found:
            if len(self._found) == MOST_REMEMBERED:
                self._found.clear()
            self._found[key] = next((c for c in self._captured if _serves(c.extent, extent, num_outputs)), None)
        return self._found[key]

    def _rounded(self, context: int) -> int:
        """Return the next longest context of any graph: which graph serves is the same for all contexts up to there."""
        place = bisect_left(self._contexts, context)
        return self._contexts[place] if place < len(self._contexts) else context


def _serves(graph: Extent, extent: Extent, num_outputs: int) -> bool:
    return graph.holds(extent) and graph.num_sequences >= num_outputs
