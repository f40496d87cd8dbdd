"""Copies usage from the journal to the ledger, in batches, again and again until the ledger has it.

Knows neither files nor SQL nor engines.
"""

from __future__ import annotations

import asyncio
from itertools import islice

import structlog

from gateway.db.pool import UNAVAILABLE
from gateway.metering.format import Ended
from gateway.metering.journal import Journal
from gateway.metering.ledger import Entry, Ledger
from gateway.observability.metrics import Metrics

log = structlog.get_logger(__name__)

MAX_BATCH = 500
LINGER_S = 0.1
"""Seconds between the starts of two transactions, so that several usages are written together under load.

A transaction for each of them would cost more than its request.
"""

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0


class Copier:
    """Copies usage between `start` and `stop`. Call `wake` when the journal has something to copy."""

    def __init__(self, journal: Journal, ledger: Ledger, metrics: Metrics) -> None:
        self._journal = journal
        self._ledger = ledger
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._stopping = False
        self._limit = MAX_BATCH
        self._backoff_s = FIRST_BACKOFF_S
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Record that the journal has something to copy."""
        self._wake.set()

    def start(self) -> None:
        """Begin to copy."""
        self._task = asyncio.create_task(self._run())

    async def stop(self, timeout_s: float) -> None:
        """Copy the waiting usage, unless the ledger is away or takes longer than timeout_s: the journal keeps it."""
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        _, late = await asyncio.wait([self._task], timeout=timeout_s)
        for task in late:
            task.cancel()
            await asyncio.wait([task])
        if waiting := self._journal.unsettled.ended:
            log.warning("usage_left_in_the_journal", num_events=len(waiting))

    async def _run(self) -> None:
        loop, began_s = asyncio.get_running_loop(), float("-inf")
        while self._journal.unsettled.ended or not self._stopping:
            if not self._journal.unsettled.ended:
                await self._wake.wait()
                self._wake.clear()
                continue
            if not self._stopping:
                await asyncio.sleep(began_s + LINGER_S - loop.time())
            began_s = loop.time()
            if not await self._copy_batch(self._next_batch()):
                if self._stopping:
                    return
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    async def _copy_batch(self, batch: list[Ended]) -> bool:
        """Copy a batch to the ledger. Return False if another try should wait."""
        unsettled = self._journal.unsettled
        try:
            entries = [Entry.of(ended) for ended in batch]
            new = await self._ledger.write(entries, unsettled.num_open - len(batch))
        except UNAVAILABLE as error:
            log.warning("ledger_unavailable", error=repr(error), num_waiting=len(unsettled.ended))
            return False
        except Exception as error:
            # An event that the ledger refuses must not hold up the others: go on one at a time, and it goes last.
            if self._limit > 1:
                self._limit = 1
                return True
            log.error("usage_refused", request_id=batch[0].record.request_id, error=repr(error))
            unsettled.put_last(batch[0].key)
            return False
        self._backoff_s, self._limit = FIRST_BACKOFF_S, min(2 * self._limit, MAX_BATCH)
        self._journal.copied([ended.key for ended in batch])
        self._metrics.count_usage(
            [
                (entry.event, entry.ended.record.usage)
                for entry in entries
                if entry.attempt in new and not entry.ended.superseded
            ]
        )
        self._metrics.usage_written.inc(len(new))
        self._metrics.usage_waiting.set(len(unsettled.ended))
        return True

    def _next_batch(self) -> list[Ended]:
        """Return the first unsettled ends, each attempt once."""
        batch: dict[tuple[str, int], Ended] = {}
        for ended in islice(self._journal.unsettled.ended.values(), self._limit):
            batch.setdefault(ended.attempt, ended)
        return list(batch.values())
