"""Which waiting sequence starts next: fairness names tenants, locality chooses, memory and adapters allow."""

from __future__ import annotations

from collections.abc import Callable

from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import ServiceCounters
from engine.scheduling.running_set import AdapterSlots, RunningSet
from engine.scheduling.waiting_queue import WaitingQueue
from engine.sequence import Sequence

MAX_LOADS_PER_TENANT = 8  # so that who asks for many adapters does not keep others' waiting behind them


class Admission:
    """token_bytes: of one token's keys and values, the unit in which adapter loads are charged."""

    def __init__(
        self,
        waiting: WaitingQueue,
        running: RunningSet,
        blocks: BlockManager,
        adapters: AdapterSlots,
        counters: ServiceCounters,
        token_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._blocks = blocks
        self._adapters = adapters
        self._counters = counters
        self._token_bytes = token_bytes
        self._clock = clock

    def start_next(self) -> Sequence | None:
        """One more sequence that runs, charged to its tenant. None without anyone ready, or memory for the one whose
        turn it is: it is not overtaken, else large requests would never start."""
        candidates = self._waiting.candidates(self._first_ready)
        if not candidates:
            return None
        sequence = candidates[0] if len(candidates) == 1 else max(candidates, key=self._num_reusable_tokens)
        if not self._running.start(sequence, sequence.may_reuse_prefix):
            return None
        smallest = self._waiting.smallest_counter()
        self._waiting.remove(sequence)
        self._counters.admit(sequence.request.tenant, smallest, self._cost(sequence))
        return sequence

    def _first_ready(self, line: list[Sequence]) -> Sequence | None:
        """The first of a tenant's line whose adapter is there. Those it passes over wait for their adapters alone; the
        first few of these are loaded."""
        asked: set[str] = set()
        for sequence in line:
            key = sequence.request.adapter
            if not key or self._adapters.is_resident(key):
                return sequence
            sequence.adapter_wait_since_s = sequence.adapter_wait_since_s or self._clock()
            if key not in asked and len(asked) < MAX_LOADS_PER_TENANT:
                asked.add(key)
                self._adapters.request(key)
        return None

    def _num_reusable_tokens(self, sequence: Sequence) -> int:
        return self._blocks.num_cached_tokens(sequence) if sequence.may_reuse_prefix else 0

    def _cost(self, sequence: Sequence) -> float:
        """What its prompt and its adapter's load cost the engine; nothing when it only comes back."""
        if sequence.started_s:
            return 0.0
        num_moved = sequence.adapter_load_bytes / self._token_bytes
        return (sequence.num_uncomputed + num_moved) / sequence.request.weight
