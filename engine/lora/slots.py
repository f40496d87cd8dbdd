"""The device's tier of adapters: the contents of slots, their bytes, and the choice of the adapter that leaves.

Bookkeeping alone: `engine.lora.pool` loads and waits. Batch work comes after interactive requests: it gets no slot that
these have used within RECENT_S, and its own slots go before theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import msgspec

from engine.lora.layer import LoadedAdapter

RECENT_S = 60.0


class Slot(msgspec.Struct, eq=False):
    """One slot for an adapter."""

    index: int
    """The number of the slot on the device."""
    key: str
    """The key of the adapter's content (`adapters.ref`)."""
    since_s: float
    """The time at which the adapter was asked for."""
    adapter: LoadedAdapter | None = None
    """The adapter; None until it is on the device."""
    staged: LoadedAdapter | None = None
    """The adapter in the host tier while it waits for its bytes."""
    num_bytes: int = 0
    """Bytes of the device's budget that the adapter takes."""
    references: int = 0
    """The number of running sequences that use the adapter."""
    last_used_s: float = 0.0
    """The time at which a sequence last used the adapter, by the monotonic clock."""
    fresh: bool = True
    """True until the adapter is used."""
    closing: bool = False
    """True: the slot takes no new users, and is empty after the last one."""
    for_batch: bool = False
    """True if only batch work has asked for the adapter."""
    batch_references: int = 0
    """The references that are batch work's."""
    last_interactive_s: float = -inf
    """The time at which an interactive request last used the adapter, by the monotonic clock; -inf: none did."""
    is_reclaimed: bool = False
    """True if the slot is closing because interactive requests want its place, so that its batch work has to leave."""

    @property
    def is_of_batch(self) -> bool:
        """Tell whether batch work alone uses the slot."""
        return 0 < self.references == self.batch_references


class Slots:
    """The slots of the device; iterates over those that are not empty.

    The least recently used adapter leaves first; never one in use, a pinned one, or one that was loaded and not used
    yet. vacate: called with the index of each slot that becomes empty.
    """

    def __init__(self, num_slots: int, max_bytes: int, vacate: Callable[[int], None] = lambda index: None) -> None:
        self.max_bytes = max_bytes
        self._vacate = vacate
        self.pinned: set[str] = set()
        self.num_evictions = 0
        self._slots: list[Slot | None] = [None] * num_slots
        self._by_key: dict[str, Slot] = {}

    def __len__(self) -> int:
        """Return the number of slots, empty ones included."""
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_key.values())

    @property
    def num_used(self) -> int:
        """The number of slots that hold an adapter or are kept for one that loads."""
        return len(self._by_key)

    @property
    def num_bytes(self) -> int:
        """The bytes that adapters take, at most max_bytes."""
        return sum(slot.num_bytes for slot in self)

    def num_held_bytes(self, now_s: float, *, for_batch: bool = False) -> int:
        """Return the number of taken bytes that no eviction would give back now. for_batch: as for `make_room`."""
        return self.num_bytes - sum(slot.num_bytes for slot in self._evictable(now_s, for_batch))

    @property
    def num_loading(self) -> int:
        """The number of slots whose adapter is not on the device yet."""
        return sum(slot.adapter is None for slot in self)

    def find(self, key: str) -> Slot | None:
        """Return the slot of a content key; None where there is none."""
        return self._by_key.get(key)

    def at(self, index: int) -> Slot:
        """Return the slot with this index, which must not be empty."""
        slot = self._slots[index]
        assert slot is not None
        return slot

    def reserve(self, key: str, since_s: float, now_s: float, *, for_batch: bool = False) -> bool:
        """Reserve a slot for this adapter, if need be after an eviction; return False if there is none.

        since_s: the time at which the adapter was first asked for. for_batch: as for `make_room`.
        """
        index = next((index for index, slot in enumerate(self._slots) if slot is None), None)
        if index is None:
            evictable = self._evictable(now_s, for_batch)
            if not evictable:
                return False
            index = evictable[0].index
            self._evict(evictable[0])
        self._slots[index] = self._by_key[key] = Slot(index, key, since_s, for_batch=for_batch)
        return True

    def empty(self, slot: Slot) -> None:
        """Empty a slot, and let go of its adapter's memory."""
        del self._by_key[slot.key]
        self._slots[slot.index] = None
        self._vacate(slot.index)
        slot.adapter = slot.staged = None  # a reference that remains holds no memory that the next load may need

    def make_room(self, num_bytes: int, now_s: float, *, for_batch: bool = False) -> bool:
        """Evict adapters until num_bytes fit; evict nothing and return False if they would not.

        for_batch: True: the room is for batch work, so no adapter is evicted that interactive requests used of late.
        """
        evictable = self._evictable(now_s, for_batch)
        excess = self.num_bytes + num_bytes - self.max_bytes
        if excess > sum(slot.num_bytes for slot in evictable):
            return False
        for slot in evictable:
            if excess <= 0:
                break
            excess -= slot.num_bytes
            self._evict(slot)
        return True

    def close(self, num_slots: int, num_bytes: int, *, of_batch: bool = False) -> None:
        """Let num_slots slots in use, and as many as hold num_bytes, take no new users.

        Slots that are closing already count. of_batch: only slots that batch work alone uses.
        """
        in_use = [slot for slot in self if slot.references and slot.key not in self.pinned]
        if of_batch:
            in_use = [slot for slot in in_use if slot.is_of_batch or slot.closing]
        for slot in sorted(in_use, key=lambda slot: (not slot.closing, slot.last_used_s)):
            if num_slots <= 0 and num_bytes <= 0:
                return
            self.num_evictions += not slot.closing
            slot.closing = True
            num_slots -= 1
            num_bytes -= slot.num_bytes

    def reclaim_from_batch(self, num_slots: int, num_bytes: int) -> None:
        """Close slots that only batch work uses, as `close` does: batch work has to leave them now."""
        coming = [slot for slot in self if slot.is_reclaimed]
        num_slots -= len(coming)
        num_bytes -= sum(slot.num_bytes for slot in coming)
        of_batch = [slot for slot in self if slot.is_of_batch and not slot.closing and slot.key not in self.pinned]
        for slot in sorted(of_batch, key=lambda slot: slot.last_used_s):
            if num_slots <= 0 and num_bytes <= 0:
                return
            self.num_evictions += 1
            slot.closing = slot.is_reclaimed = True
            num_slots -= 1
            num_bytes -= slot.num_bytes

    def check_integrity(self, num_users: int) -> None:
        """Check the slots' invariants; tests do so after every step.

        num_users: the number of sequences that hold a slot.
        """
        held = {slot.key: slot for slot in self._slots if slot is not None}
        assert held == self._by_key
        assert all(self._slots[slot.index] is slot for slot in self)
        assert sum(slot.references for slot in self) == num_users
        assert all(0 <= slot.batch_references <= slot.references for slot in self)
        assert all(slot.adapter is not None for slot in self if slot.references)
        assert all(slot.num_bytes == slot.adapter.num_bytes for slot in self if slot.adapter is not None)
        assert self.num_bytes <= self.max_bytes
        assert len(self.pinned) <= len(self) // 2

    def _evictable(self, now_s: float, for_batch: bool) -> list[Slot]:
        """Return the slots that nobody uses or waits for, the least recently used first.

        for_batch: only those that interactive requests have not used of late. Interactive requests take the slots of
        batch work alone before others, also before their first use.
        """
        recent_s = now_s - RECENT_S
        idle = [
            slot
            for slot in self
            if slot.adapter is not None and not (slot.references or slot.key in self.pinned)
            if not slot.fresh or (slot.for_batch and not for_batch)
            if not (for_batch and slot.last_interactive_s > recent_s)
        ]
        return sorted(idle, key=lambda slot: (slot.last_interactive_s > recent_s, slot.last_used_s, slot.index))

    def _evict(self, slot: Slot) -> None:
        self.num_evictions += 1
        self.empty(slot)
