"""Sequences that wait to be admitted: within a tenant in order of their turns, fair between tenants."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable, Iterator

from engine.scheduling.fairness import QUANTUM_TOKENS, ServiceCounters
from engine.sequence import Sequence


class WaitingQueue:
    """The waiting sequences, one line per tenant, each in order of arrival, or of deadlines in the batch band.

    A preempted sequence comes back to its old place.
    """

    def __init__(self, counters: ServiceCounters) -> None:
        self._counters = counters
        self._lines: dict[str, list[Sequence]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def push(self, sequence: Sequence) -> None:
        """Put a sequence into its tenant's line by its turn; a new line's counter is lifted to those of the others."""
        tenant = sequence.request.tenant
        line = self._lines.get(tenant)
        if line is None:
            self._counters.lift(tenant, self._lines)
            line = self._lines[tenant] = []
        insort_right(line, sequence, key=lambda waiting: waiting.turn)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of its tenant's line."""
        line = self._lines[sequence.request.tenant]
        line.remove(sequence)
        if not line:
            del self._lines[sequence.request.tenant]

    def smallest_counter(self) -> float:
        """Return the smallest counter of the tenants that wait."""
        return min(map(self._counters.service_of, self._lines))

    def candidates(self, first_ready: Callable[[list[Sequence]], Sequence | None]) -> list[Sequence]:
        """Return the sequences that fairness lets go next.

        There is one of each tenant whose counter is within a quantum of the smallest. A tenant's line is handed to
        first_ready; one with nothing ready neither goes nor holds the others up. Among the candidates the caller may
        choose by locality, which is what the quantum is for (deficit longest prefix match; Cao et al., 2025): a tenant
        that is passed over falls behind and goes next.
        """
        ready: list[Sequence] = []
        limit = 0.0
        for tenant in sorted(self._lines, key=self._counters.service_of):
            if ready and self._counters.service_of(tenant) > limit:
                break
            sequence = first_ready(self._lines[tenant])
            if sequence is not None:
                limit = limit if ready else self._counters.service_of(tenant) + QUANTUM_TOKENS
                ready.append(sequence)
        return ready
