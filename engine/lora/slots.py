"""The device's tier of adapters: which slot holds which, the bytes they take, and who leaves for whom.

Bookkeeping alone. What loads, and who waits, is `engine.lora.pool`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from engine.lora.layer import LoadedAdapter


class Slot(msgspec.Struct, eq=False):
    """adapter: None until it is on the device. staged: it is in the host tier and waits for its bytes.

    num_bytes: what it takes of the device's budget. since_s: when it was asked for. fresh: not used yet. closing: no
    new users, empty after the last.
    """

    index: int
    key: str
    since_s: float
    adapter: LoadedAdapter | None = None
    staged: LoadedAdapter | None = None
    num_bytes: int = 0
    references: int = 0
    last_used_s: float = 0.0
    fresh: bool = True
    closing: bool = False


class Slots:
    """The least recently used leaves first; never one in use, a pinned one, or one that was loaded and not used yet.

    Iterates over the slots that are not empty. vacate: called with the index of each that becomes empty.
    """

    def __init__(self, num_slots: int, max_bytes: int, vacate: Callable[[int], None] = lambda index: None) -> None:
        self.max_bytes = max_bytes
        self._vacate = vacate
        self.pinned: set[str] = set()
        self.num_evictions = 0
        self._slots: list[Slot | None] = [None] * num_slots
        self._by_key: dict[str, Slot] = {}

    def __len__(self) -> int:
        """Empty ones included."""
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_key.values())

    @property
    def num_used(self) -> int:
        return len(self._by_key)

    @property
    def num_bytes(self) -> int:
        """Of max_bytes, those taken."""
        return sum(slot.num_bytes for slot in self)

    @property
    def num_kept_bytes(self) -> int:
        """Those that no eviction would give back now."""
        return self.num_bytes - sum(slot.num_bytes for slot in self._evictable())

    @property
    def num_loading(self) -> int:
        """Slots whose adapter is not on the device yet."""
        return sum(slot.adapter is None for slot in self)

    def find(self, key: str) -> Slot | None:
        return self._by_key.get(key)

    def at(self, index: int) -> Slot:
        slot = self._slots[index]
        assert slot is not None
        return slot

    def reserve(self, key: str, since_s: float) -> bool:
        """A slot for this adapter, if need be after an eviction; False if there is none."""
        index = next((index for index, slot in enumerate(self._slots) if slot is None), None)
        if index is None:
            evictable = self._evictable()
            if not evictable:
                return False
            index = evictable[0].index
            self._evict(evictable[0])
        self._slots[index] = self._by_key[key] = Slot(index, key, since_s)
        return True

    def empty(self, slot: Slot) -> None:
        del self._by_key[slot.key]
        self._slots[slot.index] = None
        self._vacate(slot.index)
        slot.adapter = slot.staged = None  # whoever still holds the slot holds no memory that the next load may need

    def make_room(self, num_bytes: int) -> bool:
        """Evict until num_bytes fit; nothing if they would not."""
        evictable = self._evictable()
        excess = self.num_bytes + num_bytes - self.max_bytes
        if excess > sum(slot.num_bytes for slot in evictable):
            return False
        for slot in evictable:
            if excess <= 0:
                break
            excess -= slot.num_bytes
            self._evict(slot)
        return True

    def close(self, num_slots: int, num_bytes: int) -> None:
        """Let num_slots slots in use, and as many as hold num_bytes, take no new users; those that are closing already
        count."""
        in_use = [slot for slot in self if slot.references and slot.key not in self.pinned]
        for slot in sorted(in_use, key=lambda slot: (not slot.closing, slot.last_used_s)):
            if num_slots <= 0 and num_bytes <= 0:
                return
            self.num_evictions += not slot.closing
            slot.closing = True
            num_slots -= 1
            num_bytes -= slot.num_bytes

    def check_integrity(self, num_users: int) -> None:
        """num_users: sequences that hold a slot. Run by tests after every step."""
        held = {slot.key: slot for slot in self._slots if slot is not None}
        assert held == self._by_key
        assert all(self._slots[slot.index] is slot for slot in self)
        assert sum(slot.references for slot in self) == num_users
        assert all(slot.adapter is not None for slot in self if slot.references)
        assert all(slot.num_bytes == slot.adapter.num_bytes for slot in self if slot.adapter is not None)
        assert self.num_bytes <= self.max_bytes
        assert len(self.pinned) <= len(self) // 2

    def _evictable(self) -> list[Slot]:
        """Those nobody uses or waits for, the least recently used first."""
        idle = [
            slot
            for slot in self
            if slot.adapter is not None and not (slot.references or slot.fresh or slot.key in self.pinned)
        ]
        return sorted(idle, key=lambda slot: (slot.last_used_s, slot.index))

    def _evict(self, slot: Slot) -> None:
        self.num_evictions += 1
        self.empty(slot)
