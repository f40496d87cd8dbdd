"""Notes which units were exposed, which of their requests were refused, and why requests are not analysed.

On a request's path it only counts in memory, of which it takes a bounded amount; what there is no room for is counted
in a metric and forgotten. A task writes the notes every second. The ledger tells what became of requests that ran.
"""

from __future__ import annotations

import asyncio
import datetime
from itertools import islice

import structlog
from prometheus_client import Counter

from gateway.db.experiments.exposures import ExposedRequest
from gateway.db.experiments.notes import NewUnit, write_notes
from gateway.db.pool import FAILURES, Database
from gateway.domain.errors import GatewayError
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.segment_values import Origin

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 1.0
TIMEOUT_S = 3.0
"""Shorter than enrolment stays closed for while weights change: a unit is written by then, or not at all."""

MAX_WAITING = 50_000
"""The most units, refusals, and reasons each, that wait to be written."""

MAX_WRITTEN = 200_000
"""The most units that are remembered as written, so that most are written once. The oldest are forgotten first."""

REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 503})
"""The statuses of refusals: of others, the client has left or the ledger knows."""

Unit = tuple[str, bytes]
"""An experiment, and the digest of a unit."""


class Notes:
    """One per gateway process; writes between `start` and `stop`. lost: counts the notes that were not written."""

    def __init__(
        self, database: Database, lost: Counter, *, max_waiting: int = MAX_WAITING, max_written: int = MAX_WRITTEN
    ) -> None:
        self._database = database
        self._lost = lost
        self._max_waiting = max_waiting
        self._max_written = max_written
        self._written: dict[Unit, None] = {}
        self._units: dict[Unit, NewUnit] = {}
        self._refused: dict[Unit, ExposedRequest] = {}
        self._unwritten: list[ExposedRequest] = []  # refusals that the database did not take
        self._reasons: dict[tuple[str, datetime.date, str], int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Write what was noted so far, where the database takes it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()
        self._lost.inc(len(self._units) + len(self._unwritten) + sum(self._reasons.values()))

    def exposed(self, exposure: Exposure) -> None:
        """Note the arm that a request got."""
        if not exposure.epoch:
            key = exposure.experiment_id, _today(), exposure.reason
            if key in self._reasons or len(self._reasons) < self._max_waiting:
                self._reasons[key] = self._reasons.get(key, 0) + 1
            else:
                self._lost.inc()
            return
        unit = exposure.experiment_id, exposure.digest
        if unit in self._written or unit in self._units:
            return
        if len(self._units) < self._max_waiting:
            self._units[unit] = NewUnit(exposure.experiment_id, exposure.digest, exposure.epoch, exposure.arm)
        else:
            self._lost.inc()

    def refused(
        self, exposure: Exposure, project_id: str, request_id: str, error: GatewayError, origin: Origin
    ) -> None:
        """Note that a request was refused after it got its arm. Refusals of a unit within a second become one row."""
        if not exposure.epoch or error.status not in REFUSALS:
            return
        unit = exposure.experiment_id, exposure.digest
        known = self._refused.get(unit)
        if known is None and len(self._refused) >= self._max_waiting:
            self._lost.inc()
            return
        self._refused[unit] = ExposedRequest(
            request_id if known is None else known.request_id,
            project_id,
            exposure.experiment_id,
            exposure.digest,
            exposure.epoch,
            exposure.arm,
            True,
            datetime.datetime.now(datetime.UTC) if known is None else known.created_at,
            1 if known is None else known.num_refused + 1,
            origin if known is None else known.origin,
        )

    async def flush(self) -> None:
        """Write what was noted. What cannot be written now waits for the next time, as far as there is room for it."""
        units, self._units = self._units, {}
        refused, self._refused = [*self._unwritten, *self._refused.values()], {}
        reasons, self._reasons, self._unwritten = self._reasons, {}, []
        if not (units or refused or reasons):
            return
        try:
            async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                await write_notes(conn, units.values(), refused, reasons)
        except FAILURES as error:
            log.warning("experiment_notes_not_written", error=repr(error))
            self._units = units | self._units
            self._unwritten = refused[: self._max_waiting]
            self._reasons = {key: reasons.get(key, 0) + self._reasons.get(key, 0) for key in reasons | self._reasons}
            self._lost.inc(len(refused) - len(self._unwritten))
            return
        self._written |= dict.fromkeys(units)
        for unit in list(islice(self._written, max(0, len(self._written) - self._max_written))):
            del self._written[unit]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.flush()
            except Exception:
                log.exception("experiment_notes_not_written")


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
