"""Deletes the content of archived projects once their retention is over; the collector deletes the adapters' content.

Every gateway looks for such projects; each project is purged by one gateway. The content of requests and replies is
deleted first, a little at a time, since it may be much.
"""

from __future__ import annotations

import logging

from gateway.content.keeper import drop_content
from gateway.db.organization import audit, projects
from gateway.db.pool import Database
from gateway.support.worker import Worker

INTERVAL_S = 60.0

log = logging.getLogger(__name__)


class Purger(Worker):
    """Deletes the content of archived projects that are due, looking once a minute between `start` and `stop`."""

    def __init__(self, database: Database) -> None:
        super().__init__(self.purge_all, INTERVAL_S, name="archived projects")
        self._database = database

    async def purge_all(self) -> int:
        """Purge every project that is due, and return the number of purged projects.

        A purge that a crash cut short is repeated.
        """
        num_purged = 0
        while (due := await self._next_project()) is not None:
            num_purged += await self._purge(*due)
        return num_purged

    async def _next_project(self) -> tuple[str, str] | None:
        async with self._database.acquire() as conn:
            return await projects.next_to_purge(conn)

    async def _purge(self, organization_id: str, project_id: str) -> bool:
        """Purge a project. Return False if another gateway has purged it."""
        await drop_content(self._database, project_id)
        async with self._database.transaction() as conn:
            if not await projects.lock_to_purge(conn, organization_id, project_id):
                return False
            await projects.purge_project(conn, project_id)
            author = audit.Author(
                organization_id=organization_id, kind="system", id="purge", email=None, address="", request_id=""
            )
            await audit.record(conn, author, "project.purged", project_id, project_id=project_id)
        return True
