"""The search for a sequence's longest beginning that is cached, in tables that see all and tables with windows."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many

Table = dict[bytes, int]
"""The blocks of a table by the hashes of their contents."""


def whole_ends(hashes: list[bytes], tables: Many[Table], nums_seen: Many[int]) -> Iterator[int]:
    """Yield the numbers of leading blocks with which a sequence can begin, the largest first.

    The cache then has every block that the token after them sees.

    hashes: the hashes of a sequence's blocks, from its beginning. nums_seen: for each table the most blocks that a
    token sees before itself. Tables that see all of these are looked through once, from the beginning. From where they
    end, others are looked through backwards, no block twice, and as a rule only those that a token at the first end
    sees.
    """
    end = len(hashes)
    windowed: list[tuple[Table, int]] = []
    for table, num_seen in zip(tables, nums_seen, strict=True):
        if num_seen >= len(hashes):
            end = min(end, _run_length(hashes, table))
        else:
            windowed.append((table, num_seen))
    if not windowed:
        yield from range(end, 0, -1)
        return
    firsts = [end] * len(windowed)  # for each table: all from this block to the end are cached
    while end:
        before = end
        for place, (table, num_seen) in enumerate(windowed):
            first = max(end - num_seen, 0)
            missing = _first_missing(hashes, table, first, min(firsts[place], end))
            firsts[place] = first
            if missing is not None:  # no end from there to this one is whole
                end = missing
                break
        if end == before:
            yield end
            end -= 1


def _run_length(hashes: list[bytes], table: Table) -> int:
    """Return how many of the first hashes are cached, one after the other."""
    for number, content in enumerate(hashes):
        if content not in table:
            return number
    return len(hashes)


def _first_missing(hashes: list[bytes], table: Table, first: int, end: int) -> int | None:
    """Return the number of the first of some hashes that is not cached; None if all are.

    first, end: the hashes looked at are those from number first up to end.
    """
    for number in range(first, end):
        if hashes[number] not in table:
            return number
    return None
