"""Frees slots that may have been claimed by requests that never run: the database's answer to the claim was lost.

A server that was frozen may write such a row after the row was deleted, so the row is deleted again for a while.
"""

from __future__ import annotations

import asyncio

from gateway.content.writes import Writes
from gateway.db.content import idempotency as db
from gateway.db.content.idempotency import Slot
from gateway.db.pool import Database

MAX_CLAIMS = 10_000
"""The most claims that are remembered; beyond them the rows of the oldest are lost rather than freed."""


class UnansweredClaims:
    """The claims of one gateway whose answers were lost.

    again_s: the seconds after a claim was first freed during which it is freed again whenever other claims are.
    """

    def __init__(self, database: Database, writes: Writes, *, again_s: float, ask_s: float) -> None:
        self._database = database
        self._writes = writes
        self._again_s = again_s
        self._ask_s = ask_s
        self._freed_at_s: dict[tuple[Slot, str], float | None] = {}
        self._freeing: asyncio.Task[None] | None = None

    def add(self, slot: Slot, request_id: str) -> None:
        """Free the slot that request_id may have claimed, as soon as the database answers.

        No request with this id runs.
        """
        if len(self._freed_at_s) >= MAX_CLAIMS:
            del self._freed_at_s[next(iter(self._freed_at_s))]
        self._freed_at_s[slot, request_id] = None
        if self._freeing is None or self._freeing.done():
            self._freeing = self._writes.begin("claim", 0, self.free)

    async def free(self) -> None:
        """Free all claims whose answers were lost, once more.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        claims = list(self._freed_at_s)
        if not claims:
            return
        async with asyncio.timeout(self._ask_s), self._database.acquire() as conn:
            await db.free_slots(conn, claims)
        now_s = asyncio.get_running_loop().time()
        for claim in claims:
            freed_at_s = self._freed_at_s.pop(claim, None)
            if freed_at_s is None or now_s - freed_at_s < self._again_s:
                self._freed_at_s[claim] = now_s if freed_at_s is None else freed_at_s
