"""Adapters on the device: slots and a budget of bytes, reference counts, pins, and loads beside running steps.

A slot is reserved before its load begins, so no more adapters are in memory than there are slots. A load brings the
adapter to the host tier (`engine.lora.loader`), where it waits until its bytes fit on the device; where bytes are
scarce one is loaded at a time. An adapter in use is never evicted, a pinned one neither, and one that was just loaded
not before its first use. Whoever waits is served in order of asking.

The wait for a slot is bounded: after PATIENCE_S every waiter closes one more of the slots used least recently, which
then take no new users and fall free when their last one ends. With S slots that are not pinned, D the longest time that
a request holds a slot and L the longest load, the k-th in line waits at most PATIENCE_S + ceil(k / S) * D + k * L.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import msgspec

from adapters.errors import AdapterMissing, AdapterRejected
from engine.lora.layer import LoadedAdapter
from engine.protocol import EngineError

log = logging.getLogger(__name__)

PATIENCE_S = 0.5


class Arrival(msgspec.Struct, frozen=True):
    """The end of a load: the adapter, or why there is none."""

    digest: str
    adapter: LoadedAdapter | None
    error: EngineError | None


class _Ended(msgspec.Struct, frozen=True):
    """What the loading thread did: on_device tells a copy to the device from a load into the host tier."""

    arrival: Arrival
    on_device: bool
    seconds: float


class _Slot(msgspec.Struct):
    """adapter: None until it is on the device. staged: it is in the host tier and waits for its bytes.

    num_bytes: what it takes of the device's budget. since_s: when it was asked for. fresh: not used yet. closing: no
    new users, empty after the last.
    """

    digest: str
    since_s: float
    adapter: LoadedAdapter | None = None
    staged: LoadedAdapter | None = None
    num_bytes: int = 0
    references: int = 0
    last_used_s: float = 0.0
    fresh: bool = True
    closing: bool = False


class AdapterPool:
    """All methods belong to the stepping thread; only the loads run elsewhere, and `wake` is called when one ends.

    load: a digest's adapter in host memory. to_device: what copies it to the device, None where that is the same.
    """

    def __init__(
        self,
        load: Callable[[str], LoadedAdapter],
        max_adapters: int,
        wake: Callable[[], None],
        *,
        max_bytes: int = 1 << 62,
        to_device: Callable[[LoadedAdapter], LoadedAdapter] | None = None,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self._load = load
        self._to_device = to_device
        self._wake = wake
        self.max_bytes = max_bytes
        self._clock = clock
        self._slots: list[_Slot | None] = [None] * max_adapters
        self._slot_of: dict[str, int] = {}
        self._pinned: set[str] = set()
        self._wanted: OrderedDict[str, float] = OrderedDict()  # without a slot yet, and since when
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._arrived: list[Arrival] = []
        self._largest = 0  # bytes of the largest adapter seen
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load")
        self.num_loads = 0
        self.num_load_bytes = 0
        self.load_seconds = 0.0
        self.num_evictions = 0

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def num_slots_used(self) -> int:
        return len(self._slot_of)

    @property
    def num_bytes(self) -> int:
        """Of the device's budget, those taken."""
        return sum(slot.num_bytes for slot in self._slots if slot is not None)

    @property
    def num_waiting(self) -> int:
        """Adapters that were asked for and are not there: in line for a slot, or loading into one."""
        return len(self._wanted) + sum(slot is not None and slot.adapter is None for slot in self._slots)

    @property
    def resident(self) -> list[str]:
        return sorted(slot.digest for slot in self._slots if slot is not None and slot.adapter is not None)

    def is_resident(self, digest: str) -> bool:
        """It is ready for a new user now."""
        held = self._held(digest)
        return held is not None and held.adapter is not None and not held.closing

    def adapter(self, slot: int) -> LoadedAdapter:
        held = self._slots[slot]
        assert held is not None and held.adapter is not None
        return held.adapter

    def request(self, digest: str) -> bool:
        """True if the adapter is ready for a new user; else it is loading, or waits for a slot, after this call."""
        held = self._held(digest)
        if held is None or held.closing:
            self._wanted.setdefault(digest, self._clock())
            self._go_on()
            return False
        return held.adapter is not None

    def pin(self, digest: str) -> bool:
        """As `request`, and the adapter is not evicted until it is unloaded.

        Pins fill at most half of the slots and half of the bytes; beyond that an adapter is loaded and may be evicted
        like any other.
        """
        if len(self._pinned | {digest}) <= len(self._slots) // 2:
            self._pinned.add(digest)
        return self.request(digest)

    def withdraw(self, digest: str) -> None:
        """Nobody waits for this adapter any more: it needs no slot, or may be evicted like any other."""
        if digest not in self._pinned:
            self._wanted.pop(digest, None)
        held = self._held(digest)
        if held is not None:
            held.fresh = False

    def preload(self, digest: str) -> None:
        """Load an adapter now and wait for it. Raises RuntimeError when there is no slot or it can't be loaded."""
        for _ in range(3):  # to the host, to the device, and the answer
            if self.request(digest):
                self.withdraw(digest)
                return
            self._executor.submit(lambda: None).result()  # one worker: what was submitted has ended before this
            self.arrivals()
        raise RuntimeError(f"adapter {digest} could not be loaded")

    def acquire(self, digest: str) -> int | None:
        """See `running_set.AdapterSlots`."""
        if not self.request(digest):
            return None
        slot = self._slot_of[digest]
        held = self._slots[slot]
        assert held is not None
        held.references += 1
        held.last_used_s = self._clock()
        held.fresh = False
        return slot

    def release(self, slot: int) -> None:
        held = self._slots[slot]
        assert held is not None and held.references > 0
        held.references -= 1
        held.last_used_s = self._clock()
        if held.closing and not held.references:
            self._empty(slot)
        self._go_on()

    def unload(self, digest: str) -> bool:
        """False if it is still loading or in use: then it leaves with its last user, and takes no new one."""
        self._pinned.discard(digest)
        self._wanted.pop(digest, None)
        held = self._held(digest)
        if held is None:
            return True
        held.closing = True
        if held.references or (held.adapter is None and held.staged is None):
            return False
        self._empty(self._slot_of[digest])
        self._go_on()
        return True

    def arrivals(self) -> list[Arrival]:
        """Loads that ended since the last call; those that succeeded are in their slots."""
        while not self._ended.empty():
            self._take(self._ended.get())
        self._go_on()
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def check_integrity(self, num_users: int) -> None:
        """num_users: sequences that hold a slot. Run by tests after every step."""
        held = [slot for slot in self._slots if slot is not None]
        assert self._slot_of == {slot.digest: index for index, slot in enumerate(self._slots) if slot is not None}
        assert sum(slot.references for slot in held) == num_users
        assert all(slot.adapter is not None for slot in held if slot.references)
        assert all(slot.num_bytes == slot.adapter.num_bytes for slot in held if slot.adapter is not None)
        assert self.num_bytes <= self.max_bytes
        assert len(self._pinned) <= len(self._slots) // 2
        assert all(slot.closing for digest in self._wanted if (slot := self._held(digest)) is not None)

    def _held(self, digest: str) -> _Slot | None:
        slot = self._slot_of.get(digest)
        return None if slot is None else self._slots[slot]

    def _take(self, ended: _Ended) -> None:
        """One thing that the loading thread did."""
        arrival = ended.arrival
        self.load_seconds += ended.seconds
        held = self._held(arrival.digest)
        assert held is not None
        if arrival.adapter is None or held.closing:
            self._leave(held, arrival)
        elif ended.on_device:
            self._settle(held, arrival.adapter)
        elif arrival.adapter.num_bytes > self.max_bytes:
            why = f"the adapter takes {arrival.adapter.num_bytes} bytes; on the device there are {self.max_bytes}"
            self._leave(held, Arrival(arrival.digest, None, EngineError("adapter_rejected", why)))
        else:
            held.staged = arrival.adapter
            self._largest = max(self._largest, arrival.adapter.num_bytes)

    def _leave(self, held: _Slot, arrival: Arrival) -> None:
        """A load that gives no adapter to use."""
        self._pinned.discard(held.digest)
        self._empty(self._slot_of[held.digest])
        self._arrived.append(arrival)

    def _settle(self, held: _Slot, adapter: LoadedAdapter) -> None:
        held.adapter = adapter
        held.last_used_s = self._clock()
        self.num_loads += 1
        self.num_load_bytes += adapter.num_bytes
        pinned_bytes = sum(slot.num_bytes for slot in self._slots if slot is not None and slot.digest in self._pinned)
        if pinned_bytes > self.max_bytes // 2:
            self._pinned.discard(held.digest)
        self._arrived.append(Arrival(held.digest, adapter, None))

    def _go_on(self) -> None:
        """Admit who is staged, then reserve slots for those who wait, in order, as far as bytes and slots go."""
        for held in sorted(self._staged(), key=lambda held: held.since_s):
            adapter = held.staged
            assert adapter is not None
            if not self._make_room(adapter.num_bytes):
                break
            held.staged, held.num_bytes = None, adapter.num_bytes
            if self._to_device is None:
                self._settle(held, adapter)
            else:
                self._executor.submit(self._run, held.digest, partial(self._to_device, adapter), True)
        for digest, since_s in list(self._wanted.items()):
            if digest in self._slot_of:
                continue  # still closing; it comes back once it is gone
            slot = self._free_slot() if self._may_load() else None
            if slot is None:
                break
            del self._wanted[digest]
            self._slots[slot] = _Slot(digest, since_s)
            self._slot_of[digest] = slot
            self._executor.submit(self._run, digest, partial(self._load, digest), False)
        self._close_for_waiters()

    def _staged(self) -> list[_Slot]:
        return [held for held in self._slots if held is not None and held.staged is not None]

    def _evictable(self) -> list[tuple[float, int, _Slot]]:
        """Those nobody uses or waits for, the least recently used first."""
        return sorted(
            (held.last_used_s, slot, held)
            for slot, held in enumerate(self._slots)
            if held is not None
            and held.adapter is not None
            and not (held.references or held.fresh or held.digest in self._pinned)
        )

    def _make_room(self, num_bytes: int) -> bool:
        """Evict until num_bytes fit; nothing if they would not."""
        evictable = self._evictable()
        excess = self.num_bytes + num_bytes - self.max_bytes
        if excess > sum(held.num_bytes for _, _, held in evictable):
            return False
        for _, slot, held in evictable:
            if excess <= 0:
                break
            excess -= held.num_bytes
            self._evict(slot)
        return True

    def _may_load(self) -> bool:
        """Nobody loads, or one more adapter as large as any so far would fit beside those that do."""
        coming = sum(held is not None and held.adapter is None for held in self._slots)
        kept = self.num_bytes - sum(held.num_bytes for _, _, held in self._evictable())
        return not coming or kept + (coming + 1) * self._largest <= self.max_bytes

    def _free_slot(self) -> int | None:
        """An empty slot, if need be after an eviction."""
        empty = next((slot for slot, held in enumerate(self._slots) if held is None), None)
        if empty is not None:
            return empty
        evictable = self._evictable()
        if not evictable:
            return None
        self._evict(evictable[0][1])
        return evictable[0][1]

    def _close_for_waiters(self) -> None:
        """Close a slot for each that waits too long, and for the bytes of the first that is staged too long."""
        overdue_s = self._clock() - PATIENCE_S
        num_missing = sum(since <= overdue_s and digest not in self._slot_of for digest, since in self._wanted.items())
        staged = min(self._staged(), key=lambda held: held.since_s, default=None)
        missing_bytes = 0
        if staged is not None and staged.staged is not None and staged.since_s <= overdue_s:
            missing_bytes = self.num_bytes + staged.staged.num_bytes - self.max_bytes
        if not num_missing and missing_bytes <= 0:
            return
        in_use = [held for held in self._slots if held is not None and held.references]
        for held in sorted(in_use, key=lambda held: (not held.closing, held.last_used_s)):
            if num_missing <= 0 and missing_bytes <= 0:
                return
            if held.digest not in self._pinned:
                self.num_evictions += not held.closing
                held.closing = True
                num_missing -= 1
                missing_bytes -= held.num_bytes

    def _evict(self, slot: int) -> None:
        self.num_evictions += 1
        self._empty(slot)

    def _empty(self, slot: int) -> None:
        held = self._slots[slot]
        assert held is not None
        del self._slot_of[held.digest]
        self._slots[slot] = None

    def _run(self, digest: str, produce: Callable[[], LoadedAdapter], on_device: bool) -> None:
        """On the loading thread."""
        start_s = time.perf_counter()
        adapter, error = None, None
        try:
            adapter = produce()
        except (AdapterRejected, AdapterMissing) as refusal:
            error = EngineError("adapter_rejected", str(refusal))
        except Exception:  # any other fault is this load's alone, too
            log.exception("adapter %s could not be loaded", digest)
            error = EngineError("internal", "the engine could not load the adapter")
        self._ended.put(_Ended(Arrival(digest, adapter, error), on_device, time.perf_counter() - start_s))
        self._wake()
