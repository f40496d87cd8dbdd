"""Wakes the workers of this process when there is work for them in the database.

One statement looks for all kinds of work, several times a second, so that idle workers ask nothing. Each of its columns
repeats the condition of the statement by which a worker takes work. A column may be true while there is no work for
this process; when it is false, there is none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gateway.db.pool import Connection

POLL_EVERY_S = 0.4
POLL_TIMEOUT_S = 0.5
RARELY_S = 10.0
"""The seconds after which a worker looks for work without being woken."""

LEAST_S = 1.0
"""The least seconds between two polls that wake the worker of one kind of work, since the work may be for another
process. The books of experiments, and work that people wait for, wake their workers at each poll.
"""

Work = Literal["books", "imports", "probes", "deliveries", "responses", "batches", "experiments", "awaited_notes"]
"""A kind of work, by the name of its column in `_POLL`."""

_AT_ONCE: frozenset[Work] = frozenset({"books", "experiments", "awaited_notes"})

# The first rows of queues are found by their index, however many rows before them were deleted just now.
_POLL = """
    SELECT change_version,
           (SELECT id FROM rollup_queue ORDER BY id LIMIT 1) IS NOT NULL
               OR EXISTS (SELECT FROM credit_grants WHERE lapsed_nanos IS NULL AND expires_at <= clock_timestamp())
               AS books,
           EXISTS (SELECT FROM adapter_imports WHERE state = 'fetching' AND coalesce(wait_until <= now(), true)
                       AND (num_claims = 0 OR updated_at < now() - interval '20 seconds')) AS imports,
           EXISTS (SELECT FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
                   WHERE v.state IN ('inspected', 'probed') AND a.removed_at IS NULL
                     AND (v.claimed_at IS NULL OR v.claimed_at < now() - interval '20 seconds')) AS probes,
           EXISTS (SELECT FROM webhook_deliveries
                   WHERE delivered_at IS NULL AND attempts < 46 AND due_at <= clock_timestamp()) AS deliveries,
           EXISTS (SELECT FROM background_responses
                   WHERE ended_at IS NULL AND (lease_until IS NULL OR lease_until <= now() OR
                                               (owner IS NULL AND cancel_at IS NOT NULL))) AS responses,
           EXISTS (SELECT FROM batches WHERE ended_at IS NULL AND leased_until < now()) AS batches,
           (SELECT id FROM experiment_events ORDER BY id LIMIT 1) IS NOT NULL
               OR EXISTS (SELECT FROM experiment_units
                          WHERE NOT is_closed AND closes_at IS NOT NULL AND closes_at < now())
               OR EXISTS (SELECT FROM experiments WHERE next_weights IS NOT NULL) AS experiments,
           EXISTS (SELECT FROM experiments WHERE next_weights IS NOT NULL) AS awaited_notes
    FROM installation
"""


_COUNTER = "SELECT change_version FROM installation"


class DueWork:
    """The events that wake the workers of one process."""

    def __init__(self) -> None:
        self._wakes: dict[Work, asyncio.Event] = {}
        self._woken_s: dict[Work, float] = {}

    def wake(self, work: Work) -> asyncio.Event:
        """Return the event that wakes the worker of a kind of work, which the worker clears.

        Each look that finds such work sets the event, as does one at which the database could not be asked.
        """
        return self._wakes.setdefault(work, asyncio.Event())

    async def poll(self, conn: Connection) -> int:
        """Wake the workers whose work waits, and return the counter of announced changes.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        if not self._wakes:
            counter: int = await conn.fetchval(_COUNTER)
            return counter
        row = await conn.fetchrow(_POLL)
        assert row is not None
        now_s = asyncio.get_running_loop().time()
        for work, wake in self._wakes.items():
            is_soon = work not in _AT_ONCE and now_s - self._woken_s.get(work, float("-inf")) < LEAST_S
            if row[work] and not is_soon:
                self._woken_s[work] = now_s
                wake.set()
        version: int = row["change_version"]
        return version

    def wake_all(self) -> None:
        """Wake all workers: any of them may have something to do."""
        for wake in self._wakes.values():
            wake.set()
