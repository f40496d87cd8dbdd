"""Adapters on the device: slots with reference counts, loaded by digest beside running steps, evicted by last use.

An adapter in use is never evicted. What a digest's file holds is checked against the base model before it gets a slot.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

from adapters.errors import AdapterMissing, AdapterRejected
from adapters.peft_format import check_fit, read_adapter
from adapters.store import AdapterStore
from engine.config import ModelConfig
from engine.layers.lora import LoadedAdapter, Module


class Arrival(msgspec.Struct, frozen=True):
    """The end of a load: the adapter, or why there is none."""

    digest: str
    adapter: LoadedAdapter | None
    error: str | None


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
        num_bytes = 0
        with safe_open(Path(folder) / "adapter_model.safetensors", framework="pt") as file:
            for module in adapter.modules:
                a = file.get_tensor(module.a.name).to(self._device, self._dtype).contiguous()
                b = file.get_tensor(module.b.name).to(self._device, self._dtype).contiguous()
                modules[module.layer, module.projection] = Module(a, b, module.scaling)
                num_bytes += a.nbytes + b.nbytes
        return LoadedAdapter(digest, modules, num_bytes)


class _Slot(msgspec.Struct):
    adapter: LoadedAdapter
    references: int = 0
    last_used: int = 0
    doomed: bool = False  # unload as soon as nobody uses it


class AdapterPool:
    """All methods belong to the stepping thread; only the loads run elsewhere, and `wake` is called when one ends."""

    def __init__(self, load: Callable[[str], LoadedAdapter], max_adapters: int, wake: Callable[[], None]) -> None:
        self._load = load
        self._wake = wake
        self._slots: list[_Slot | None] = [None] * max_adapters
        self._slot_of: dict[str, int] = {}
        self._loading: set[str] = set()
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._without_slot: list[LoadedAdapter] = []
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load")
        self._ticks = 0
        self.num_loads = 0
        self.num_load_bytes = 0

    @property
    def resident(self) -> list[str]:
        return sorted(self._slot_of)

    def adapter(self, slot: int) -> LoadedAdapter:
        held = self._slots[slot]
        assert held is not None
        return held.adapter

    def request(self, digest: str) -> bool:
        """True if the adapter is resident; else its load is under way after this call."""
        if digest in self._slot_of:
            return True
        if digest not in self._loading:
            self._loading.add(digest)
            self._executor.submit(self._run_load, digest)
        return False

    def preload(self, digest: str) -> None:
        """Load an adapter now and wait for it."""
        if not self.request(digest):
            self._executor.submit(lambda: None).result()  # one worker: the load has ended before this one
            self.arrivals()

    def acquire(self, digest: str) -> int | None:
        """See `scheduler.AdapterSlots`."""
        if not self.request(digest):
            return None
        slot = self._slot_of[digest]
        held = self._slots[slot]
        assert held is not None
        self._ticks += 1
        held.references += 1
        held.last_used = self._ticks
        return slot

    def release(self, slot: int) -> None:
        held = self._slots[slot]
        assert held is not None and held.references > 0
        held.references -= 1
        if held.doomed and not held.references:
            self._empty(slot)
        self._place()

    def unload(self, digest: str) -> bool:
        """False if it is still in use: then it leaves with its last user."""
        slot = self._slot_of.get(digest)
        held = None if slot is None else self._slots[slot]
        if slot is None or held is None:
            return True
        if held.references:
            held.doomed = True
            return False
        self._empty(slot)
        return True

    def arrivals(self) -> list[Arrival]:
        """Loads that ended since the last call; those that succeeded have a slot, or wait for one."""
        ended = []
        while not self._arrivals.empty():
            arrival = self._arrivals.get()
            if arrival.adapter is None:
                self._loading.discard(arrival.digest)
            else:
                self.num_loads += 1
                self.num_load_bytes += arrival.adapter.num_bytes
                self._without_slot.append(arrival.adapter)
            ended.append(arrival)
        self._place()
        return ended

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run_load(self, digest: str) -> None:
        try:
            arrival = Arrival(digest, self._load(digest), None)
        except (AdapterRejected, AdapterMissing) as error:
            arrival = Arrival(digest, None, str(error))
        except Exception as error:  # any other fault is this adapter's alone, too
            arrival = Arrival(digest, None, f"loading failed: {type(error).__name__}: {error}")
        self._arrivals.put(arrival)
        self._wake()

    def _place(self) -> None:
        """Give loaded adapters slots: free ones, then the least recently used that nobody references."""
        while self._without_slot:
            slot = self._slot_to_fill()
            if slot is None:
                return
            self._empty(slot)
            adapter = self._without_slot.pop(0)
            self._slots[slot] = _Slot(adapter, last_used=self._ticks)
            self._slot_of[adapter.digest] = slot
            self._loading.discard(adapter.digest)

    def _slot_to_fill(self) -> int | None:
        idle = []
        for slot, held in enumerate(self._slots):
            if held is None:
                return slot
            if not held.references:
                idle.append((held.last_used, slot))
        return min(idle)[1] if idle else None

    def _empty(self, slot: int) -> None:
        held = self._slots[slot]
        if held is not None:
            del self._slot_of[held.adapter.digest]
            self._slots[slot] = None
