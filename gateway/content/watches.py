"""Waits for requests that run, here or in another gateway, until they end or are lost.

All requests of this gateway that wait for the same one ask the database together.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.db.content import idempotency as db
from gateway.db.content.idempotency import Slot
from gateway.db.pool import FAILURES, Database

MIN_POLL_S, MAX_POLL_S = 0.02, 0.5


class Silence:
    """The seconds since the last sign of life of a request's gateway, counted only while the database answers.

    While the database does not answer, the gateway cannot give a sign of life.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._since_s: float | None = None

    def is_gateway_dead(self, is_alive: bool | None, now_s: float) -> bool:
        """Record an answer of the database, and tell whether the gateway is dead.

        is_alive: None where there was no answer.
        """
        if is_alive is not False:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._lost_after_s


class Watches:
    """The waits of one gateway's requests until the request that runs for their key ends or is lost.

    wait_s: the most seconds that each wait lasts.
    lost_after_s: the seconds without a sign of life after which a request is lost.
    ask_s: the most seconds that each query of the database may take.
    """

    def __init__(self, database: Database, *, wait_s: float, lost_after_s: float, ask_s: float) -> None:
        self._database = database
        self._wait_s = wait_s
        self._lost_after_s = lost_after_s
        self._ask_s = ask_s
        self._tasks: dict[Slot, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """End all waits."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def changes_before(self, slot: Slot, deadline_s: float, ended: asyncio.Event | None) -> bool:
        """Wait until the slot may have another state; return False at deadline_s.

        ended: set when a request of this gateway ends.
        """
        watch = self._tasks.get(slot)
        if watch is None:
            watch = self._tasks[slot] = asyncio.create_task(self._watch(slot, ended))
            watch.add_done_callback(lambda _: self._tasks.pop(slot, None))
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return False
        done, _ = await asyncio.wait([watch], timeout=left_s)
        return bool(done)

    async def _watch(self, slot: Slot, ended: asyncio.Event | None) -> None:
        """Wait until no request runs for the slot any more, for at most wait_s.

        ended: set when the request ends, if it runs in this gateway; None: the database is asked.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                if ended is not None:
                    await ended.wait()
                    return
                silence, pause_s = Silence(self._lost_after_s), MIN_POLL_S
                while await self._is_running(slot, silence):
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, MAX_POLL_S)

    async def _is_running(self, slot: Slot, silence: Silence) -> bool:
        """Tell whether the slot's request still runs; a request that is lost is marked so in its row."""
        now_s = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._ask_s), self._database.acquire() as conn:
                is_alive = await db.is_alive(conn, slot)
                if silence.is_gateway_dead(is_alive, now_s()):
                    await db.lose_slot(conn, slot)
                    return False
        except FAILURES:
            silence.is_gateway_dead(None, now_s())
            return True
        return is_alive is not None
