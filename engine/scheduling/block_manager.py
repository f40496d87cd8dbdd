"""The owners and contents of the blocks of the paged KV cache.

Block numbers only; the memory is the runner's. Automatic prefix caching over paged attention (Kwon et al., 2023): a
full block whose tokens are all computed is registered under its hash, and a sequence that starts with the same tokens
shares it. A block that nobody uses keeps its content until it is needed: those released longest ago go first, of one
sequence the tail before the head.
Batch work is below interactive requests here, too. Blocks that only batch work has used go before all others, and it
takes none that interactive requests have used recently: since the last but one call of `age`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from engine.scheduling.cache.block_hashes import BlockHasher
from engine.scheduling.cache.state_slots import StateSlots
from engine.sequence import Sequence

NEVER = -1


class _Prefix(NamedTuple):
    """Blocks that are in the cache, one after the other, up to a number of blocks from the sequence's beginning."""

    end: int
    blocks: list[int]
    num_known: int = 0
    """The number of blocks from the beginning that are in the cache, though there may be no snapshot at their end."""


NOTHING = _Prefix(0, [])


class BlockManager:
    """Assigns blocks. Each is empty, cached (unused, with content) or owned by one or more sequences.

    Cached blocks are in three places, each with the block first that is evicted first: those that only batch work has
    used, then old and then recent ones of interactive requests.
    """

    def __init__(
        self, num_blocks: int, block_size: int, window: int | None = None, states: StateSlots | None = None
    ) -> None:
        """Set up empty blocks.

        window: the most tokens that a position sees, itself included; None: all. states: the slots for states, which
        sequences get with their blocks; None for a model without any.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.states = states
        self._window = window
        self._hasher = BlockHasher(block_size)
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
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """The number of blocks that can be handed out: the empty ones and those that are only cached."""
        return self.num_idle + len(self._aging) + len(self._new)

    @property
    def num_idle(self) -> int:
        """The number of free blocks that hold nothing which interactive requests have used of late."""
        return len(self._empty) + len(self._batch) + len(self._old)

    def age(self) -> None:
        """Note that a while has passed: cached blocks that were recent at the last call, too, are old now."""
        self._old.update(self._aging)
        self._aging, self._new = self._new, OrderedDict()
        self._num_agings += 1
        if self.states is not None:
            self.states.age()

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of the sequence's beginning are in the cache.

        They are whole blocks, and never the last token, which has to be computed for the sequence to go on.
        """
        return self._find_prefix(sequence).end * self.block_size

    def num_needed(self, sequence: Sequence, use_cache: bool) -> int:
        """Return how many free blocks `start` of a sequence takes."""
        prefix = self._find_prefix(sequence) if use_cache else NOTHING
        num_new = self._num_blocks_for(len(sequence.token_ids)) - prefix.end
        return num_new + sum(not self._references[block] for block in prefix.blocks)

    def start(self, sequence: Sequence, num_spare: int, use_cache: bool, *, max_recent: int | None = None) -> bool:
        """Take blocks for all tokens of a sequence that has none, its cached prefix counted as computed.

        Return False, and change nothing, unless num_spare blocks stay free. max_recent: the most recent blocks of
        others that are taken for the sequence; None: any number.
        """
        prefix = self._find_prefix(sequence) if use_cache else NOTHING
        num_new = self._num_blocks_for(len(sequence.token_ids)) - prefix.end
        revived = [block for block in prefix.blocks if not self._references[block]]
        if num_new + len(revived) + num_spare > self.num_free:
            return False
        num_idle = self.num_idle - sum(block not in self._new and block not in self._aging for block in revived)
        if max_recent is not None and num_new > num_idle + max_recent:
            return False
        if self.states is not None and not self._start_states(self.states, sequence, prefix):
            return False
        for block in prefix.blocks:
            self._uncache(block)
            self._references[block] += 1
            self._note_use(block, sequence)
        sequence.num_past = prefix.end - len(prefix.blocks)
        sequence.block_table = [0] * sequence.num_past + prefix.blocks + [self._take() for _ in range(num_new)]
        sequence.num_computed = prefix.end * self.block_size
        sequence.num_registered = prefix.end
        return True

    def _start_states(self, states: StateSlots, sequence: Sequence, prefix: _Prefix) -> bool:
        """Give a sequence a slot for its states; return False, and change nothing, where none is free."""
        num_full = (len(sequence.token_ids) - 1) // self.block_size
        self._hasher.extend(sequence, num_full)
        ends = sorted({end for end in (prefix.num_known, num_full) if end > prefix.end})
        positions = [end * self.block_size for end in ends]
        return states.start(sequence, prefix.end * self.block_size, positions, self.block_size)

    def lacks_slot(self, sequence: Sequence, use_cache: bool) -> bool:
        """Tell whether `start` of a sequence fails for want of a slot for its states."""
        if self.states is None:
            return False
        prefix = self._find_prefix(sequence) if use_cache else NOTHING
        return not self.states.has_room(sequence, prefix.end * self.block_size, self.block_size)

    def num_missing(self, sequence: Sequence, num_tokens: int | None = None) -> int:
        """Return how many more blocks a sequence needs for num_tokens tokens; None: for all of its tokens."""
        num_tokens = sequence.length if num_tokens is None else num_tokens
        return max(self._num_blocks_for(num_tokens) - len(sequence.block_table), 0)

    def grow(self, sequence: Sequence, num_tokens: int, *, max_recent: int | None = None) -> bool:
        """Make room for a sequence's first num_tokens tokens; return False, and change nothing, if too few are free."""
        num_new = self._num_blocks_for(num_tokens) - len(sequence.block_table)
        if num_new > self.num_free or (max_recent is not None and num_new > self.num_idle + max_recent):
            return False
        for _ in range(num_new):
            sequence.block_table.append(self._take())
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Let others share the sequence's first num_tokens tokens, all of them computed.

        Take back the blocks that none of the sequence's further tokens sees; such blocks stay cached while there is
        room.
        """
        num_full = num_tokens // self.block_size
        if num_full != sequence.num_registered:
            self._register(sequence, num_full)
        num_past = min(self._first_seen(num_tokens), num_full)
        if num_past > sequence.num_past:
            self._let_go(sequence, sequence.block_table[sequence.num_past : num_past])
            sequence.num_past = num_past
        if self.states is not None:
            self.states.register(sequence, num_tokens, self.block_size)

    def _register(self, sequence: Sequence, num_full: int) -> None:
        self._hasher.extend(sequence, num_full)
        for i in range(sequence.num_registered, num_full):
            block, content = sequence.block_table[i], sequence.block_hashes[i]
            if content not in self._block_of:  # else someone computed the same at the same time: one copy is enough
                self._block_of[content] = block
                self._hash_of[block] = content
                self._used_at[block] = NEVER
                self._note_use(block, sequence)
        sequence.num_registered = num_full

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's blocks back; registered ones stay cached while there is room."""
        self._let_go(sequence, sequence.block_table[sequence.num_past :])
        sequence.block_table = []
        sequence.num_computed = sequence.num_registered = sequence.num_past = 0
        if self.states is not None:
            self.states.release(sequence)

    def _let_go(self, sequence: Sequence, blocks: list[int]) -> None:
        """Take blocks back from a sequence, the last of them first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            self._note_use(block, sequence)
            if self._references[block]:
                continue
            if self._hash_of[block] is None:
                self._empty.append(block)
            else:
                self._place_of(block)[block] = None

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Check the invariants of all blocks; tests do so after every step."""
        everyone = list(sequences)
        if self.states is not None:
            self.states.check_integrity(everyone)
            assert self.states.contents <= self._block_of.keys(), "a snapshot is of a block that is not cached"
        owners = Counter(block for sequence in everyone for block in sequence.block_table[sequence.num_past :])
        assert [owners[block] for block in range(self.num_blocks)] == self._references
        cached = [*self._batch, *self._old, *self._aging, *self._new]
        everywhere = sorted([*self._empty, *cached, *owners])
        assert everywhere == list(range(self.num_blocks)), "a block is lost or in two states"
        assert all(self._hash_of[block] is None for block in self._empty)
        assert all(self._hash_of[block] is not None for block in cached)
        registered = {content: block for block, content in enumerate(self._hash_of) if content is not None}
        assert registered == self._block_of
        for sequence in everyone:
            assert sequence.num_computed <= len(sequence.block_table) * self.block_size
            assert sequence.num_registered <= len(sequence.block_hashes)
            assert sequence.num_past <= min(sequence.num_registered, self._first_seen(sequence.num_computed))
            for i in range(sequence.num_past, sequence.num_registered):
                block = sequence.block_table[i]
                assert self._hash_of[block] in (None, sequence.block_hashes[i])
            assert all(self._hash_of[block] is None for block in sequence.block_table[sequence.num_registered :])

    def _find_prefix(self, sequence: Sequence) -> _Prefix:
        """Return the longest cached beginning of a sequence of which all is there that later tokens see."""
        num_full = (len(sequence.token_ids) - 1) // self.block_size
        self._hasher.extend(sequence, num_full)
        found, run, num_known = NOTHING, list[int](), 0
        for end, content in enumerate(sequence.block_hashes[:num_full], 1):
            block = self._block_of.get(content)
            if block is not None:
                run.append(block)
                num_seen = end - self._first_seen(end * self.block_size)
                if len(run) >= num_seen:
                    num_known = end
                    if self.states is None or self.states.has(content):
                        found = _Prefix(end, run[len(run) - num_seen :])
            elif self._window is None:
                break
            else:
                run = []
        return found if self.states is None else found._replace(num_known=num_known)

    def _first_seen(self, position: int) -> int:
        """Return the first block that a position sees, and all after it do: no block before it is needed any more."""
        return 0 if self._window is None else max(position - self._window + 1, 0) // self.block_size

    def _note_use(self, block: int, sequence: Sequence) -> None:
        if not sequence.is_batch:
            self._used_at[block] = self._num_agings

    def _place_of(self, block: int) -> OrderedDict[int, None]:
        """Return the place of a block that becomes cached; use by batch work makes nothing recent."""
        used_at = self._used_at[block]
        if used_at == NEVER:
            return self._batch
        num_agings_ago = self._num_agings - used_at
        return (self._new, self._aging, self._old)[min(num_agings_ago, 2)]

    def _uncache(self, block: int) -> None:
        for place in (self._batch, self._old, self._aging, self._new):
            place.pop(block, None)

    def _take(self) -> int:
        """Take a block for one owner; its content is forgotten."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = (self._batch or self._old or self._aging or self._new).popitem(last=False)
            content = self._hash_of[block]
            assert content is not None
            del self._block_of[content]
            self._hash_of[block] = None
            if self.states is not None:
                self.states.forget(content)
        self._references[block] = 1
        return block

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
