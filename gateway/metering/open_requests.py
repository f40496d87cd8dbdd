"""Reports to PostgreSQL the open requests of this journal, so that it is known how many are lost with it.

Knows neither files nor engines.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import structlog

from gateway.db.ledger.journals import forget_journals, report_journal
from gateway.db.pool import FAILURES, Database
from gateway.metering.journal import Journal
from gateway.observability.journal_metrics import JournalMetrics
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

BEAT_S = 1.0
REPORT_EVERY_BEATS = 10
TIMEOUT_S = 5.0


class JournalReporter(Worker):
    """The worker that reports the journal to PostgreSQL between `start` and `stop`."""

    def __init__(
        self, journal: Journal, database: Database, metrics: JournalMetrics, version: str | None, folder: Path
    ) -> None:
        """Prepare to report a journal. version: this gateway's version. folder: the folder of the journal."""
        super().__init__(self._beat, BEAT_S, name="standing of the journal")
        self._journal = journal
        self._database = database
        self._metrics = metrics
        self._version = version
        self._folder = f"{socket.gethostname()}:{folder.absolute()}"
        self._reported = -1
        self._num_beats = 0

    async def stop(self) -> None:
        """Stop after a last report: a journal without open requests leaves no row."""
        await super().stop()
        await self._report_open(is_last=True)

    async def _beat(self) -> None:
        unsettled = self._journal.unsettled
        self._metrics.bytes.set(unsettled.num_bytes)
        self._metrics.writable.set(self._journal.is_writable)
        is_due = self._num_beats % REPORT_EVERY_BEATS == 0
        self._num_beats += 1
        if is_due or unsettled.adopted or unsettled.num_open != self._reported:
            await self._report_open()

    async def _report_open(self, *, is_last: bool = False) -> None:
        num_open, adopted = self._journal.unsettled.num_open, list(self._journal.unsettled.adopted)
        gone = [*adopted, self._journal.id] if is_last and not num_open else adopted
        try:
            async with asyncio.timeout(TIMEOUT_S), self._database.transaction() as conn:
                await report_journal(conn, self._journal.id, num_open, version=self._version, folder=self._folder)
                await forget_journals(conn, gone)
        except FAILURES as error:
            log.warning("journal_not_reported", error=repr(error))
            return
        self._reported = num_open
        if adopted:
            self._journal.release(adopted)
