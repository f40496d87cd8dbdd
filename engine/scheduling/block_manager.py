"""The blocks of each sequence in the paged KV cache, and the beginnings that sequences share.

Block numbers only; the memory is the runner's. Automatic prefix caching over paged attention (Kwon et al., 2023): a
full block whose tokens are all computed is registered under its hash, and a sequence that starts with the same tokens
shares it. `engine.scheduling.cache.block_pool` says what becomes of blocks that nobody uses.
A sequence has a table of blocks for each table of the cache's layout (`engine.config.cache_layout`). In a table with a
window it gives up the blocks that none of its further tokens sees, and a prefix is found without them: it takes all
blocks of tables that see everything, and of others those that the next token sees. A prompt that is longer than a
window takes blocks ahead of what is computed only as far as steps may come, and more as it gets there.
Batch work is below interactive requests here, too: it takes no blocks that these have used recently, since the last
but one call of `age`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.config.cache_layout import CacheLayout
from engine.scheduling.cache.block_hashes import BlockHasher
from engine.scheduling.cache.block_pool import BlockPool
from engine.scheduling.cache.prefix_search import whole_ends
from engine.scheduling.cache.state_slots import StateSlots
from engine.sequence import Sequence

ANY_NUMBER = 1 << 40


class _Prefix(NamedTuple):
    """Blocks that are in the cache, one after the other, up to a number of blocks from the sequence's beginning."""

    end: int
    """The number of blocks from the sequence's beginning, with which a sequence can start."""
    blocks: list[list[int]]
    """The last blocks before the end, of each table."""
    num_known: int = 0
    """The number of blocks from the beginning that are in the cache, though there may be no snapshot at their end."""


class BlockManager:
    """Assigns blocks to sequences."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        layout: CacheLayout | None = None,
        states: StateSlots | None = None,
        num_ahead: int = ANY_NUMBER,
    ) -> None:
        """Set up empty blocks.

        layout: the tables of each sequence; None: one that sees all. states: the slots for states, which sequences get
        with their blocks; None for a model without any. num_ahead: the most tokens beyond the computed ones that
        blocks of tables with windows are taken for: those of a step that is computed, and of the one after it.
        """
        layout = layout or CacheLayout()
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_tables = layout.num_tables
        """The number of blocks that a sequence takes for the next block_size tokens, at the most."""
        self.states = states
        self._windows = layout.windows
        # The most blocks of each table that a position sees before itself, and that a sequence has at a time.
        self._nums_seen = [ANY_NUMBER if w is None else -((1 - w) // block_size) for w in layout.windows]
        self._reserves = [ANY_NUMBER if most is None else most for most in layout.reserves(num_ahead, block_size)]
        self._has_windows = any(window is not None for window in layout.windows)
        self._hasher = BlockHasher(block_size)
        self._pool = BlockPool(num_blocks, layout.num_tables, self._forget)

    @property
    def num_free(self) -> int:
        """The number of blocks that can be handed out: the empty ones and those that are only cached."""
        return self._pool.num_free

    @property
    def num_idle(self) -> int:
        """The number of free blocks that hold nothing which interactive requests have used of late."""
        return self._pool.num_idle

    def age(self) -> None:
        """Record that a while has passed: cached blocks that were recent at the last call, too, are old now."""
        self._pool.age()
        if self.states is not None:
            self.states.age()

    def max_room(self, sequence: Sequence) -> int:
        """Return the most room that a sequence has at a time, with all tokens that are to come.

        It is in tokens of one table: a sequence that is within all windows needs its length for each table.
        """
        return sum(min(sequence.max_length, reserve * self.block_size) for reserve in self._reserves)

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of the sequence's beginning are in the cache.

        They are whole blocks, and never the last token, which has to be computed for the sequence to go on.
        """
        return self._find_prefix(sequence).end * self.block_size

    def num_needed(self, sequence: Sequence, use_cache: bool) -> int:
        """Return how many free blocks `start` of a sequence takes. use_cache: True: it may reuse a cached prefix."""
        prefix = self._prefix_of(sequence, use_cache)
        num_new = sum(self._covered(sequence, prefix.end)) - self.num_tables * prefix.end
        return num_new + sum(self._pool.count_unused(blocks)[0] for blocks in prefix.blocks)

    def start(self, sequence: Sequence, num_spare: int, use_cache: bool, *, max_recent: int | None = None) -> bool:
        """Take blocks for the tokens of a sequence that has none, its cached prefix counted as computed.

        They are for all tokens, but in a table with a window for no more than it may have at a time. Return False, and
        change nothing, unless num_spare blocks stay free. max_recent: the most recent blocks of others that are taken
        for the sequence; None: any number.
        """
        pool, prefix = self._pool, self._prefix_of(sequence, use_cache)
        covered = self._covered(sequence, prefix.end)
        num_new = sum(covered) - self.num_tables * prefix.end
        num_revived, num_recent = map(sum, zip(*map(pool.count_unused, prefix.blocks), strict=True))
        if num_new + num_revived + num_spare > pool.num_free:
            return False
        num_idle = pool.num_idle - (num_revived - num_recent)
        if max_recent is not None and num_new > num_idle + max_recent:
            return False
        if self.states is not None and not self._start_states(self.states, sequence, prefix):
            return False
        for blocks in prefix.blocks:
            pool.share(blocks, is_batch=sequence.is_batch)
        sequence.num_past = [prefix.end - len(blocks) for blocks in prefix.blocks]
        sequence.block_tables = [
            [0] * num_past + blocks + pool.take(end - prefix.end)
            for num_past, blocks, end in zip(sequence.num_past, prefix.blocks, covered, strict=True)
        ]
        sequence.num_computed = prefix.end * self.block_size
        sequence.num_registered = prefix.end
        return True

    def _covered(self, sequence: Sequence, end: int) -> list[int]:
        """Return how many blocks of each table a sequence starts with, blocks that no window reaches included.

        end: the number of blocks of the cached prefix.
        """
        num_blocks = self._num_blocks_for(len(sequence.token_ids))
        if not self._has_windows:
            return [num_blocks] * self.num_tables
        pasts = (max(end - num_seen, 0) for num_seen in self._nums_seen)
        return [min(num_blocks, past + reserve) for past, reserve in zip(pasts, self._reserves, strict=True)]

    def _start_states(self, states: StateSlots, sequence: Sequence, prefix: _Prefix) -> bool:
        """Give a sequence a slot for its states; return False, and change nothing, where none is free."""
        num_full = (len(sequence.token_ids) - 1) // self.block_size
        self._hasher.extend(sequence, num_full)
        ends = sorted({end for end in (prefix.num_known, num_full) if end > prefix.end})
        positions = [end * self.block_size for end in ends]
        return states.start(sequence, prefix.end * self.block_size, positions, self.block_size)

    def lacks_slot(self, sequence: Sequence, use_cache: bool) -> bool:
        """Tell whether `start` of a sequence fails for want of a slot for its states.

        use_cache: True: it may reuse a cached prefix.
        """
        if self.states is None:
            return False
        prefix = self._prefix_of(sequence, use_cache)
        return not self.states.has_room(sequence, prefix.end * self.block_size, self.block_size)

    def num_missing(self, sequence: Sequence, num_tokens: int | None = None) -> int:
        """Return how many more blocks a sequence needs for its first num_tokens tokens.

        None: for the next one that is to be computed, if there is one.
        """
        if num_tokens is None:
            num_tokens = min(sequence.num_computed + 1, sequence.length)
        num_blocks, missing = -(-num_tokens // self.block_size), 0
        for table in sequence.block_tables:
            if len(table) < num_blocks:
                missing += num_blocks - len(table)
        return missing

    def grow(self, sequence: Sequence, num_tokens: int, *, max_recent: int | None = None) -> bool:
        """Make room for a sequence's first num_tokens tokens; return False, and change nothing, if too few are free.

        max_recent: as for `start`.
        """
        num_new = self.num_missing(sequence, num_tokens)
        if not num_new:
            return True
        pool, num_blocks = self._pool, self._num_blocks_for(num_tokens)
        if num_new > pool.num_free or (max_recent is not None and num_new > pool.num_idle + max_recent):
            return False
        for table in sequence.block_tables:
            table += pool.take(num_blocks - len(table))
        return True

    def num_with_room(self, sequence: Sequence) -> int:
        """Return how many of a sequence's tokens there is room for."""
        return min(map(len, sequence.block_tables)) * self.block_size

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Let others share the sequence's first num_tokens tokens, all of them computed.

        Take back the blocks that none of the sequence's further tokens sees; such blocks stay cached while there is
        room.
        """
        num_full = num_tokens // self.block_size
        if num_full != sequence.num_registered:
            self._register(sequence, num_full)
        if self._has_windows:
            self._leave_behind(sequence, num_tokens)
        if self.states is not None:
            self.states.register(sequence, num_tokens, self.block_size)

    def _register(self, sequence: Sequence, num_full: int) -> None:
        self._hasher.extend(sequence, num_full)
        contents = sequence.block_hashes[sequence.num_registered : num_full]
        for number, table in enumerate(sequence.block_tables):
            blocks = table[sequence.num_registered : num_full]
            self._pool.fill(blocks, number, contents, is_batch=sequence.is_batch)
        sequence.num_registered = num_full

    def _leave_behind(self, sequence: Sequence, num_tokens: int) -> None:
        """Take back the blocks that none of the tokens after the first num_tokens sees."""
        num_full = num_tokens // self.block_size
        for number, table in enumerate(sequence.block_tables):
            num_past, before = min(self._first_seen(number, num_tokens), num_full), sequence.num_past[number]
            if num_past > before:
                self._pool.let_go(table[before:num_past], is_batch=sequence.is_batch)
                sequence.num_past[number] = num_past

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's blocks back; registered ones stay cached while there is room."""
        for num_past, table in zip(sequence.num_past, sequence.block_tables, strict=True):
            self._pool.let_go(table[num_past:], is_batch=sequence.is_batch)
        sequence.block_tables, sequence.num_past = [], []
        sequence.num_computed = sequence.num_registered = 0
        if self.states is not None:
            self.states.release(sequence)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Check the invariants of all blocks; tests do so after every step."""
        everyone = list(sequences)
        if self.states is not None:
            self.states.check_integrity(everyone)
            known = set.intersection(*(set(each) for each in self._pool.cached))
            assert self.states.contents <= known, "a snapshot is of a block that is not cached"
        used: list[int] = []
        table_of: dict[int, int] = {}
        for sequence in everyone:
            assert len(sequence.block_tables) == len(sequence.num_past) == self.num_tables
            assert sequence.num_computed <= self.num_with_room(sequence)
            assert sequence.num_registered <= len(sequence.block_hashes)
            for number, (table, num_past) in enumerate(zip(sequence.block_tables, sequence.num_past, strict=True)):
                used += table[num_past:]
                assert all(table_of.setdefault(block, number) == number for block in table[num_past:])
                assert len(table) - num_past <= self._reserves[number]
                assert num_past <= min(sequence.num_registered, self._first_seen(number, sequence.num_computed))
                for i in range(num_past, sequence.num_registered):
                    assert self._pool.content_of(table[i]) in (None, (number, sequence.block_hashes[i]))
                assert all(self._pool.content_of(block) is None for block in table[sequence.num_registered :])
        self._pool.check_integrity(used)

    def _prefix_of(self, sequence: Sequence, use_cache: bool) -> _Prefix:
        return self._find_prefix(sequence) if use_cache else _Prefix(0, [[] for _ in range(self.num_tables)])

    def _find_prefix(self, sequence: Sequence) -> _Prefix:
        """Return the longest cached prefix of a sequence: all of its blocks that later tokens see are in the cache."""
        num_full = (len(sequence.token_ids) - 1) // self.block_size
        self._hasher.extend(sequence, num_full)
        hashes, cached = sequence.block_hashes[:num_full], self._pool.cached
        ends = whole_ends(hashes, cached, self._nums_seen)
        end = num_known = next(ends, 0)
        if self.states is not None and num_known and not self.states.has_snapshot(hashes[num_known - 1]):
            end = next((each for each in ends if self.states.has_snapshot(hashes[each - 1])), 0)
        blocks = [
            [of_table[content] for content in hashes[max(end - num_seen, 0) : end]]
            for of_table, num_seen in zip(cached, self._nums_seen, strict=True)
        ]
        return _Prefix(end, blocks, num_known)

    def _first_seen(self, table: int, position: int) -> int:
        """Return the first block that a position sees in a table; later positions need no block before it."""
        window = self._windows[table]
        return 0 if window is None else max(position - window + 1, 0) // self.block_size

    def _forget(self, content: bytes) -> None:
        if self.states is not None:
            self.states.forget(content)

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
