"""Deletes the pieces of parts that no file has any more: those of deleted files, and of files that never became whole.

Every gateway looks for such parts; two gateways that delete the same part do no harm.
"""

from __future__ import annotations

import asyncio

from gateway.db.files import parts as db
from gateway.db.pool import Database
from gateway.files.pieces import Pieces
from gateway.support.worker import Worker

INTERVAL_S = 30.0


class Sweeper(Worker):
    """Deletes pieces between `start` and `stop`."""

    def __init__(self, database: Database, pieces: Pieces) -> None:
        super().__init__(self.work, INTERVAL_S, name="deleted files")
        self._database = database
        self._pieces = pieces

    async def work(self) -> None:
        """Delete all parts of files that are deleted, expired or were never finished.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        Raises StoreFailure: when pieces cannot be deleted.
        """
        while True:
            async with self._database.transaction() as conn:
                found = await db.parts_to_remove(conn)
            for project_id, part_id in found:
                await asyncio.to_thread(self._pieces.remove, project_id, part_id)
                async with self._database.acquire() as conn:
                    await db.delete_part(conn, project_id, part_id)
            if not found:
                return
