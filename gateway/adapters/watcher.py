"""The watched folder: files in <folder>/<tenant>/<adapter>/ become that tenant's adapter, changes new versions.

All content goes through the one intake. One gateway of all watches; another takes over when its database session ends.
A tenant is meant by its id or, where no other has it, its name; a folder stays with its first tenant. An adapter is
taken in when both files are there and have not changed between two looks. This happens once: files that were taken in,
or refused for their content, are left alone, also after a restart. Folders that go away remove nothing. Knows nothing
of safe reading (`gateway.adapters.watched_files`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from adapters.ref import check_adapter_name
from adapters.store import AdapterStore
from gateway.adapters.cooldown import check_not_paused
from gateway.adapters.watched_files import AdapterFiles, find_adapters, read_and_copy
from gateway.adapters.workspace import workspace
from gateway.db.adapters.adapter_imports import ImportRow, create_import, end_import
from gateway.db.adapters.watched import Tenant, bind_folder, note_taken, taken_fingerprint
from gateway.db.organization.audit import Author
from gateway.db.pool import Database
from gateway.db.turns import WATCHING, Turn
from gateway.domain.errors import GatewayError, InvalidRequest, UploadsPaused
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

POLL_S = 2.0
RETRY_S = 30.0
"""Seconds until an adapter without a fault of its own is tried again; twice as long after each failed import, since
each import leaves a row in the database."""
MAX_RETRY_S = 3600.0

SOURCE = "folder"
MAX_REPORTED = 1000

TakeIn = Callable[[ImportRow, Path], Awaitable[object]]
"""The function `Intake.take_in`: it records the import's end itself.

Raises InvalidRequest: when the files are refused. Raises another GatewayError: when they cannot be taken in now, for
instance because a quota is full; the same files may be taken in later.
"""

Outcome = Literal["settled", "waits", "failed"]
"""The result of looking at one adapter's files.

settled: the files were taken in or refused, now or before. waits: nothing was begun. failed: an import of the files
ended in an error, and is tried again.
"""


class _Skipped(msgspec.Struct, frozen=True):
    """Files that were imported or could not be, and the time until which they are left alone unless they change."""

    files: AdapterFiles
    until_s: float
    """The time in seconds of the event loop's clock."""
    num_failed: int
    """The number of imports of these files that have failed, one after the other."""


class Watcher(Worker):
    """Watches the folder between `start` and `stop`.

    A gateway process has one. max_bytes: the most bytes of an adapter.
    """

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
        super().__init__(self._watch, poll_s, name="watched folder")
        self._database = database
        self._folder = folder
        self._take_in = take_in
        self._store = store
        self._max_bytes = max_bytes
        self._retry_s = retry_s
        self._last: dict[tuple[str, str], AdapterFiles] = {}
        self._skipped: dict[tuple[str, str], _Skipped] = {}
        self._turn = Turn(database, WATCHING)
        self._reported: set[str] = set()

    async def stop(self) -> None:
        """Stop watching, and let another gateway take over."""
        await super().stop()
        self._turn.release()

    async def _watch(self) -> None:
        """Look through the watched folder if it is this gateway's turn to watch."""
        if not await self._turn.is_mine():
            return
        try:
            await self._poll()
        except OSError as error:
            self._report("watched_folder_unavailable", folder=str(self._folder), error=str(error))

    async def _poll(self) -> None:
        found = {
            (each.tenant, each.name): each
            for each in await asyncio.to_thread(find_adapters, self._folder, self._max_bytes)
        }
        last, self._last = self._last, found
        now_s = asyncio.get_running_loop().time()
        self._skipped = {key: rest for key, rest in self._skipped.items() if found.get(key) == rest.files}
        for key, each in found.items():
            rest = self._skipped.get(key)
            if last.get(key) == each and (rest is None or rest.until_s <= now_s):
                num_failed = rest.num_failed if rest else 0
                self._skipped[key] = self._skipped_after(each, now_s, num_failed, await self._consider(each))

    def _skipped_after(self, files: AdapterFiles, now_s: float, num_failed: int, outcome: Outcome) -> _Skipped:
        if outcome == "settled":
            return _Skipped(files, math.inf, 0)
        if outcome == "waits":
            return _Skipped(files, now_s + self._retry_s, num_failed)
        pause_s = min(self._retry_s * 2.0 ** min(num_failed, 32), MAX_RETRY_S)
        return _Skipped(files, now_s + pause_s, num_failed + 1)

    async def _consider(self, seen: AdapterFiles) -> Outcome:
        """Import files that are complete and have not changed since the last look, unless they were imported."""
        where = f"{seen.tenant}/{seen.name}"
        try:
            check_adapter_name(seen.name)
            async with self._database.acquire() as conn:
                tenant = await bind_folder(conn, seen.tenant)
            if tenant is not None:
                return await self._bring_in(tenant, seen)
            self._report("watched_folder_has_no_tenant", folder=where)
        except ValueError as error:
            self._report("watched_folder_refused", folder=where, error=str(error))
        except Exception as error:  # whatever it is, the other adapters go on
            log.warning("watched_folder_failed", folder=where, error=repr(error))
            return "failed"
        return "waits"

    async def _bring_in(self, tenant: Tenant, seen: AdapterFiles) -> Outcome:
        fingerprint = seen.unread_fingerprint if seen.problem else await self._read(seen, None)
        if fingerprint is None:
            return "waits"
        async with self._database.acquire() as conn:
            if fingerprint == await taken_fingerprint(conn, tenant.project_id, seen.name):
                return "settled"
            if not seen.problem:
                try:
                    await check_not_paused(conn, tenant.project_id)
                except UploadsPaused:
                    return "waits"
        if seen.problem:
            await self._refuse(tenant, seen, seen.problem)
        else:
            async with workspace(self._store) as folder:
                # These bytes decide: the files may have changed since.
                fingerprint = await self._read(seen, folder)
                if fingerprint is None:
                    return "waits"
                if not await self._import(tenant, seen, folder):
                    return "failed"
        async with self._database.acquire() as conn:
            await note_taken(conn, tenant.project_id, seen.name, fingerprint)
        return "settled"

    async def _read(self, seen: AdapterFiles, into: Path | None) -> str | None:
        return await asyncio.to_thread(read_and_copy, self._folder, seen, into)

    async def _import(self, tenant: Tenant, seen: AdapterFiles, folder: Path) -> bool:
        """Import a folder. Return False where the import ended for reasons other than the files."""
        imported = await self._create(tenant, seen)
        where = f"{seen.tenant}/{seen.name}"
        try:
            await self._take_in(imported, folder)
        except InvalidRequest as error:
            log.warning("watched_folder_refused", folder=where, error=error.message)
        except GatewayError as error:
            log.warning("watched_folder_taken_in_later", folder=where, error=error.message)
            return False
        else:
            log.info("watched_folder_taken_in", folder=where, id=imported.id)
        return True

    async def _refuse(self, tenant: Tenant, seen: AdapterFiles, reason: str) -> None:
        imported = await self._create(tenant, seen)
        async with self._database.acquire() as conn:
            await end_import(conn, imported.id, "rejected", reason)
        log.warning("watched_folder_refused", folder=f"{seen.tenant}/{seen.name}", error=reason)

    async def _create(self, tenant: Tenant, seen: AdapterFiles) -> ImportRow:
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

    def _report(self, event: str, **fields: Any) -> None:
        """Log an event, unless the same one was logged before."""
        line = f"{event} {fields}"
        if len(self._reported) >= MAX_REPORTED:
            self._reported.clear()
        if line not in self._reported:
            self._reported.add(line)
            log.warning(event, **fields)
