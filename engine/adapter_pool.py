"""Adapters on the device: slots with reference counts, loaded by digest beside running steps, evicted by last use.

A slot is reserved before its load begins, so no more adapters are in memory than there are slots. An adapter in use is
never evicted, and one that was just loaded not before its first use. Whoever waits for a slot is served in order of
asking; after PATIENCE_S the slot used least recently takes no new users, so that it falls free when its last one ends.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from adapters.errors import AdapterMissing, AdapterRejected
from adapters.peft_format import AdapterModule, check_fit, read_adapter
from adapters.store import AdapterStore
from engine.config import ModelConfig
from engine.layers.lora import LoadedAdapter, Module
from engine.protocol import EngineError

log = logging.getLogger(__name__)

PATIENCE_S = 0.5


class AdapterLoader:
    """Reads, checks and copies adapters for one base model. Raises AdapterRejected or AdapterMissing."""

    def __init__(self, store: AdapterStore, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._store = store
        self._config = config
        self._dtype = dtype
        self._device = device

    def load(self, digest: str) -> LoadedAdapter:
        folder = self._store.path(digest)
        adapter = read_adapter(folder)
        check_fit(adapter, self._config.adapter_targets(), self._config.num_layers)
        modules: dict[tuple[int, str], Module] = {}
        with safe_open(Path(folder) / "adapter_model.safetensors", framework="pt") as file:
            for module in adapter.modules:
                a, b = (self._to_device(file.get_tensor(side.name), module) for side in (module.a, module.b))
                modules[module.layer, module.projection] = Module(a, b, module.scaling)
        return LoadedAdapter(digest, modules, sum(m.a.nbytes + m.b.nbytes for m in modules.values()))

    def _to_device(self, tensor: Tensor, module: AdapterModule) -> Tensor:
        """What overflows the engine's dtype would reach every row of a batch: 0 * inf is not 0."""
        tensor = tensor.to(self._device, self._dtype).contiguous()
        if not bool(torch.isfinite(tensor).all()):
            where = f"layer {module.layer} {module.projection}"
            raise AdapterRejected([f"{where}: a weight is too large for {str(self._dtype).removeprefix('torch.')}"])
        return tensor


class Arrival(msgspec.Struct, frozen=True):
    """The end of a load: the adapter, or why there is none."""

    digest: str
    adapter: LoadedAdapter | None
    error: EngineError | None


class _Slot(msgspec.Struct):
    """adapter: None while it loads. fresh: loaded and not used yet. closing: no new users, empty after the last."""

    digest: str
    adapter: LoadedAdapter | None = None
    references: int = 0
    last_used_s: float = 0.0
    fresh: bool = True
    closing: bool = False


class AdapterPool:
    """All methods belong to the stepping thread; only the loads run elsewhere, and `wake` is called when one ends."""

    def __init__(
        self,
        load: Callable[[str], LoadedAdapter],
        max_adapters: int,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self._load = load
        self._wake = wake
        self._clock = clock
        self._slots: list[_Slot | None] = [None] * max_adapters
        self._slot_of: dict[str, int] = {}
        self._wanted: OrderedDict[str, float] = OrderedDict()  # without a slot yet, and since when
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load")
        self.num_loads = 0
        self.num_load_bytes = 0

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
            self._start_loads()
            return False
        return held.adapter is not None

    def withdraw(self, digest: str) -> None:
        """Nobody waits for this adapter any more: it needs no slot, or may be evicted like any other."""
        self._wanted.pop(digest, None)
        held = self._held(digest)
        if held is not None:
            held.fresh = False

    def preload(self, digest: str) -> None:
        """Load an adapter now and wait for it. Raises RuntimeError when there is no slot or it can't be loaded."""
        if not self.request(digest):
            self._executor.submit(lambda: None).result()  # one worker: the load has ended before this one
            self.arrivals()
            if not self.request(digest):
                raise RuntimeError(f"adapter {digest} could not be loaded")
        self.withdraw(digest)

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
        self._start_loads()

    def unload(self, digest: str) -> bool:
        """False if it is still loading or in use: then it leaves with its last user, and takes no new one."""
        self._wanted.pop(digest, None)
        held = self._held(digest)
        if held is None:
            return True
        held.closing = True
        if held.references or held.adapter is None:
            return False
        self._empty(self._slot_of[digest])
        self._start_loads()
        return True

    def arrivals(self) -> list[Arrival]:
        """Loads that ended since the last call; those that succeeded are in their slots."""
        ended = []
        while not self._arrivals.empty():
            arrival = self._arrivals.get()
            slot = self._slot_of[arrival.digest]
            held = self._slots[slot]
            assert held is not None
            held.adapter = arrival.adapter
            held.last_used_s = self._clock()
            if arrival.adapter is not None:
                self.num_loads += 1
                self.num_load_bytes += arrival.adapter.num_bytes
            if arrival.adapter is None or held.closing:
                self._empty(slot)
            ended.append(arrival)
        self._start_loads()
        return ended

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def check_integrity(self, num_users: int) -> None:
        """num_users: sequences that hold a slot. Run by tests after every step."""
        assert self._slot_of == {slot.digest: index for index, slot in enumerate(self._slots) if slot is not None}
        assert sum(slot.references for slot in self._slots if slot is not None) == num_users
        assert all(held.closing for digest in self._wanted if (held := self._held(digest)) is not None)

    def _held(self, digest: str) -> _Slot | None:
        slot = self._slot_of.get(digest)
        return None if slot is None else self._slots[slot]

    def _start_loads(self) -> None:
        """Reserve slots for those who wait, in order, as far as slots can be had."""
        for digest, since_s in list(self._wanted.items()):
            if digest in self._slot_of:
                continue  # still closing; it comes back once it is gone
            slot = self._free_slot()
            if slot is None:
                if self._clock() - since_s >= PATIENCE_S:
                    self._close_one()
                return
            self._empty(slot)
            del self._wanted[digest]
            self._slots[slot] = _Slot(digest)
            self._slot_of[digest] = slot
            self._executor.submit(self._run_load, digest)

    def _free_slot(self) -> int | None:
        """An empty slot, else the one of those nobody uses or waits for that was used least recently."""
        idle = []
        for slot, held in enumerate(self._slots):
            if held is None:
                return slot
            if held.adapter is not None and not held.references and not held.fresh:
                idle.append((held.last_used_s, slot))
        return min(idle)[1] if idle else None

    def _close_one(self) -> None:
        """The slot used least recently takes no new users, unless one is on its way out already."""
        in_use = [held for held in self._slots if held is not None and held.references]
        if in_use and not any(held.closing for held in in_use):
            min(in_use, key=lambda held: held.last_used_s).closing = True

    def _empty(self, slot: int) -> None:
        held = self._slots[slot]
        if held is not None:
            del self._slot_of[held.digest]
            self._slots[slot] = None

    def _run_load(self, digest: str) -> None:
        try:
            arrival = Arrival(digest, self._load(digest), None)
        except (AdapterRejected, AdapterMissing) as error:
            arrival = Arrival(digest, None, EngineError("adapter_rejected", str(error)))
        except Exception:  # any other fault is this load's alone, too
            log.exception("adapter %s could not be loaded", digest)
            arrival = Arrival(digest, None, EngineError("internal", "the engine could not load the adapter"))
        self._arrivals.put(arrival)
        self._wake()
