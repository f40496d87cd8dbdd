"""The choice of the waiting sequence that starts next: fairness names tenants, locality chooses, memory allows.

Adapter slots have to allow it as well.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.scheduling.band import Band, weight_of
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.running_set import AdapterSlots
from engine.sequence import Sequence

MAX_LOADS_PER_TENANT = 8  # so that a tenant with many adapters does not keep the adapters of others waiting


class Admission:
    """Admits the waiting requests of one band.

    token_bytes: the bytes of one token's keys and values, the unit in which adapter loads are charged.
    """

    def __init__(
        self,
        band: Band,
        blocks: BlockManager,
        adapters: AdapterSlots,
        token_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._band = band
        self._blocks = blocks
        self._adapters = adapters
        self._token_bytes = token_bytes
        self._clock = clock

    def next(self, max_room: int | None = None) -> Sequence | None:
        """Return the sequence whose turn it is; None without anyone ready.

        max_room: sequences that may need more room (`BlockManager.max_room`) are passed over; None: any may start.
        """
        candidates = self._band.waiting.candidates(lambda line: self._first_ready(line, max_room))
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return max(candidates, key=self._num_reusable_tokens)

    def start(self, sequence: Sequence, num_spare: int, *, max_recent: int | None = None) -> bool:
        """Have a waiting sequence run, charged to its tenant.

        Return False, and change nothing, without memory for it: then it is not overtaken, else large requests would
        never start. num_spare, max_recent: as for `BlockManager.start`.
        """
        if not self._band.running.start(sequence, num_spare, max_recent=max_recent):
            return False
        smallest = self._band.waiting.smallest_counter()
        self._band.waiting.remove(sequence)
        self._band.counters.admit(sequence.request.tenant, smallest, self._cost(sequence))
        return True

    def _first_ready(self, line: list[Sequence], max_room: int | None) -> Sequence | None:
        """Return the first sequence of a tenant's line whose adapter is resident, or None.

        Sequences that are passed over wait for their adapters alone; the first few of these adapters are loaded.

        max_room: as for `next`.
        """
        asked: set[str] = set()
        for sequence in line:
            if max_room is not None and self._blocks.max_room(sequence) > max_room:
                continue
            key = sequence.request.adapter
            if not key or self._adapters.is_resident(key):
                return sequence
            sequence.adapter_wait_since_s = sequence.adapter_wait_since_s or self._clock()
            if key not in asked and len(asked) < MAX_LOADS_PER_TENANT:
                asked.add(key)
                self._adapters.request(key, for_batch=sequence.is_batch)
        return None

    def _num_reusable_tokens(self, sequence: Sequence) -> int:
        return self._blocks.num_cached_tokens(sequence) if sequence.may_reuse_prefix else 0

    def _cost(self, sequence: Sequence) -> float:
        """Return the cost of the sequence's prompt and its adapter's load; 0 for one that started before."""
        if sequence.started_s:
            return 0.0
        num_moved = sequence.adapter_load_bytes / self._token_bytes
        return (sequence.num_uncomputed + num_moved) / weight_of(sequence, self._clock())
