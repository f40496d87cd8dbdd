"""Gives adapters to the scheduler: loads them beside running steps, pins and unloads them, and counts their users.

A slot is reserved before its load begins, so no more adapters are in memory than there are slots. A load brings the
adapter to the host tier (`engine.lora.loader`), where it waits until its bytes fit on the device; where bytes are
scarce one is loaded at a time. An adapter in use is never evicted, a pinned one neither, and one that was just loaded
not before its first use. Requests that wait are served in order of asking.

Batch work waits behind all others, one load at a time, and gets no place of an adapter that interactive requests have
used of late (`engine.lora.slots`). A slot that batch work alone uses is given back at once when interactive requests
want the place: batch work is told to leave (`is_reclaimed`).

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

from adapters.errors import AdapterDamaged, AdapterRejected, StoreFailure
from engine.lora.layer import LoadedAdapter
from engine.lora.slots import Slot, Slots
from engine.protocol import EngineError

log = logging.getLogger(__name__)

PATIENCE_S = 0.5
BATCH_PATIENCE_S = 10.0
"""Seconds after which batch work that waits for an adapter closes a slot that only batch work uses."""

NOT_LOADED = "the engine could not load the adapter"
"""The error that clients get.

The reason is in the log: it names the store, and content that may be another tenant's.
"""


class Arrival(msgspec.Struct, frozen=True):
    """The end of a load: the adapter's bytes, or why there are none. It refers to no memory of the adapter's."""

    key: str
    num_bytes: int
    error: EngineError | None


class _Ended(msgspec.Struct, frozen=True):
    """The end of one job of the loading thread."""

    key: str
    adapter: LoadedAdapter | None
    """The adapter; None where there is an error."""
    error: EngineError | None
    on_device: bool
    """True for a copy to the device, False for a load into the host tier."""
    seconds: float
    """Seconds that the job took."""


class AdapterPool:
    """The adapters of one engine. All methods belong to the stepping thread; only loads run elsewhere.

    load: returns the adapter of a content key, in host memory.
    to_device: copies an adapter to the device; None where both are the same memory.
    vacate: as for `Slots`.
    wake: called when a load ends.
    """

    def __init__(
        self,
        load: Callable[[str], LoadedAdapter],
        max_adapters: int,
        wake: Callable[[], None],
        *,
        max_bytes: int = 1 << 62,
        to_device: Callable[[LoadedAdapter], LoadedAdapter] | None = None,
        vacate: Callable[[int], None] = lambda index: None,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self._load = load
        self._to_device = to_device
        self._wake = wake
        self._clock = clock
        self.slots = Slots(max_adapters, max_bytes, vacate)
        self._wanted: OrderedDict[str, float] = OrderedDict()  # without a slot yet, and since when
        self._batch_wanted: OrderedDict[str, float] = OrderedDict()  # by batch work alone
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._arrived: list[Arrival] = []
        self._largest = 0  # bytes of the largest adapter seen
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load")
        self.num_loads = 0
        self.num_load_bytes = 0
        self.load_seconds = 0.0

    @property
    def num_waiting(self) -> int:
        """The number of adapters that were asked for and are not there: in line for a slot, or loading into one."""
        return len(self._wanted) + len(self._batch_wanted) + self.slots.num_loading

    @property
    def waiting(self) -> list[str]:
        """The adapters of `num_waiting`: those that load, then those in line."""
        return [*(slot.key for slot in self.slots if slot.adapter is None), *self._wanted, *self._batch_wanted]

    @property
    def resident(self) -> list[str]:
        """Return the content keys of the adapters in slots, sorted; those that are still loading are left out."""
        return sorted(slot.key for slot in self.slots if slot.adapter is not None)

    def is_resident(self, key: str) -> bool:
        """Tell whether an adapter is ready for a new user now."""
        slot = self.slots.find(key)
        return slot is not None and slot.adapter is not None and not slot.closing

    def num_bytes(self, key: str) -> int:
        """Return how many bytes of the device's budget an adapter takes; 0 for one that is not there."""
        slot = self.slots.find(key)
        return 0 if slot is None else slot.num_bytes

    def adapter(self, index: int) -> LoadedAdapter:
        """Return the adapter in a slot, which has been loaded."""
        adapter = self.slots.at(index).adapter
        assert adapter is not None
        return adapter

    def request(self, key: str, *, for_batch: bool = False) -> bool:
        """Return True if the adapter is ready for a new user; else it loads, or waits for a slot, after this call."""
        slot = self.slots.find(key)
        if slot is None or slot.closing:
            self._enqueue(key, self._clock(), for_batch)
            self._go_on()
            return False
        slot.for_batch &= for_batch
        return slot.adapter is not None

    def pin(self, key: str) -> bool:
        """Request an adapter as `request` does, and let it not be evicted until it is unloaded.

        Pins fill at most half of the slots and half of the bytes; beyond that an adapter is loaded and may be evicted
        like any other.
        """
        pinned = self.slots.pinned
        if len(pinned | {key}) <= len(self.slots) // 2:
            pinned.add(key)
        return self.request(key)

    def withdraw(self, key: str) -> None:
        """Withdraw the request of an adapter that nobody waits for any more.

        The adapter needs no slot, or may be evicted like any other.
        """
        if key not in self.slots.pinned:
            self._wanted.pop(key, None)
            self._batch_wanted.pop(key, None)
        slot = self.slots.find(key)
        if slot is not None:
            slot.fresh = False

    def preload(self, key: str) -> None:
        """Load an adapter now and wait for it.

        Raises RuntimeError: when there is no slot or the adapter can't be loaded.
        """
        for _ in range(3):  # to the host, to the device, and the answer
            if self.request(key):
                self.withdraw(key)
                return
            self._executor.submit(lambda: None).result()  # one worker: what was submitted has ended before this
            self.arrivals()
        raise RuntimeError(f"adapter {key} could not be loaded")

    def acquire(self, key: str, *, for_batch: bool = False) -> int | None:
        """Acquire a slot as `running_set.AdapterSlots.acquire` says.

        for_batch: True: the user is batch work.
        """
        if not self.request(key, for_batch=for_batch):
            return None
        slot = self.slots.find(key)
        assert slot is not None
        slot.references += 1
        slot.batch_references += for_batch
        self._note_use(slot, for_batch)
        slot.fresh = False
        return slot.index

    def release(self, index: int, *, for_batch: bool = False) -> None:
        """End one use of a slot, by batch work or not; an adapter that is to be unloaded leaves with its last use."""
        slot = self.slots.at(index)
        assert slot.references > 0
        slot.references -= 1
        slot.batch_references -= for_batch
        self._note_use(slot, for_batch)
        if slot.closing and not slot.references:
            self.slots.empty(slot)
        self._go_on()

    def is_reclaimed(self, index: int) -> bool:
        """Tell whether batch work has to leave a slot, as `running_set.AdapterSlots.is_reclaimed` says."""
        return self.slots.at(index).is_reclaimed

    def unpin(self, key: str) -> None:
        """Let an adapter be evicted like any other, once nobody uses it."""
        self.slots.pinned.discard(key)
        self._go_on()

    def unload(self, key: str) -> bool:
        """Unload an adapter.

        Return False if it is still loading or in use: then it leaves with its last user, and takes no new one.
        """
        self.slots.pinned.discard(key)
        self._wanted.pop(key, None)
        self._batch_wanted.pop(key, None)
        slot = self.slots.find(key)
        if slot is None:
            return True
        slot.closing = True
        if slot.references or (slot.adapter is None and slot.staged is None):
            return False
        self.slots.empty(slot)
        self._go_on()
        return True

    def arrivals(self) -> list[Arrival]:
        """Return the loads that ended since the last call; adapters whose load succeeded are in their slots."""
        while not self._ended.empty():
            self._take(self._ended.get())
        self._go_on()
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        """Wait for the loads under way, and drop those that have not begun."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def check_integrity(self, num_users: int) -> None:
        """Check the pool's invariants; tests do so after every step.

        num_users: the number of sequences that hold a slot.
        """
        self.slots.check_integrity(num_users)
        wanted = [*self._wanted, *self._batch_wanted]
        assert len(set(wanted)) == len(wanted)
        assert all(slot.closing for key in wanted if (slot := self.slots.find(key)) is not None)

    def _enqueue(self, key: str, since_s: float, for_batch: bool) -> None:
        """Put an adapter in line, at its earlier place if it is there already.

        since_s: the time at which the adapter was asked for. for_batch: True: batch work asked for it.
        """
        if not for_batch:
            self._batch_wanted.pop(key, None)
            self._wanted.setdefault(key, since_s)
        elif key not in self._wanted:
            self._batch_wanted.setdefault(key, since_s)

    def _note_use(self, slot: Slot, for_batch: bool) -> None:
        slot.last_used_s = self._clock()
        if not for_batch:
            slot.last_interactive_s = slot.last_used_s

    def _take(self, ended: _Ended) -> None:
        """Process one result of the loading thread: a load into the host tier, or a copy to the device."""
        adapter, max_bytes = ended.adapter, self.slots.max_bytes
        self.load_seconds += ended.seconds
        slot = self.slots.find(ended.key)
        assert slot is not None
        if adapter is None or slot.closing:
            self._leave(slot, ended.error)
        elif ended.on_device:
            self._fill_slot(slot, adapter)
        elif adapter.num_bytes > max_bytes:
            why = f"the adapter takes {adapter.num_bytes} bytes; on the device there are {max_bytes}"
            self._leave(slot, EngineError("adapter_rejected", why))
        else:
            slot.staged = adapter
            self._largest = max(self._largest, adapter.num_bytes)

    def _leave(self, slot: Slot, error: EngineError | None) -> None:
        """Empty the slot of a load that failed or is not wanted any more, and record the error."""
        self.slots.pinned.discard(slot.key)
        self.slots.empty(slot)
        self._arrived.append(Arrival(slot.key, 0, error))

    def _fill_slot(self, slot: Slot, adapter: LoadedAdapter) -> None:
        slot.adapter = adapter
        self._note_use(slot, slot.for_batch)
        self.num_loads += 1
        self.num_load_bytes += adapter.num_bytes
        pinned = self.slots.pinned
        if sum(each.num_bytes for each in self.slots if each.key in pinned) > self.slots.max_bytes // 2:
            pinned.discard(slot.key)
        self._arrived.append(Arrival(slot.key, adapter.num_bytes, None))

    def _go_on(self) -> None:
        """Copy staged adapters to the device, then reserve slots for waiting ones, as far as bytes and slots go."""
        now_s = self._clock()
        for slot in self._staged():
            adapter = slot.staged
            assert adapter is not None
            if not self.slots.make_room(adapter.num_bytes, now_s, for_batch=slot.for_batch):
                break
            slot.staged, slot.num_bytes = None, adapter.num_bytes
            if self._to_device is None:
                self._fill_slot(slot, adapter)
            else:
                self._executor.submit(self._run, slot.key, partial(self._to_device, adapter), True)
        for key, since_s in list(self._wanted.items()):
            if self.slots.find(key) is not None:
                continue  # still closing; it comes back once it is gone
            if not self._may_load() or not (self._reserve(key, since_s) or self._reserve_of_batch(key, since_s)):
                break
            self._start_load(self._wanted, key)
        if not self._wanted and not any(slot.for_batch and slot.adapter is None for slot in self.slots):
            for key, since_s in list(self._batch_wanted.items()):
                if self.slots.find(key) is not None:
                    continue
                if self._may_load(for_batch=True) and self._reserve(key, since_s, for_batch=True):
                    self._start_load(self._batch_wanted, key)
                break
        self._close_for_waiters()

    def _reserve(self, key: str, since_s: float, *, for_batch: bool = False) -> bool:
        return self.slots.reserve(key, since_s, self._clock(), for_batch=for_batch)

    def _reserve_of_batch(self, key: str, since_s: float) -> bool:
        """Reserve the slot of an adapter that is in the host tier for batch work, and waits for its bytes.

        since_s: the time at which the adapter was asked for.
        """
        for slot in self.slots:
            if slot.for_batch and slot.staged is not None:
                self.slots.empty(slot)
                self._enqueue(slot.key, slot.since_s, for_batch=True)
                return self._reserve(key, since_s)
        return False

    def _start_load(self, line: OrderedDict[str, float], key: str) -> None:
        del line[key]
        self._executor.submit(self._run, key, partial(self._load, key), False)

    def _staged(self) -> list[Slot]:
        """Return the slots whose adapter is staged, in order of asking, those for batch work last."""
        staged = (slot for slot in self.slots if slot.staged is not None)
        return sorted(staged, key=lambda slot: (slot.for_batch, slot.since_s))

    def _may_load(self, *, for_batch: bool = False) -> bool:
        """Tell whether nothing loads, or one more adapter as large as any so far would fit beside those that do.

        for_batch: True: the adapter is for batch work, so what interactive requests used of late stays.
        """
        coming = self.slots.num_loading
        if not coming:
            return True
        num_kept = self.slots.num_held_bytes(self._clock(), for_batch=for_batch)
        return num_kept + (coming + 1) * self._largest <= self.slots.max_bytes

    def _close_for_waiters(self) -> None:
        """Close a slot for each adapter that waits too long, and for the bytes of the first that is staged too long.

        Slots that batch work alone uses are reclaimed at once.
        """
        now_s = self._clock()
        overdue_s = now_s - PATIENCE_S
        missing = [since_s for key, since_s in self._wanted.items() if not self.slots.find(key)]
        num_missing = sum(since_s <= overdue_s for since_s in missing)
        missing_bytes = 0
        for slot in self._staged()[:1]:
            if slot.staged is None or slot.for_batch:
                continue
            excess = self.slots.num_bytes + slot.staged.num_bytes - self.slots.max_bytes
            missing_bytes = excess if slot.since_s <= overdue_s else 0
            num_kept = self.slots.num_held_bytes(now_s)
            self.slots.reclaim_from_batch(0, num_kept + slot.staged.num_bytes - self.slots.max_bytes)
        if missing and self._may_load():
            self.slots.reclaim_from_batch(len(missing), 0)
        self.slots.close(num_missing, missing_bytes)
        overdue_s = now_s - BATCH_PATIENCE_S
        waiting = [key for key, since_s in self._batch_wanted.items() if since_s <= overdue_s]
        self.slots.close(sum(not self.slots.find(key) for key in waiting), 0, of_batch=True)

    def _run(self, key: str, produce: Callable[[], LoadedAdapter], on_device: bool) -> None:
        """Produce an adapter on the loading thread, and queue how that ended.

        on_device: True: the work is a copy to the device; False: a load into the host tier.
        """
        start_s = time.perf_counter()
        adapter, error = None, None
        try:
            adapter = produce()
        except (StoreFailure, AdapterDamaged) as failure:
            log.error("adapter %s could not be loaded: %s", key, failure)
            error = EngineError("internal", NOT_LOADED)
        except AdapterRejected as refusal:
            error = EngineError("adapter_rejected", str(refusal))
        except Exception:  # any other fault is this load's alone, too
            log.exception("adapter %s could not be loaded", key)
            error = EngineError("internal", NOT_LOADED)
        self._ended.put(_Ended(key, adapter, error, on_device, time.perf_counter() - start_s))
        self._wake()
