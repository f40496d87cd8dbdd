"""Deletes content that nobody needs any more.

That is content of the store that no version refers to, adapters on engines that belong to no version, and bytes of
uploads that are over. So the leftovers of a process that died go as well. Every gateway looks at its engines and its
disk, one of all at the store. Content is deleted once a gateway has seen it unused for as long as running requests may
need it, and sees it unused again in a transaction during which no reference can be added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from adapters.errors import AdapterMissing
from adapters.ref import content_key, digest_of
from adapters.store import AdapterStore
from gateway.adapters.uploads import Uploads
from gateway.db.adapters.adapter_imports import expire_imports
from gateway.db.adapters.contents import content_owners, store_exclusive
from gateway.db.pool import Database
from gateway.db.turns import COLLECTING, Turn
from gateway.support.worker import Worker

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.5, 20.0

log = structlog.get_logger(__name__)


class Collector(Worker):
    """Deletes unused content between `start` and `stop`.

    resident: returns the keys of the content that engines hold.
    unload: lets engines forget a content; it must not raise.
    grace_s: seconds for which content is kept that nobody refers to.
    """

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        uploads: Uploads,
        *,
        resident: Callable[[], Collection[str]],
        unload: Callable[[str], Awaitable[None]],
        grace_s: float,
    ) -> None:
        super().__init__(self._poll, max(MIN_INTERVAL_S, min(MAX_INTERVAL_S, grace_s / 4)), name="collection")
        self._database = database
        self._store = store
        self._uploads = uploads
        self._resident = resident
        self._unload = unload
        self._grace_s = grace_s
        self._turn = Turn(database, COLLECTING)
        self._unused_since_s: dict[str, float] = {}  # by digest, or key on an engine

    async def stop(self) -> None:
        """Stop collecting, and let another gateway take over the store."""
        await super().stop()
        self._turn.release()

    async def collect(self, *, in_store: bool = True) -> list[str]:
        """Look once for unused content, and delete what has been unused for long enough.

        Return the digests that left the store. in_store: whether to look in the store too; if not, earlier findings in
        the store are forgotten.
        """
        async with self._database.acquire() as conn:
            await expire_imports(conn)
        await self._uploads.sweep()
        await asyncio.to_thread(self._store.sweep)
        stored, resident = await asyncio.to_thread(self._store.digests) if in_store else [], self._resident()
        unused = await self._unreferenced(stored, resident)
        now_s = asyncio.get_running_loop().time()
        self._unused_since_s = {what: self._unused_since_s.get(what, now_s) for what in unused}
        due = {what for what, since_s in self._unused_since_s.items() if now_s - since_s >= self._grace_s}
        for key in due.intersection(resident):
            await self._unload(key)
        return [digest for digest in stored if digest in due and await self._remove(digest)]

    async def _unreferenced(self, stored: Collection[str], resident: Collection[str]) -> set[str]:
        """Return the digests and keys to which no version refers. stored: digests in the store.

        resident: keys on engines.
        """
        async with self._database.acquire() as conn:
            known = await content_owners(conn, {*stored, *map(digest_of, resident)})
        needed = set(known)  # a digest alone is a key, too
        needed.update(content_key(tenant, digest) for digest, tenants in known.items() for tenant in tenants)
        return {*stored, *resident} - needed

    async def _remove(self, digest: str) -> bool:
        async with self._database.acquire() as conn, store_exclusive(conn):
            if await content_owners(conn, [digest]):
                return False
            try:
                await asyncio.to_thread(self._store.remove, digest)
            except AdapterMissing:
                return False  # another gateway was faster
        log.info("adapter_content_removed", digest=digest)
        return True

    async def _poll(self) -> None:
        try:
            is_mine = await self._turn.is_mine()
        except Exception:
            self._unused_since_s.clear()  # it may have been used meanwhile
            raise
        await self.collect(in_store=is_mine)
