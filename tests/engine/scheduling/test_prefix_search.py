"""The longest cached beginning is the one that its plain definition names, and few blocks are looked up for it."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.cache.prefix_search import whole_ends

ALL = 1 << 40


class CountingTable(dict[bytes, int]):
    """A table that counts the look-ups of blocks."""

    num_lookups = 0

    def __contains__(self, content: object) -> bool:
        self.num_lookups += 1
        return super().__contains__(content)


def hashes_of(number: int) -> list[bytes]:
    return [each.to_bytes(4) for each in range(number)]


def is_whole(end: int, hashes: list[bytes], tables: list[CountingTable], nums_seen: list[int]) -> bool:
    """Tell whether each table has the blocks that a token after the first `end` blocks attends to."""
    sights = zip(tables, nums_seen, strict=True)
    return all(content in dict(table) for table, seen in sights for content in hashes[max(end - seen, 0) : end])


def cached_part(rnd: random.Random, hashes: list[bytes]) -> CountingTable:
    """Return a table with most blocks of a prefix, some of them missing."""
    table = CountingTable({content: block for block, content in enumerate(hashes[: rnd.randint(0, len(hashes) + 5)])})
    for _ in range(rnd.choice([0, 0, 1, 3])):
        start = rnd.randint(0, len(hashes))
        for content in hashes[start : start + rnd.choice([1, 2, 10])]:
            table.pop(content, None)
    return table


@pytest.mark.parametrize("seed", range(40))
def test_ends_are_those_after_which_each_table_has_what_a_token_sees(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(50):
        hashes = hashes_of(rnd.randint(0, 24))
        nums_seen = [rnd.choice([ALL, 0, 1, 2, 3, 8, 30]) for _ in range(rnd.randint(1, 4))]
        tables = [cached_part(rnd, hashes) for _ in nums_seen]
        expected = [e for e in range(len(hashes), 0, -1) if is_whole(e, hashes, tables, nums_seen)]
        assert list(whole_ends(hashes, tables, nums_seen)) == expected
        assert all(table.num_lookups <= len(hashes) for table in tables)


@pytest.mark.parametrize(("nums_seen", "most"), [([ALL, *[64] * 6], 8193 + 6 * 64), ([64, 64], 2 * 64)])
def test_a_long_beginning_takes_no_more_lookups_than_its_end_sees(nums_seen: list[int], most: int) -> None:
    """8,192 blocks of 16 tokens are cached in each table, as for a conversation of 128k tokens."""
    hashes = hashes_of(8192)
    tables = [CountingTable(dict.fromkeys(hashes, 0)) for _ in nums_seen]
    assert next(whole_ends(hashes, tables, nums_seen)) == 8192
    assert sum(table.num_lookups for table in tables) <= most


def test_a_text_of_which_nothing_is_cached_takes_a_lookup_for_each_window() -> None:
    tables = [CountingTable(), CountingTable()]
    assert not list(whole_ends(hashes_of(8192), tables, [64, 64]))
    assert sum(table.num_lookups for table in tables) <= 8192 // 64
