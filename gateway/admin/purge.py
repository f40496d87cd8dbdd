"""Takes what archived projects held away once their retention is over; the collector takes the content. Every gateway
looks; one does it."""

from __future__ import annotations

import asyncio
import logging

from gateway.db import audit, projects
from gateway.db.pool import FAILURES, Database

INTERVAL_S = 60.0

log = logging.getLogger(__name__)


class Purger:
    """Looks once a minute from `start` to `stop`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def purge_all(self) -> int:
        """Purge every project that is due; returns how many. What a crash leaves half done is done again."""
        num_purged = 0
        while await self._purge_one():
            num_purged += 1
        return num_purged

    async def _purge_one(self) -> bool:
        async with self._database.transaction() as conn:
            due = await projects.next_to_purge(conn)
            if due is None:
                return False
            organization_id, project_id = due
            await projects.purge_project(conn, project_id)
            author = audit.Author(
                organization_id=organization_id, kind="system", id="purge", email=None, address="", request_id=""
            )
            await audit.record(conn, author, "project.purged", project_id, project_id=project_id)
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self.purge_all()
            except FAILURES as error:
                log.warning("archived projects are purged later: %s", error)
            await asyncio.sleep(INTERVAL_S)
