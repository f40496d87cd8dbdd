"""The metering of one gateway process: its parts put together, and started and stopped in order."""

from __future__ import annotations

import secrets
from pathlib import Path

from gateway.db.pool import Database
from gateway.limits.limiter import Limiter
from gateway.metering.acknowledgements import Acknowledgements
from gateway.metering.copier import Copier
from gateway.metering.format import VERSION, Begun
from gateway.metering.journal import Journal, JournalState
from gateway.metering.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metering.open_requests import JournalReporter
from gateway.metering.recovery import Recovery, claim_folder
from gateway.observability.metrics import Metrics

JOURNAL_FLUSH_S = 10.0
LEDGER_FLUSH_S = 10.0


class Metering:
    """The metering of one gateway process; `meter` works between `start` and `stop`."""

    def __init__(
        self,
        root: Path,
        database: Database,
        limiter: Limiter,
        metrics: Metrics,
        *,
        database_id: str,
        max_journal_bytes: int,
        spent_journal_bytes: int = 0,
        version: str | None = None,
    ) -> None:
        """Claim a journal and put its usage on the way to the ledger.

        root: the folder of all journals of this machine; the first one that is free there is owned until `stop`.
        spent_journal_bytes: the most bytes of the journal that stay on disk once the ledger has their usage.
        version: the version of this gateway.

        Raises JournalUnusable: when there is no folder to keep a journal in.
        """
        folder, replayed = claim_folder(root, database_id)
        acknowledgements = Acknowledgements()
        begun = Begun(VERSION, database_id, secrets.token_hex(16))
        self._journal = Journal(
            folder,
            begun,
            max_bytes=max_journal_bytes,
            spent_bytes=spent_journal_bytes,
            on_durable=acknowledgements.durable,
        )
        self._copier = Copier(self._journal, Ledger(database, limiter, begun.journal_id), metrics)
        self._standing = JournalReporter(self._journal, database, metrics.journal, version, folder.path)
        self._recovery = Recovery(root, folder.path, database_id, self._journal, metrics.journal, self._copier)
        self._recovery.take(replayed)
        self.meter = Meter(self._journal, acknowledgements, self._copier, limiter, metrics)

    @property
    def journal_state(self) -> JournalState:
        """The state of the journal: how full it is."""
        return self._journal.state

    def start(self) -> None:
        """Start all parts."""
        self._journal.start()
        self._copier.start()
        self._standing.start()
        self._recovery.start()

    async def flush(self) -> None:
        """Wait until all recorded usage is on disk, and the engines that reported it were told so."""
        await self._journal.flush(JOURNAL_FLUSH_S)

    async def stop(self) -> None:
        """Stop once nobody records anything any more. Usage that the ledger does not take now stays in the folder."""
        await self._recovery.stop()
        await self._copier.stop(LEDGER_FLUSH_S)
        await self._standing.stop()
        await self._journal.stop(JOURNAL_FLUSH_S)
