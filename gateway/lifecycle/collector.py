"""Takes away what nobody needs any more: content of the store that no version refers to, adapters on engines that
belong to none, bytes of uploads that are over. So what a process that died left behind goes as well.

Every gateway looks. Content has to be unused for a while as each sees it, and then once more in a transaction in which
nobody refers to anything new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from adapters.errors import AdapterMissing, StoreFailure
from adapters.ref import content_key, digest_of
from adapters.store import AdapterStore
from gateway.db.adapter_imports import expire_imports
from gateway.db.contents import owners, store_exclusive
from gateway.db.pool import FAILURES, Database
from gateway.lifecycle.uploads import Uploads

INTERVAL_S = 20.0
GRACE_S = 60.0

log = structlog.get_logger(__name__)

AWAY: tuple[type[Exception], ...] = (*FAILURES, StoreFailure)
"""What ends one look, and not the looking."""


class Collector:
    """Works between `start` and `stop`.

    resident: keys of the content that engines hold. unload: let them forget one; it must not raise.
    grace_s: how long content is kept that nobody refers to; an upload refers to what it has put there much sooner.
    """

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        uploads: Uploads,
        *,
        resident: Callable[[], Collection[str]],
        unload: Callable[[str], Awaitable[None]],
        grace_s: float = GRACE_S,
    ) -> None:
        self._database = database
        self._store = store
        self._uploads = uploads
        self._resident = resident
        self._unload = unload
        self._grace_s = grace_s
        self._unused_since_s: dict[str, float] = {}  # by digest, or key on an engine
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def collect(self) -> list[str]:
        """Look once, and take away what has been unused for long enough; the digests that left the store."""
        async with self._database.acquire() as conn:
            await expire_imports(conn)
        await self._uploads.sweep()
        stored, resident = await asyncio.to_thread(self._store.digests), self._resident()
        unused = await self._unused(stored, resident)
        now_s = asyncio.get_running_loop().time()
        self._unused_since_s = {what: self._unused_since_s.get(what, now_s) for what in unused}
        due = {what for what, since_s in self._unused_since_s.items() if now_s - since_s >= self._grace_s}
        for key in due.intersection(resident):
            await self._unload(key)
        return [digest for digest in stored if digest in due and await self._remove(digest)]

    async def _unused(self, stored: Collection[str], resident: Collection[str]) -> set[str]:
        """Of these digests and keys, those that no version refers to."""
        async with self._database.acquire() as conn:
            known = await owners(conn, {*stored, *map(digest_of, resident)})
        needed = set(known)  # a digest alone is a key, too
        needed.update(content_key(tenant, digest) for digest, tenants in known.items() for tenant in tenants)
        return {*stored, *resident} - needed

    async def _remove(self, digest: str) -> bool:
        async with self._database.acquire() as conn, store_exclusive(conn):
            if await owners(conn, [digest]):
                return False
            try:
                await asyncio.to_thread(self._store.remove, digest)
            except AdapterMissing:
                return False  # another gateway was faster
        log.info("adapter_content_removed", digest=digest)
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self.collect()
            except AWAY as error:
                log.warning("content_collected_later", error=repr(error))
            await asyncio.sleep(INTERVAL_S)
