"""The requests of one band: those that wait, those that run, and their tenants' service. Decides nothing.

Interactive requests and batch work have a band each. Within a band everything goes by tenants' counters of service
(`engine.scheduling.fairness`); between bands interactive requests come first (`engine.scheduling.batch_work`).
"""

from __future__ import annotations

from collections import Counter

from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import ServiceCounters
from engine.scheduling.finish_rate import FinishRate
from engine.scheduling.running_set import AdapterSlots, RunningSet
from engine.scheduling.waiting_queue import WaitingQueue
from engine.sequence import Sequence

URGENT_S = 3600.0
"""The slack, in seconds, below which the weight of batch work grows (`BatchTerms.slack_s`)."""

MOST_URGENT = 64.0
"""The factor of the weight of work without any slack left. It is so high that such work is served almost alone: the
work of other tenants can wait."""


class Band:
    """The waiting and the running requests of one band. Owned by the scheduler, whose parts change it."""

    def __init__(self, blocks: BlockManager, adapters: AdapterSlots) -> None:
        self.counters = ServiceCounters()
        self.waiting = WaitingQueue(self.counters)
        self.running = RunningSet(blocks, adapters, self.counters)
        self.num_alive = 0
        """Choices that have not ended, those that a grammar or their leader holds back included."""
        self.alive_by_tenant: Counter[str] = Counter()
        self.num_requests = 0
        self.finish_rate = FinishRate()

    @property
    def num_waiting(self) -> int:
        """The number of choices that do not run."""
        return self.num_alive - len(self.running)


def weight_of(sequence: Sequence, now_s: float) -> float:
    """Return the divisor of a sequence's service in its tenant's counter.

    The divisor is the request's weight. For batch work with less than URGENT_S of slack it grows, up to MOST_URGENT
    times.
    """
    request = sequence.request
    if request.batch is None or request.batch.slack_s is None:
        return request.weight
    left_s = request.batch.slack_s - (now_s - sequence.arrived_s)
    urgency = min(max(1 - left_s / URGENT_S, 0.0), 1.0)
    return request.weight * (1 + (MOST_URGENT - 1) * urgency)
