"""Takes over the usage that gateways left in their journals' folders.

These gateways are this process's predecessor, and others that are gone. Knows neither the ledger nor engines.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Protocol

import structlog

from gateway.metering.folder import JournalFolder, folders_in, segments_in
from gateway.metering.journal import Journal
from gateway.metering.replay import Replayed, Unreadable, replay
from gateway.observability.journal_metrics import JournalMetrics
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

POLL_EVERY_S = 5.0
FLUSH_S = 10.0


class JournalUnusable(RuntimeError):
    """The error for a machine without a usable journal folder; the message has the folder and the reason."""


def claim_folder(root: Path, database_id: str) -> tuple[JournalFolder, Replayed]:
    """Claim the first of the folders 0, 1, ... that no process owns and that holds no other database's usage.

    Return the folder, with the usage that it holds. A folder that is there and cannot be read is passed over, and stays
    as it is.

    Raises JournalUnusable: when no new folder can be made.
    """
    for number in itertools.count():
        path = root / str(number)
        was_there = os.path.lexists(path)
        try:
            found = _try_claim(path, database_id)
        except Unreadable as error:
            log.error("journal_left_alone", reason=str(error))
        except OSError as error:
            if not was_there:
                raise JournalUnusable(f"the journal of usage cannot be written in {root}: {error.strerror}") from error
            log.error("journal_left_alone", reason=f"{path}: {error.strerror}")
        else:
            if found is not None:
                return found
    raise AssertionError("there is always one more folder")


def _try_claim(path: Path, database_id: str) -> tuple[JournalFolder, Replayed] | None:
    """Claim a folder and replay its journal.

    Return None while another process owns it.

    Raises Unreadable: when the journal has another format or belongs to another database.
    Raises OSError: when a file cannot be read or locked.
    """
    folder = JournalFolder.try_claim(path)
    if folder is None:
        return None
    try:
        return folder, replay(folder, database_id)
    except BaseException:
        folder.release()
        raise


class Wakeable(Protocol):
    """A copier of journals that can be woken."""

    def wake(self) -> None:
        """Record that the journal has something to copy."""


class Recovery(Worker):
    """Looks for folders that were left behind, from `start` to `stop`, and moves their usage to this journal."""

    def __init__(
        self,
        root: Path,
        own: Path,
        database_id: str,
        journal: Journal,
        metrics: JournalMetrics,
        copier: Wakeable,
    ) -> None:
        super().__init__(self._poll, POLL_EVERY_S, name="journals left behind")
        self._root = root
        self._own = own
        self._database_id = database_id
        self._journal = journal
        self._metrics = metrics
        self._copier = copier
        self._foreign: set[Path] = set()  # the folder is of another database or format, which does not change
        self._failing: set[Path] = set()  # tried again, and logged once

    def take(self, replayed: Replayed) -> None:
        """Put the usage found in another journal into this journal."""
        for ended in replayed.ended:
            self._journal.end(ended)
        num_ended = len(replayed.ended) - replayed.num_made_up
        self._metrics.recovered.labels("end").inc(num_ended)
        self._metrics.recovered.labels("seen").inc(replayed.num_made_up - replayed.num_unseen)
        self._metrics.recovered.labels("sent").inc(replayed.num_unseen)
        self._metrics.damaged.inc(replayed.num_damaged)
        if replayed.ended:
            log.info("journal_replayed", num_ended=num_ended, num_interrupted=replayed.num_made_up)
        if replayed.journal_ids:
            self._journal.adopt(replayed.journal_ids)
        self._copier.wake()

    async def _poll(self) -> None:
        for path in folders_in(self._root):
            if path == self._own or path in self._foreign or not self._journal.has_room:
                continue
            try:
                await self._adopt(path)
            except Unreadable as error:
                log.error("journal_left_alone", reason=str(error))
                self._foreign.add(path)
            except OSError as error:
                if path not in self._failing:
                    log.error("journal_not_recovered", journal=str(path), error=str(error))
                self._failing.add(path)
            else:
                self._failing.discard(path)

    async def _adopt(self, path: Path) -> None:
        """Take over the journal of a gateway that has died.

        Its segments are renamed as spent once their usage is on disk here; until then, another try finds the same
        usage.

        Raises Unreadable: when the journal has another format or belongs to another database.
        Raises OSError: when a file cannot be read or locked.
        """
        if not segments_in(path) or (folder := JournalFolder.try_claim(path)) is None:
            return
        try:
            segments = folder.segments()
            self.take(await asyncio.to_thread(replay, folder, self._database_id))
            if await self._journal.flush(FLUSH_S):
                self._journal.put_aside(segments)
        finally:
            folder.release()
