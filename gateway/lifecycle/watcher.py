"""The watched folder: what appears in <folder>/<tenant>/<adapter>/ becomes that tenant's adapter, a change of it a new
version, all through the one intake.

One gateway of all watches; another takes over when its database session ends. An adapter is taken in when both files
are there and have not changed between two looks, and once: also after a restart nothing happens to what is as it was
taken in, or as it was refused. Folders that go away remove nothing. Knows nothing of how files are read safely
(`gateway.lifecycle.watched_files`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from adapters.ref import check_adapter_name
from adapters.store import AdapterStore
from gateway.db.adapter_imports import ImportRow, create_import, end_import
from gateway.db.audit import Author
from gateway.db.pool import FAILURES, Database
from gateway.db.watched import Tenant, find_tenants, note_taken, taken_fingerprint, try_become_watcher
from gateway.errors import GatewayError, Overloaded
from gateway.lifecycle.watched_files import Look, look, read
from gateway.lifecycle.workspace import workspace

log = structlog.get_logger(__name__)

POLL_S = 2.0
RETRY_S = 30.0
"""Before an adapter is tried again that could not be taken in, though nothing is wrong with it."""

SOURCE = "folder"
MAX_TOLD = 1000

TakeIn = Callable[[ImportRow, Path], Awaitable[object]]
"""`Intake.take_in`: records the import's end itself. Raises Overloaded where it cannot work now, other GatewayErrors
for what it refuses."""


class Watcher:
    """One per gateway process; works between `start` and `stop`. max_bytes: of an adapter's files."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        take_in: TakeIn,
        store: AdapterStore,
        *,
        max_bytes: int,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._database = database
        self._folder = folder
        self._take_in = take_in
        self._store = store
        self._max_bytes = max_bytes
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._last: dict[tuple[str, str], Look] = {}
        self._rests: dict[tuple[str, str], tuple[Look, float]] = {}
        """What nothing is to be done about until it changes, or until this time of the event loop's."""
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except FAILURES as error:  # of the database or of the folder
                self._tell("watched_folder_unavailable", folder=str(self._folder), error=str(error))
            except Exception:
                log.exception("watched_folder_failed")
            await asyncio.sleep(self._poll_s)

    async def _watch(self) -> None:
        """As long as this session lives, and whenever it is the one that watches. Raises `FAILURES`."""
        session = await self._database.connect_alone()
        try:
            while True:
                if await try_become_watcher(session):
                    await self._look()
                await asyncio.sleep(self._poll_s)
        finally:
            session.terminate()

    async def _look(self) -> None:
        found = {
            (each.tenant, each.name): each for each in await asyncio.to_thread(look, self._folder, self._max_bytes)
        }
        last, self._last = self._last, found
        now_s = asyncio.get_running_loop().time()
        self._rests = {key: rest for key, rest in self._rests.items() if found.get(key) == rest[0] and now_s < rest[1]}
        for key, each in found.items():
            if last.get(key) == each and key not in self._rests:
                self._rests[key] = (each, now_s + self._retry_s)
                if await self._consider(each):
                    self._rests[key] = (each, math.inf)

    async def _consider(self, seen: Look) -> bool:
        """Bring in files that are complete and at rest, unless that was done. False: it cannot be done now."""
        where = f"{seen.tenant}/{seen.name}"
        try:
            check_adapter_name(seen.name)
            async with self._database.acquire() as conn:
                tenants = await find_tenants(conn, seen.tenant)
            if len(tenants) == 1:
                return await self._bring_in(tenants[0], seen)
            self._tell("watched_folder_has_no_tenant", folder=where, num_tenants=len(tenants))
        except ValueError as error:
            self._tell("watched_folder_refused", folder=where, error=str(error))
        except Exception as error:  # whatever it is, the other adapters go on
            log.warning("watched_folder_failed", folder=where, error=repr(error))
        return False

    async def _bring_in(self, tenant: Tenant, seen: Look) -> bool:
        """Whether this is settled: taken in or refused, now or before."""
        fingerprint = seen.unread_fingerprint if seen.problem else await self._read(seen, None)
        if fingerprint is None:
            return False
        async with self._database.acquire() as conn:
            if fingerprint == await taken_fingerprint(conn, tenant.project_id, seen.name):
                return True
        if seen.problem:
            await self._refuse(tenant, seen, seen.problem)
        else:
            async with workspace(self._store) as folder:
                # These bytes are what counts: the files may have changed since.
                fingerprint = await self._read(seen, folder)
                if fingerprint is None:
                    return False
                await self._import(tenant, seen, folder)
        async with self._database.acquire() as conn:
            await note_taken(conn, tenant.project_id, seen.name, fingerprint)
        return True

    async def _read(self, seen: Look, into: Path | None) -> str | None:
        return await asyncio.to_thread(read, self._folder, seen, into)

    async def _import(self, tenant: Tenant, seen: Look, folder: Path) -> None:
        imported = await self._create(tenant, seen)
        try:
            await self._take_in(imported, folder)
        except Overloaded:
            raise  # it is no fault of the files
        except GatewayError as error:
            log.warning("watched_folder_refused", folder=f"{seen.tenant}/{seen.name}", error=error.message)
        else:
            log.info("watched_folder_taken_in", folder=f"{seen.tenant}/{seen.name}", id=imported.id)

    async def _refuse(self, tenant: Tenant, seen: Look, reason: str) -> None:
        imported = await self._create(tenant, seen)
        async with self._database.acquire() as conn:
            await end_import(conn, imported.id, "rejected", reason)
        log.warning("watched_folder_refused", folder=f"{seen.tenant}/{seen.name}", error=reason)

    async def _create(self, tenant: Tenant, seen: Look) -> ImportRow:
        author = Author(
            organization_id=tenant.organization_id, kind="system", id=SOURCE, email=None, address="", request_id=""
        )
        size_bytes = sum(stamp.size_bytes for stamp in seen.stamps)
        async with self._database.acquire() as conn:
            return await create_import(
                conn,
                tenant.project_id,
                name=seen.name,
                source=SOURCE,
                state="uploaded",
                promote=True,
                author=author,
                size_bytes=size_bytes,
            )

    def _tell(self, event: str, **fields: Any) -> None:
        """Once, however often it is looked at."""
        told = f"{event} {fields}"
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        if told not in self._told:
            self._told.add(told)
            log.warning(event, **fields)
