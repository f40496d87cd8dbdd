"""Fetches the content of imports in the state `fetching`, in the background, and hands it to the intake.

Any number of gateways do so. Each import is claimed by one gateway, which leaves signs of life, and by another one when
these stop.
Knows nothing of the way to the content (`gateway.adapters.fetch`), nor of its inspection (`.intake`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from adapters.store import AdapterStore
from gateway.adapters.cooldown import check_not_paused
from gateway.adapters.download import FetchFailed, Received
from gateway.adapters.fetch import Fetcher
from gateway.adapters.workspace import workspace
from gateway.db.adapters.adapter_imports import ImportRow, claim_fetch, end_import, set_uploaded, touch_import
from gateway.db.adapters.refused_adapters import put_off_import
from gateway.db.due_work import RARELY_S
from gateway.db.pool import FAILURES, Database
from gateway.domain.errors import GatewayError, UploadsPaused
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

POLL_S = 0.5
TOUCH_S = 1.0
"""Seconds between two signs of life of an import's gateway; after 20 s without one, another gateway takes the
import."""

STOP_S = 10.0
MAX_AT_WORK = 4

TakeIn = Callable[[ImportRow, Path], Awaitable[object]]
"""The function `Intake.take_in`: it records the import's end, or puts the import of a paused project back.

Raises GatewayError: when the content is refused.
"""


class Importer:
    """Fetches imports between `start` and `stop`. A gateway process has one.

    Content that has not arrived at `stop` is fetched anew by another gateway.
    """

    def __init__(
        self,
        database: Database,
        fetcher: Fetcher,
        take_in: TakeIn,
        store: AdapterStore,
        *,
        poll_s: float = POLL_S,
        wake: asyncio.Event | None = None,
    ) -> None:
        """Prepare the importer. wake: set when an import may wait; None: the importer looks each poll_s."""
        self._database = database
        self._fetcher = fetcher
        self._take_in = take_in
        self._store = store
        poll_s = poll_s if wake is None else RARELY_S
        self._polling = Worker(self._begin_imports, poll_s, name="imports", wake=wake)
        self._at_work: set[asyncio.Task[None]] = set()
        self._taking_in: set[str] = set()  # ids of imports whose content is here

    def start(self) -> None:
        """Begin to look for imports."""
        self._polling.start()

    async def stop(self) -> None:
        """Stop fetching. An adapter whose content has arrived is still taken in, since nobody else has the content."""
        await self._polling.stop()
        taking_in = {task for task in self._at_work if task.get_name() in self._taking_in}
        for task in self._at_work - taking_in:
            task.cancel()
        if taking_in:
            await asyncio.wait(taking_in, timeout=STOP_S)
        tasks = list(self._at_work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin_imports(self) -> None:
        """Claim waiting imports until MAX_AT_WORK run, and start a task for each."""
        while len(self._at_work) < MAX_AT_WORK:
            async with self._database.acquire() as conn:
                claimed = await claim_fetch(conn)
            if claimed is None:
                return
            task = asyncio.create_task(self._import(claimed), name=claimed.id)
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)

    async def _import(self, claimed: ImportRow) -> None:
        try:
            if await self._put_off_if_paused(claimed):
                return
            async with workspace(self._store) as folder:
                content = await self._fetch(claimed, folder)
                async with self._database.acquire() as conn:
                    uploaded = await set_uploaded(conn, claimed.id)
                if uploaded is not None:
                    self._taking_in.add(claimed.id)
                    await self._take_in(uploaded, content)
        except FetchFailed as error:
            await self._fail(claimed, str(error))
        except GatewayError as error:
            log.info("import_refused", id=claimed.id, source=claimed.source, error=error.message)
        except FAILURES as error:  # errors of the disk, too: the import's signs of life stop, and it is claimed again
            log.warning("import_interrupted", id=claimed.id, source=claimed.source, error=repr(error))
        except Exception:
            log.exception("import_failed", id=claimed.id, source=claimed.source)
            await self._fail(claimed, "an unexpected failure; the server's log has the details")
        finally:
            self._taking_in.discard(claimed.id)

    async def _put_off_if_paused(self, claimed: ImportRow) -> bool:
        """Put the import back until its project's pause is over, if the project is paused; return whether it is."""
        async with self._database.acquire() as conn:
            try:
                await check_not_paused(conn, claimed.project_id)
            except UploadsPaused as paused:
                await put_off_import(conn, claimed.project_id, claimed.id, "fetching", paused.retry_after_s or 0.0)
                return True
        return False

    async def _fetch(self, claimed: ImportRow, folder: Path) -> Path:
        """Fetch the content of an import.

        Raises FetchFailed: when the source fails, or the import was canceled meanwhile.
        """
        received = self._fetcher.begin()
        fetching = asyncio.create_task(self._fetcher.bring(claimed.source, folder, received))
        try:
            while not (await asyncio.wait([fetching], timeout=TOUCH_S))[0]:
                await self._touch_import(claimed, received)
            await self._touch_import(claimed, received)
            return fetching.result()
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def _touch_import(self, claimed: ImportRow, received: Received) -> None:
        """Renew the gateway's claim to the import. A database that is away is no reason to stop.

        Raises FetchFailed: when the import has ended.
        """
        try:
            async with self._database.acquire() as conn:
                is_at_work = await touch_import(
                    conn, claimed.id, received_bytes=received.num_bytes, size_bytes=received.expected_bytes
                )
        except FAILURES as error:
            log.warning("imports_unavailable", error=repr(error))
            return
        if not is_at_work:
            raise FetchFailed("the import was canceled")

    async def _fail(self, claimed: ImportRow, reason: str) -> None:
        log.info("import_failed", id=claimed.id, source=claimed.source, reason=reason)
        try:
            async with self._database.acquire() as conn:
                await end_import(conn, claimed.id, "failed", reason)
        except FAILURES as error:
            log.warning("imports_unavailable", error=repr(error))
