"""Brings home what gateways left in their journals' folders: this process's predecessor, and others that are gone.

Knows neither the ledger nor engines.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog

from gateway.journal_metrics import JournalMetrics
from gateway.metering.folder import JournalFolder, free_folders, left_folders
from gateway.metering.journal import Journal
from gateway.metering.replay import Replayed, Unreadable, replay

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 5.0
FLUSH_S = 10.0


class JournalUnusable(RuntimeError):
    """There is no folder to keep a journal in; the message says where and why."""


def claim_folder(root: Path, database_id: str) -> tuple[JournalFolder, Replayed]:
    """The first folder that nobody owns and that this database may have the usage of, with that.

    Raises JournalUnusable.
    """
    try:
        return _claim_folder(root, database_id)
    except OSError as error:
        raise JournalUnusable(f"no journal can be kept in {root}: {error.strerror}") from error


def _claim_folder(root: Path, database_id: str) -> tuple[JournalFolder, Replayed]:
    for folder in free_folders(root):
        try:
            return folder, replay(folder, database_id)
        except Unreadable as error:
            log.error("journal_left_alone", reason=str(error))
            folder.release()
        except BaseException:
            folder.release()
            raise
    raise AssertionError("there is always one more folder")


class Wakeable(Protocol):
    def wake(self) -> None:
        """The journal has something to copy."""


class Recovery:
    """Looks for folders that were left behind, from `start` to `stop`, and moves what is in them to this journal."""

    def __init__(
        self,
        root: Path,
        own: Path,
        database_id: str,
        journal: Journal,
        metrics: JournalMetrics,
        copier: Wakeable,
    ) -> None:
        self._root = root
        self._own = own
        self._database_id = database_id
        self._journal = journal
        self._metrics = metrics
        self._copier = copier
        self._unreadable: set[Path] = set()
        self._task: asyncio.Task[None] | None = None

    def take(self, replayed: Replayed) -> None:
        """Put what was found into this journal."""
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

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except OSError as error:
                log.warning("journals_not_looked_at", error=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        for folder in left_folders(self._root, self._own):
            try:
                if self._journal.has_room and folder.path not in self._unreadable:
                    await self._adopt(folder)
            except Unreadable as error:
                log.error("journal_left_alone", reason=str(error))
                self._unreadable.add(folder.path)
            finally:
                folder.release()

    async def _adopt(self, folder: JournalFolder) -> None:
        """Its segments go once their usage is on disk here; until then, another try finds the same again."""
        segments = folder.segments()
        replayed = await asyncio.to_thread(replay, folder, self._database_id)
        self.take(replayed)
        if await self._journal.flush(FLUSH_S):
            for segment in segments:
                segment.unlink()
