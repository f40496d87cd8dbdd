"""The owners of the slots for states, in models some of whose layers keep a state in place of keys and values.

Slot numbers only; the memory is the runner's (`engine.models.states`). The block manager's sibling: a sequence that has
blocks has a slot too. A state cannot be cut as a list of keys can, so that a cached prefix is of use only where a
snapshot of the states at its end was taken. Snapshots are known by the hash of the last block before them, which stands
for the tenant, the adapter and all tokens up to there. They are taken at the end of the last full block of what a
sequence has to compute when it starts, and at the end of what it had in common with cached blocks that no snapshot led
to: that is where texts with a common beginning part. Until the step that takes it is done, the slot of a snapshot is
its sequence's.

Sequences go before snapshots, and these leave by the time of their last use. Batch work takes no place from snapshots
that interactive requests have used recently: since the last but one call of `age`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set

from engine.sequence import Sequence

Content = bytes


class StateSlots:
    """The slots for states, and their assignment to sequences and snapshots.

    A slot is empty, or belongs to a sequence, to a planned snapshot or to a snapshot.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._empty = list(range(num_slots))
        self._slot_of: dict[Content, int] = {}
        self._batch: OrderedDict[Content, None] = OrderedDict()  # those of batch work, and old ones
        self._aging: OrderedDict[Content, None] = OrderedDict()  # recent, from before the last call of `age`
        self._new: OrderedDict[Content, None] = OrderedDict()  # recent, from after it
        self._readers: Counter[Content] = Counter()  # sequences whose first step begins with a snapshot

    @property
    def num_free(self) -> int:
        """The number of slots that a sequence could have: empty ones, and snapshots that nobody is about to read."""
        return len(self._empty) + len(self._slot_of) - len(self._readers)

    @property
    def contents(self) -> Set[Content]:
        """The hashes of the blocks after which there is a snapshot."""
        return self._slot_of.keys()

    def has_snapshot(self, content: Content) -> bool:
        """Tell whether there is a snapshot of the states after the block with this hash."""
        return content in self._slot_of

    def has_room(self, sequence: Sequence, at: int, block_size: int) -> bool:
        """Tell whether a slot is free for a sequence that begins with the snapshot at a position; 0: with zeros.

        at: the position, in tokens.
        """
        is_read_first = at > 0 and sequence.block_hashes[at // block_size - 1] not in self._readers
        return self.num_free - is_read_first >= 1

    def start(self, sequence: Sequence, at: int, positions: Iterable[int], block_size: int) -> bool:
        """Give a sequence a slot, in which it begins with the snapshot at a position, or with zeros at position 0.

        positions: the positions at which the sequence takes snapshots, as far as there is room; each is the end of a
        block whose hash is known. Return False, and change nothing, if no slot is free. at: the position, in tokens.
        """
        if not self.has_room(sequence, at, block_size):
            return False
        content = sequence.block_hashes[at // block_size - 1] if at else None
        if content is not None:
            self._readers[content] += 1
            self._use(content, sequence)
            sequence.state_source = (at, self._slot_of[content], content)
        slot = self._take(may_take_recent=True)
        assert slot is not None
        sequence.state_slot = slot
        for position in positions:
            if not self.has_snapshot(sequence.block_hashes[position // block_size - 1]):
                planned = self._take(may_take_recent=not sequence.is_batch)
                if planned is not None:
                    sequence.snapshots.append((position, planned))
        return True

    def register(self, sequence: Sequence, num_tokens: int, block_size: int) -> None:
        """Let others begin with the snapshots of a sequence up to a number of tokens, all of them computed."""
        self._stop_reading(sequence)
        while sequence.snapshots and sequence.snapshots[0][0] <= num_tokens:
            position, slot = sequence.snapshots.pop(0)
            content = sequence.block_hashes[position // block_size - 1]
            if content in self._slot_of:  # another sequence computed the same at the same time
                self._empty.append(slot)
            else:
                self._slot_of[content] = slot
                (self._batch if sequence.is_batch else self._new)[content] = None

    def release(self, sequence: Sequence) -> None:
        """Take the slots of a sequence back; its snapshots stay while there is room, but for those not taken yet."""
        self._stop_reading(sequence)
        if sequence.state_slot is not None:
            self._empty += [sequence.state_slot, *(slot for _, slot in sequence.snapshots)]
        sequence.state_slot, sequence.snapshots = None, []

    def forget(self, content: Content) -> None:
        """Give up the snapshot after a block that leaves the cache: nobody could come to it any more."""
        if content in self._slot_of:
            assert content not in self._readers, "the blocks before a snapshot are its readers'"
            self._empty.append(self._remove(content))

    def age(self) -> None:
        """Record that a while has passed: snapshots that were recent at the last call, too, are old now."""
        self._batch.update(self._aging)
        self._aging, self._new = self._new, OrderedDict()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Check the invariants of all slots; tests do so after every step."""
        everyone = list(sequences)
        own = [sequence.state_slot for sequence in everyone if sequence.state_slot is not None]
        assert len(own) == len(everyone), "a running sequence has no state"
        planned = [slot for sequence in everyone for _, slot in sequence.snapshots]
        everywhere = sorted([*self._empty, *self._slot_of.values(), *planned, *own])
        assert everywhere == list(range(self.num_slots)), "a slot is lost or in two states"
        sources = [sequence.state_source for sequence in everyone if sequence.state_source is not None]
        assert Counter(content for _, _, content in sources) == self._readers
        assert all(self._slot_of[content] == slot for _, slot, content in sources), "a snapshot left before it was read"
        assert sorted([*self._batch, *self._aging, *self._new]) == sorted(self._slot_of)

    def _stop_reading(self, sequence: Sequence) -> None:
        if sequence.state_source is None:
            return
        content = sequence.state_source[2]
        self._readers[content] -= 1
        if not self._readers[content]:
            del self._readers[content]
        sequence.state_source = None

    def _use(self, content: Content, sequence: Sequence) -> None:
        """Record the use of a snapshot; use by batch work makes nothing recent."""
        if sequence.is_batch:
            place = next(each for each in (self._batch, self._aging, self._new) if content in each)
            place.move_to_end(content)
            return
        for each in (self._batch, self._aging, self._new):
            each.pop(content, None)
        self._new[content] = None

    def _take(self, *, may_take_recent: bool) -> int | None:
        """Take a slot, if need be that of the snapshot that goes first; return None where there is none.

        may_take_recent: False: no snapshot gives way that interactive requests have used recently.
        """
        if self._empty:
            return self._empty.pop()
        for place in (self._batch, self._aging, self._new) if may_take_recent else (self._batch,):
            for content in place:
                if content not in self._readers:
                    return self._remove(content)
        return None

    def _remove(self, content: Content) -> int:
        for place in (self._batch, self._aging, self._new):
            place.pop(content, None)
        return self._slot_of.pop(content)
