"""The bound on the stored content of one project, and the check that the disk has room for any.

The stored bytes are counted in the database once a minute for a project that stores something, and added to meanwhile:
gateways may together go beyond the bound by the content of a minute.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.db.content.stored_bytes import stored_bytes
from gateway.db.pool import FAILURES, Database
from gateway.domain.errors import QuotaExceeded
from gateway.support.disk import DiskReserve

if TYPE_CHECKING:
    from gateway.db.pool import Connection

CHECK_S = 60.0
MAX_PROJECTS = 10_000
NO_ROOM = "its project has no room for more content, or the disk has none"


class ContentQuota:
    """The room for content. A gateway process has one.

    max_bytes: the bound for each project; 0: none. clock: seconds on a monotonic clock.
    """

    def __init__(
        self, database: Database, max_bytes: int, disk: DiskReserve, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._disk = disk
        self._clock = clock
        self._stored: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def take(self, conn: Connection, project_id: str, num_bytes: int) -> bool:
        """Count content that is about to be stored, and tell whether there is room for it.

        conn: the connection on which the content is counted. num_bytes: the bytes to store.
        """
        if self._disk.is_low():
            return False
        if not self._max_bytes:
            return True
        checked_at_s, stored = await self._stored_by_now(conn, project_id)
        if stored + num_bytes > self._max_bytes:
            return False
        self._stored[project_id] = (checked_at_s, stored + num_bytes)
        return True

    async def check(self, project_id: str) -> None:
        """Check that a project may store content, before the content is made.

        Raises QuotaExceeded: when the disk is nearly full, or the project has as many bytes stored as it may.
        """
        if self._disk.is_low():
            raise QuotaExceeded(
                "The server's disk is nearly full: nothing more is stored.", param="store", code="storage_full"
            )
        if not self._max_bytes:
            return
        try:
            async with self._database.acquire() as conn:
                _, stored = await self._stored_by_now(conn, project_id)
        except FAILURES:
            return  # content that cannot be stored then is counted as lost
        if stored >= self._max_bytes:
            raise QuotaExceeded(
                f"This project has {stored} bytes of content stored, of at most {self._max_bytes}. "
                "Delete stored completions, responses or conversations, or send the request with 'store' set to false.",
                param="store",
                code="content_quota_exceeded",
            )

    async def _stored_by_now(self, conn: Connection, project_id: str) -> tuple[float, int]:
        now_s = self._clock()
        checked_at_s, stored = self._stored.get(project_id, (float("-inf"), 0))
        if now_s - checked_at_s >= CHECK_S:
            checked_at_s, stored = now_s, await stored_bytes(conn, project_id)
            self._stored[project_id] = (checked_at_s, stored)
            self._stored.move_to_end(project_id)
            if len(self._stored) > MAX_PROJECTS:
                self._stored.popitem(last=False)
        return checked_at_s, stored
