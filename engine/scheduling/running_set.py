"""The sequences that run: their order, their blocks and adapter slots, and the choice of the one that gives way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import ServiceCounters
from engine.sequence import Sequence, Status


class AdapterSlots(Protocol):
    """The operations of the adapter pool that the scheduler uses."""

    def is_resident(self, key: str) -> bool:
        """Tell whether an adapter is ready for one more user. Changes nothing."""

    def request(self, key: str, *, for_batch: bool = False) -> bool:
        """Tell whether an adapter is resident. One that isn't is loading, or in line for a slot, after this call.

        for_batch: True: it waits behind adapters of interactive requests, and takes no place that these have used of
        late.
        """

    def acquire(self, key: str, *, for_batch: bool = False) -> int | None:
        """Return a slot holding this adapter, now in use once more; None while the adapter is not there yet.

        for_batch: True: the user is batch work, which may have to leave the slot (`is_reclaimed`).
        """

    def release(self, slot: int, *, for_batch: bool = False) -> None:
        """End one use of a slot that `acquire` returned. for_batch: as it was for `acquire`."""

    def is_reclaimed(self, slot: int) -> bool:
        """Tell whether batch work that uses this slot has to leave it."""


class RunningSet:
    """The running sequences. Each has blocks for its tokens and, if its request names an adapter, a slot in use."""

    def __init__(self, blocks: BlockManager, adapters: AdapterSlots, counters: ServiceCounters) -> None:
        self._blocks = blocks
        self._adapters = adapters
        self._counters = counters
        self._sequences: list[Sequence] = []  # in order of admission

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def start(self, sequence: Sequence, num_spare: int, *, max_recent: int | None = None) -> bool:
        """Start a sequence as `BlockManager.start` does.

        Return False, and change nothing, without memory or its adapter.

        num_spare, max_recent: as for `BlockManager.start`.
        """
        if not self._blocks.start(sequence, num_spare, sequence.may_reuse_prefix, max_recent=max_recent):
            return False
        if sequence.request.adapter:
            sequence.adapter_slot = self._adapters.acquire(sequence.request.adapter, for_batch=sequence.is_batch)
            if sequence.adapter_slot is None:
                self._blocks.release(sequence)
                return False
        sequence.status = Status.RUNNING
        self._sequences.append(sequence)
        return True

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, and give back its blocks and its use of an adapter's slot."""
        self._sequences.remove(sequence)
        self._blocks.release(sequence)
        if sequence.adapter_slot is not None:
            self._adapters.release(sequence.adapter_slot, for_batch=sequence.is_batch)
            sequence.adapter_slot = None

    def victim(self) -> Sequence:
        """Return the newest sequence of the tenant with the highest counter."""
        return max(reversed(self._sequences), key=lambda sequence: self._counters.service_of(sequence.request.tenant))
