"""Reports changes of keys, adapters and limits to this process, so that its caches are soon up to date.

LISTEN brings each change within milliseconds. A counter that the changing transaction itself increments is polled
beside it: a change that a lost connection failed to bring is noticed within `POLL_EVERY_S`. The statement that polls
the counter also finds the work that waits in the database (`due_work`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.db.due_work import POLL_EVERY_S, POLL_TIMEOUT_S, DueWork
from gateway.db.pool import FAILURES, Database

CHANNEL = "lorikeet_changes"
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 5.0
WAKE_ALL_EVERY_S = 1.0
"""The seconds after which all workers are woken again while the database cannot be asked what waits."""

log = logging.getLogger(__name__)


class Change(msgspec.Struct, frozen=True):
    """One row that changed."""

    version: int
    """The value of the counter after the change; 0 for a change that is not counted.

    Only present listeners notice such a change.
    """
    table: str
    """The name of the table, such as "api_keys" or "adapters"."""
    id: str
    project_id: str | None
    """The project of the row; None where it belongs to the organization."""


Subscriber = Callable[[Change | None], None]
"""A function that is called with one change, or with None when anything may have changed."""


class ChangeFeed:
    """Calls its subscribers, in the event loop, for every change that other connections commit."""

    def __init__(self, database: Database) -> None:
        self.due_work = DueWork()
        self._database = database
        self._subscribers: list[Subscriber] = []
        self._version: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._decode = msgspec.json.Decoder(Change).decode

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call the subscriber at every change from now on; it must neither wait nor raise."""
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        """Start listening for changes.

        Return once changes are being listened to or, where the database is away, once that was tried.
        """
        listening = asyncio.Event()
        self._tasks = [asyncio.create_task(self._listen(listening)), asyncio.create_task(self._poll())]
        await listening.wait()

    async def stop(self) -> None:
        """Stop listening for changes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _listen(self, tried: asyncio.Event) -> None:
        backoff_s = MIN_BACKOFF_S
        while True:
            lost = asyncio.Event()
            try:
                connection = await self._database.connect_alone()
                try:
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, self._take_notification)
                    backoff_s = MIN_BACKOFF_S
                    tried.set()
                    await lost.wait()
                    log.warning("the connection that listens for changes was lost")
                finally:
                    connection.terminate()  # unlike close(), it does not wait for the server
            except FAILURES as error:
                log.warning("cannot listen for changes: %s", str(error) or type(error).__name__)
            tried.set()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _take_notification(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        change = self._decode(str(payload))
        if self._version is not None and change.version == self._version + 1:
            self._version = change.version
        self._notify(change)

    async def _poll(self) -> None:
        failing, woke_all_s = False, float("-inf")
        clock_s = asyncio.get_running_loop().time
        while True:
            before = self._version
            try:
                async with asyncio.timeout(POLL_TIMEOUT_S), self._database.acquire() as connection:
                    version = await self.due_work.poll(connection)
            except FAILURES as error:
                if not failing:
                    log.warning("cannot poll for changes: %s", str(error) or type(error).__name__)
                failing = True
                if clock_s() - woke_all_s >= WAKE_ALL_EVERY_S:
                    woke_all_s = clock_s()
                    self.due_work.wake_all()
            else:
                failing = False
                # Notifications may have moved our version on while the query ran.
                if version not in (before, self._version):
                    self._version = version
                    self._notify(None)
            await asyncio.sleep(POLL_EVERY_S)

    def _notify(self, change: Change | None) -> None:
        for subscriber in self._subscribers:
            subscriber(change)
