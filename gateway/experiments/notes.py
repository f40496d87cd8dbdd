"""Notes the exposed units, their refused requests, and the reasons why requests are not analysed.

On a request's path a note only takes a bounded amount of memory; one without room is counted in a metric and forgotten.
A task writes the notes every second, in batches that are each written once, and states the time up to which all are
written: new weights wait for that. The ledger has the outcomes of requests that ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import secrets
import time
from itertools import islice
from typing import Literal

import msgspec
import structlog
from prometheus_client import Counter

from gateway.db.experiments.exposures import ExposedRequest
from gateway.db.experiments.notes import (
    NewUnit,
    begin_batch,
    note_late_units,
    record_no_notes,
    remove_gateway,
    write_notes,
)
from gateway.db.pool import FAILURES, UNFIT, Database
from gateway.domain.errors import GatewayError
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.segment_values import Origin
from gateway.domain.experiments.shadowing import OUTCOME_PREFIX, Outcome
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 1.0
REPORT_EVERY_S = 30.0
"""Seconds between two reports of a gateway without notes, if nobody waits for them."""
TIMEOUT_S = 3.0

MAX_WAITING = 50_000
"""The most units, refusals, and reasons each, that wait to be written."""

MAX_WRITTEN = 200_000
"""The most units that are remembered as written, so that most are written once. The oldest are forgotten first."""

REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 503})
"""The HTTP statuses that count as refusals. With any other status, the client left, or the ledger has the request."""

Unit = tuple[str, bytes]
"""An experiment, and the digest of a unit."""


class _Batch(msgspec.Struct):
    """Notes that are written together, once."""

    number: int
    """The number of the batch, which grows."""
    noted_until_s: float
    """The monotonic time, in seconds, when the batch was made: later notes are in the next one."""
    units: dict[Unit, NewUnit]
    """The units that were exposed for the first time."""
    refused: dict[Unit, ExposedRequest]
    """Requests that were refused, one for each unit."""
    reasons: dict[tuple[str, datetime.date, str], int]
    """The number of requests that are not analysed, by experiment, day and reason."""

    @property
    def num(self) -> int:
        return len(self.units) + len(self.refused) + sum(self.reasons.values())


class Notes(Worker):
    """The notes of one gateway process, written between `start` and `stop`.

    lost: counts the notes that were not written.
    is_awaited: set when somebody waits for all notes to be written; None: the gateway reports every second that no
    notes wait to be written.
    """

    def __init__(
        self,
        database: Database,
        lost: Counter,
        *,
        max_waiting: int = MAX_WAITING,
        max_written: int = MAX_WRITTEN,
        is_awaited: asyncio.Event | None = None,
    ) -> None:
        super().__init__(self.flush, WRITE_EVERY_S, name="experiments' notes", rests_first=True)
        self._database = database
        self._lost = lost
        self._max_waiting = max_waiting
        self._max_written = max_written
        self._written: dict[Unit, None] = {}
        self._units: dict[Unit, NewUnit] = {}
        self._refused: dict[Unit, ExposedRequest] = {}
        self._reasons: dict[tuple[str, datetime.date, str], int] = {}
        self._gateway_id = f"gateway_{secrets.token_hex(16)}"
        self._num_batches = 0
        self._batch: _Batch | None = None  # notes that the database did not take, or whose write it did not confirm
        self._is_awaited = is_awaited
        self._reported_s = float("-inf")

    async def stop(self) -> None:
        """Stop, and write the notes that are left, if the database takes them."""
        await super().stop()
        await self.flush()
        unwritten = [self._next_batch()] + ([] if self._batch is None else [self._batch])
        self._lost.inc(sum(each.num for each in unwritten))
        if not any(each.num for each in unwritten):
            with contextlib.suppress(*FAILURES):
                async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                    await remove_gateway(conn, self._gateway_id)

    def note_exposure(self, exposure: Exposure) -> None:
        """Record the arm that a request got."""
        if not exposure.epoch:
            self._count_reason(exposure.experiment_id, exposure.reason)
            return
        unit = exposure.experiment_id, exposure.digest
        if unit in self._written or unit in self._units or (self._batch is not None and unit in self._batch.units):
            return
        if self._has_room("units"):
            now = datetime.datetime.now(datetime.UTC)
            self._units[unit] = NewUnit(exposure.experiment_id, exposure.digest, exposure.epoch, exposure.arm, now)
        else:
            self._lost.inc()

    def note_shadow_outcome(self, experiment_id: str, outcome: Outcome) -> None:
        """Record the outcome of a copy of a request for the shadow arm of an experiment."""
        self._count_reason(experiment_id, OUTCOME_PREFIX + outcome)

    def _count_reason(self, experiment_id: str, reason: str) -> None:
        key = experiment_id, _today(), reason
        if key in self._reasons or self._has_room("reasons"):
            self._reasons[key] = self._reasons.get(key, 0) + 1
        else:
            self._lost.inc()

    def note_refusal(
        self, exposure: Exposure, project_id: str, request_id: str, error: GatewayError, origin: Origin
    ) -> None:
        """Record that a request was refused after it got its arm. Refusals of a unit within a second become one row."""
        if not exposure.epoch or error.status not in REFUSALS:
            return
        unit = exposure.experiment_id, exposure.digest
        known = self._refused.get(unit)
        if known is None and not self._has_room("refused"):
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
        """Write all notes to the database.

        Notes that cannot be written now wait for the next time, if there is room for them.
        """
        batch = self._batch
        if batch is not None and not await self._write(batch):
            return
        batch = self._next_batch()
        if batch.num:
            self._batch = batch
            await self._write(batch)
        elif self._has_to_report():
            await self._report_nothing()

    def _has_to_report(self) -> bool:
        return (
            self._is_awaited is None
            or self._is_awaited.is_set()
            or time.monotonic() - self._reported_s >= REPORT_EVERY_S
        )

    async def _report_nothing(self) -> None:
        if self._is_awaited is not None:
            self._is_awaited.clear()
        reported_s = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                await record_no_notes(conn, self._gateway_id, datetime.timedelta(seconds=TIMEOUT_S))
        except FAILURES as error:
            log.warning("experiment_notes_not_told_of", error=repr(error))
        else:
            self._reported_s = reported_s

    def _has_room(self, what: Literal["units", "refused", "reasons"]) -> bool:
        """Tell whether one more note of this kind may wait in memory."""
        waiting = 0 if self._batch is None else len(getattr(self._batch, what))
        return waiting + len(getattr(self, f"_{what}")) < self._max_waiting

    def _next_batch(self) -> _Batch:
        """Take the notes since the last batch."""
        self._num_batches += 1
        batch = _Batch(self._num_batches, time.monotonic(), self._units, self._refused, self._reasons)
        self._units, self._refused, self._reasons = {}, {}, {}
        return batch

    async def _write(self, batch: _Batch) -> bool:
        """Write the batch; return False where the database fails, or does not say whether it wrote."""
        age = datetime.timedelta(seconds=time.monotonic() - batch.noted_until_s + TIMEOUT_S)
        new_units = {(unit.experiment_id, unit.epoch) for unit in batch.units.values()}
        try:
            async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                if await begin_batch(conn, self._gateway_id, batch.number, age):
                    new_units = await write_notes(
                        conn, batch.units.values(), list(batch.refused.values()), batch.reasons
                    )
            async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                await note_late_units(conn, new_units)
        except Exception as error:
            if not isinstance(error, FAILURES) or isinstance(error, UNFIT):
                self._batch = None
                self._lost.inc(batch.num)
                raise
            log.warning("experiment_notes_not_written", error=repr(error))
            return False
        self._batch = None
        self._written |= dict.fromkeys(batch.units)
        for unit in list(islice(self._written, max(0, len(self._written) - self._max_written))):
            del self._written[unit]
        return True


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
