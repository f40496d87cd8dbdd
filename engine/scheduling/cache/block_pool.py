"""The blocks of the cache: which are used, which keep what they held, and which go first when some are needed.

Blocks are numbers, and what they hold is a table of the cache's layout and a hash. A block that nobody uses keeps its
content until it is needed: those released longest ago go first. Blocks that only batch work has used go before all
others. Knows no sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many

NEVER = -1


class BlockPool:
    """Each block is empty, cached (unused, with content) or used by one or more sequences.

    Cached blocks are in three places, each with the block first that is evicted first: those that only batch work has
    used, then old and then recent ones of interactive requests.
    """

    def __init__(
        self, num_blocks: int, num_tables: int, forget: Callable[[bytes], None] = lambda content: None
    ) -> None:
        """Set up empty blocks.

        forget: called with the hash of a content that leaves the cache. num_tables: the number of tables of a sequence.
        """
        self.num_blocks = num_blocks
        self.cached: list[dict[bytes, int]] = [{} for _ in range(num_tables)]
        """For each table the blocks by the hashes of their contents. Only the pool changes it."""
        self._forget = forget
        self._empty = list(range(num_blocks))
        self._batch: OrderedDict[int, None] = OrderedDict()
        self._old: OrderedDict[int, None] = OrderedDict()
        self._aging: OrderedDict[int, None] = OrderedDict()  # recent, from before the last call of `age`
        self._new: OrderedDict[int, None] = OrderedDict()  # recent, from after it
        self._num_agings = 0
        self._used_at = [
            NEVER
        ] * num_blocks  # after how many agings interactive requests used what the block holds last
        self._references = [0] * num_blocks
        self._content_of: list[tuple[int, bytes] | None] = [None] * num_blocks  # table and hash

    @property
    def num_free(self) -> int:
        """The number of blocks that can be handed out: the empty ones and those that are only cached."""
        return self.num_idle + len(self._aging) + len(self._new)

    @property
    def num_idle(self) -> int:
        """The number of free blocks that hold nothing which interactive requests have used of late."""
        return len(self._empty) + len(self._batch) + len(self._old)

    def age(self) -> None:
        """Record that a while has passed: cached blocks that were recent at the last call, too, are old now."""
        self._old.update(self._aging)
        self._aging, self._new = self._new, OrderedDict()
        self._num_agings += 1

    def count_unused(self, blocks: Many[int]) -> tuple[int, int]:
        """Return how many of some blocks nobody uses, and how many of these interactive requests have used of late."""
        unused = [block for block in blocks if not self._references[block]]
        return len(unused), sum(block in self._new or block in self._aging for block in unused)

    def take(self, number: int) -> list[int]:
        """Take free blocks for one user; their contents are forgotten."""
        taken = []
        for _ in range(number):
            block = self._empty.pop() if self._empty else self._evict()
            self._references[block] = 1
            taken.append(block)
        return taken

    def _evict(self) -> int:
        block, _ = (self._batch or self._old or self._aging or self._new).popitem(last=False)
        content = self._content_of[block]
        assert content is not None
        del self.cached[content[0]][content[1]]
        self._content_of[block] = None
        self._forget(content[1])
        return block

    def share(self, blocks: Many[int], *, is_batch: bool) -> None:
        """Add a user to blocks that have content. is_batch: True for batch work, whose use makes nothing recent."""
        for block in blocks:
            for place in (self._batch, self._old, self._aging, self._new):
                place.pop(block, None)
            self._references[block] += 1
            if not is_batch:
                self._used_at[block] = self._num_agings

    def fill(self, blocks: Many[int], table: int, contents: Many[bytes], *, is_batch: bool) -> None:
        """Record the contents of used blocks, but for contents that another block holds: one copy is enough.

        is_batch: True: the user is batch work, which does not make the blocks count as used of late. table: the number
        of the table whose layers the blocks are of.
        """
        cached, used_at = self.cached[table], NEVER if is_batch else self._num_agings
        for block, content in zip(blocks, contents, strict=True):
            if content not in cached:
                cached[content] = block
                self._content_of[block] = table, content
                self._used_at[block] = used_at

    def let_go(self, blocks: Many[int], *, is_batch: bool) -> None:
        """Remove a user from blocks, the last block first. Blocks with content stay cached while there is room.

        is_batch: as for `fill`.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if not is_batch:
                self._used_at[block] = self._num_agings
            if self._references[block]:
                continue
            if self._content_of[block] is None:
                self._empty.append(block)
            else:
                self._place_of(block)[block] = None

    def content_of(self, block: int) -> tuple[int, bytes] | None:
        """Return the table and the hash of a block's content; None for a block that nobody could find."""
        return self._content_of[block]

    def check_integrity(self, used: Iterable[int]) -> None:
        """Check the invariants of all blocks. used: the blocks of all sequences, each as often as it is used."""
        references = [0] * self.num_blocks
        for block in used:
            references[block] += 1
        assert references == self._references, "a block is lost or used by somebody unknown"
        cached = [*self._batch, *self._old, *self._aging, *self._new]
        everywhere = sorted([*self._empty, *cached, *(block for block, count in enumerate(references) if count)])
        assert everywhere == list(range(self.num_blocks)), "a block is lost or in two states"
        assert all(self._content_of[block] is None for block in self._empty)
        assert all(self._content_of[block] is not None for block in cached)
        filled = {content: block for block, content in enumerate(self._content_of) if content is not None}
        found = {(table, held): block for table, each in enumerate(self.cached) for held, block in each.items()}
        assert filled == found

    def _place_of(self, block: int) -> OrderedDict[int, None]:
        """Return the place of a block that becomes cached."""
        used_at = self._used_at[block]
        if used_at == NEVER:
            return self._batch
        num_agings_ago = self._num_agings - used_at
        return (self._new, self._aging, self._old)[min(num_agings_ago, 2)]
