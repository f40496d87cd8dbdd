"""Which block of the paged KV cache belongs to whom. Block numbers only; the memory is the runner's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.sequence import Sequence


class BlockManager:
    """Hands out blocks of block_size tokens; every block is either free or in exactly one sequence's table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks to add before the sequence's first num_tokens tokens fit."""
        return max(0, -(-num_tokens // self.block_size) - len(sequence.block_table))

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the sequence's first num_tokens tokens; False, and nothing changes, if too few are free."""
        missing = self.num_missing(sequence, num_tokens)
        if missing > len(self._free):
            return False
        sequence.block_table.extend(self._free.popleft() for _ in range(missing))
        return True

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back; what they hold is lost."""
        self._free.extend(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Every block is owned exactly once, and every sequence has room for what it has computed."""
        owned = [block for sequence in sequences for block in sequence.block_table]
        everywhere = sorted([*self._free, *owned])
        assert everywhere == list(range(self.num_blocks)), "a block is lost or owned twice"
        for sequence in sequences:
            assert sequence.num_computed <= len(sequence.block_table) * self.block_size
