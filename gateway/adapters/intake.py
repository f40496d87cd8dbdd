"""The one way by which content becomes a version of an adapter, tried by an engine.

Uploads, fetched sources and the watched folder all end here. Knows nothing of HTTP, nor of where the content came from.

Content is inspected and kept first and referred to then, in a transaction in which nothing leaves the store: whoever
dies in between leaves content that nobody refers to, which the collector takes away. No step is skipped for content
that the store has already, so that the time of an upload does not show whether others have it. A collector that has
lost its lock may still be removing content from a remote store, so the content is looked for once more after the
reference is made, and put back if it is gone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import structlog

from adapters.errors import AdapterRejected, StoreFailure
from adapters.inspection import NICENESS, NICENESS_OF_SUSPECTS, BaseShape, Bounds, Report, inspect
from adapters.sandbox.run import SandboxBroken
from adapters.store import AdapterStore
from gateway.adapters.cooldown import begin_if_due, import_over_error
from gateway.adapters.inspection_queue import InspectionQueue
from gateway.adapters.presence import keep_alive
from gateway.adapters.prober import Prober
from gateway.adapters.workspace import Leftovers, workspace
from gateway.db.adapters import adapter_imports
from gateway.db.adapters.adapter_imports import ImportRow
from gateway.db.adapters.adapter_versions import Content, PutVersion, VersionState, find_version, put_version
from gateway.db.adapters.adapters import OtherBase, find_adapter
from gateway.db.adapters.contents import store_shared
from gateway.db.adapters.refused_adapters import pass_inspection, put_off_import
from gateway.db.limits.limits import exceeded_storage, lock_storage
from gateway.db.organization import audit
from gateway.db.organization.projects import lock_project
from gateway.db.pool import Database
from gateway.domain.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    Overloaded,
    QuotaExceeded,
    UploadsPaused,
)
from gateway.domain.routing.bases import Bases

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Inspect(Protocol):
    """The function `adapters.inspection.inspect`."""

    async def __call__(self, path: Path, into: Path, base: BaseShape, bounds: Bounds, *, niceness: int) -> Report:
        """Inspect the content at `path`, and unpack what is accepted into the folder `into`.

        niceness: the niceness of the process that inspects.
        """


Again = Literal["receiving", "fetching"]

UNAVAILABLE = "The server cannot inspect or store adapters at the moment. Try again later."
OTHER_BASE = "The tenant has an adapter of this name for another base model. Remove that adapter, or use another name."
NO_ROOM = "The disk of the server is full."
RETRY_AFTER_S = 10.0
_FULL = (errno.ENOSPC, errno.EDQUOT)

ASK_AGAIN_S = 0.2
"""Seconds between two questions whether other machines still inspect adapters of the project."""

MAX_REFERRING = 2
"""The most imports at once, in each gateway, that add a reference to content: each holds a connection while the store
is asked, and some stores are far away."""

log = structlog.get_logger(__name__)


class ImportedVersion(msgspec.Struct, frozen=True):
    """The result of an import: the version of an adapter that has its content."""

    adapter_id: str
    version: int
    state: VersionState
    """"ready", or "inspected" while no engine is there to try the version."""
    changed: bool
    """True if the version is new, or became (or is to become) the current one."""


class Intake:
    """Makes versions of adapters from content, for any base model that is served.

    bases: the base models; each is registered in the database. bounds: the largest content. queue: gives the turns of
    inspections.
    """

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        prober: Prober,
        *,
        bases: Bases,
        bounds: Bounds,
        queue: InspectionQueue,
        inspect: Inspect = inspect,
    ) -> None:
        self._database = database
        self._store = store
        self._prober = prober
        self._bases = bases
        self._bounds = bounds
        self._inspect = inspect
        self._queue = queue
        self._referring = asyncio.Semaphore(MAX_REFERRING)
        self._leftovers = Leftovers()

    async def take_in(self, imported: ImportRow, content: Path, *, again: Again | None = None) -> ImportedVersion:
        """Make an import in the state 'uploaded' a version: inspect its content, store it, and probe the version.

        The import's end is recorded on it, whatever the end is.
        content: a folder with PEFT's two files, or an archive; the caller deletes it.
        again: the state to which the import returns where the project is paused, so that it comes again; None: it fails
        then.

        Raises InvalidRequest: when the content is refused; the code is adapter_rejected, and the message has every
        reason.
        Raises QuotaExceeded: when all adapters of the project or organization together would be larger than they may
        be.
        Raises Conflict: when the project is archived or the import is over.
        Raises UploadsPaused: when too many imports of the project were refused.
        Raises Overloaded: when the store does not answer, the disk is full, or too many imports wait.
        """
        try:
            async with keep_alive(lambda: self._touch_import(imported)):
                put = await self._keep_and_refer(imported, content)
        except AdapterRejected as error:
            await self._end_import(imported, "rejected", str(error))
            raise _rejection(str(error)) from None
        except (StoreFailure, SandboxBroken) as error:
            log.error("adapter_not_taken_in", import_id=imported.id, error=str(error))
            await self._end_import(imported, "failed", UNAVAILABLE)
            raise Overloaded(UNAVAILABLE, retry_after_s=RETRY_AFTER_S) from None
        except UploadsPaused as error:
            await self._put_off(imported, again, error)
            raise
        except GatewayError as error:
            await self._end_import(
                imported, "rejected" if isinstance(error, QuotaExceeded) else "failed", error.message
            )
            raise
        if put.state != "ready":
            await self._prober.probe(put.adapter_id, put.version, mine=put.is_new)
        async with self._database.acquire() as conn:
            version = await find_version(conn, put.adapter_id, put.version)
        if version is None:
            raise Conflict(
                "The adapter was removed while this version was being added. Upload it again to create it anew.",
                param="name",
            )
        if version.state == "rejected":
            raise _rejection(version.reason or "The engine refused the adapter.")
        return ImportedVersion(put.adapter_id, put.version, version.state, put.changed)

    async def _keep_and_refer(self, imported: ImportRow, content: Path) -> PutVersion:
        """Inspect the content, keep it in the store and make the version that refers to it.

        No connection is held while files are read. Content that was collected before anything referred to it is put
        into the store again, and so is content that was lost.
        """
        put: PutVersion | None = None
        base, shape = await self._base_of(imported)
        while put is None:
            async with self._admitted(imported) as niceness:
                report = await self._inspect_and_keep(content, shape, niceness)
            async with self._referring, self._database.acquire() as conn, store_shared(conn):
                if await self._holds(report.digest):
                    put = await self._make_version(conn, imported, base, report)
        if not await self._holds(report.digest):
            async with self._queue.turn(imported.project_id):
                await self._inspect_and_keep(content, shape, NICENESS)
        return put

    async def _base_of(self, imported: ImportRow) -> tuple[str, BaseShape]:
        """Return the base that content is for, by digest and shape.

        The base is the announced one, or the one of the adapter that has the name already, or the default.

        Raises Conflict: when that base is not served here, so that nothing can be inspected for it.
        """
        base = imported.base_digest
        if base is None:
            async with self._database.acquire() as conn:
                adapter = await find_adapter(conn, imported.project_id, imported.name)
            base = adapter.base_digest if adapter is not None else None
        if base is None:
            default = self._bases.default_for(imported.project_id, imported.author.organization_id)
            base = default.digest if default is not None else None
        shape = self._bases.shape_of(base) if base is not None else None
        if base is None or shape is None:
            raise Conflict(OTHER_BASE, param="name", code="adapter_of_other_base")
        return base, shape

    @asynccontextmanager
    async def _admitted(self, imported: ImportRow) -> AsyncIterator[int]:
        """Wait for the import's turn to be inspected, and give the niceness to inspect it with.

        The number of refusals is read again at that moment, when no other import is inspected on this machine: any
        number of uploads may have begun before the first was refused.

        Raises as `begin_if_due` and `InspectionQueue.turn`.
        """
        while True:
            async with self._queue.turn(imported.project_id):
                async with self._database.transaction() as conn:
                    num_refused = await begin_if_due(conn, imported)
                if num_refused is not None:
                    yield NICENESS_OF_SUSPECTS if num_refused else NICENESS
                    async with self._database.acquire() as conn:
                        await pass_inspection(conn, imported.project_id, imported.id)
                    return
            await asyncio.sleep(ASK_AGAIN_S)

    async def _holds(self, digest: str) -> bool:
        return await asyncio.to_thread(self._store.holds, digest)

    async def _inspect_and_keep(self, content: Path, shape: BaseShape, niceness: int) -> Report:
        """Inspect content in the sandbox, move it into the store, and return the report.

        shape: the shape of the base model that the content has to fit. niceness: the niceness of the process that
        inspects.

        Raises AdapterRejected: when the content is refused.
        Raises StoreFailure or SandboxBroken: when the store or the sandbox fails.
        Raises Overloaded: when files cannot be written.
        """
        try:
            async with workspace(self._store, self._leftovers) as folder:
                into = folder / "adapter"
                into.mkdir(mode=0o700)
                report = await self._inspect(content, into, shape, self._bounds, niceness=niceness)
                await asyncio.to_thread(self._store.keep, into, report.digest)
                return report
        except OSError as error:
            log.error("adapter_not_written", error=str(error))
            raise Overloaded(NO_ROOM if error.errno in _FULL else UNAVAILABLE, retry_after_s=RETRY_AFTER_S) from None

    async def _make_version(self, conn: Connection, imported: ImportRow, base: str, report: Report) -> PutVersion:
        author, project_id = imported.author, imported.project_id
        project = await lock_project(conn, author.organization_id, project_id)
        if project is None or project.archived_at is not None:
            raise Conflict(
                "The project is archived and takes no more adapters.", param="project_id", code="project_archived"
            )
        await lock_storage(conn, author.organization_id, project_id)
        content = Content(report.digest, report.rank, report.size_bytes, msgspec.json.encode(report).decode())
        try:
            put = await put_version(
                conn,
                project_id,
                imported.name,
                content,
                base_digest=base,
                source=imported.source,
                promoted=imported.promote,
                claimed=self._prober.is_ready(base),
            )
        except OtherBase:
            raise Conflict(OTHER_BASE, param="name", code="adapter_of_other_base") from None
        if put.is_new:
            await _check_storage(conn, author.organization_id, project_id)
        if not await adapter_imports.finish_import(conn, imported.id, put.adapter_id, put.version):
            raise import_over_error()
        await _record(conn, imported, put, report)
        return put

    async def _touch_import(self, imported: ImportRow) -> None:
        async with self._database.acquire() as conn:
            await adapter_imports.touch_import(conn, imported.id)

    async def _put_off(self, imported: ImportRow, again: Again | None, error: UploadsPaused) -> None:
        if again is None:
            await self._end_import(imported, "failed", error.message)
            return
        async with self._database.acquire() as conn:
            await put_off_import(conn, imported.project_id, imported.id, again, error.retry_after_s or 0.0)

    async def _end_import(self, imported: ImportRow, state: Literal["rejected", "failed"], reason: str) -> None:
        async with self._database.acquire() as conn:
            await adapter_imports.end_import(conn, imported.id, state, reason)


async def _check_storage(conn: Connection, organization_id: str, project_id: str) -> None:
    """Check the bytes of all stored adapters against the limits of the project and of the organization.

    Raises QuotaExceeded: when there are more; the caller's transaction is undone then.
    """
    exceeded = await exceeded_storage(conn, organization_id, project_id)
    if exceeded is not None:
        limit, stored = exceeded
        raise QuotaExceeded(
            f"All adapters of this {limit.scope} together may have {limit.max} bytes; with this adapter they would "
            f"have {stored}.",
            param="file",
        )


async def _record(conn: Connection, imported: ImportRow, put: PutVersion, report: Report) -> None:
    """Write to the audit log what an import changed: a new adapter, a new or promoted version, or nothing."""
    shown: dict[str, Any] = {"name": imported.name, "version": put.version, "digest": report.digest}
    shown |= {"source": imported.source, "promote": imported.promote, "import_id": imported.id}
    event = "adapter.promoted" if put.state == "ready" else "adapter_version.updated"
    if put.is_new:
        event = "adapter_version.created"
    for name in ("adapter.created",) * put.is_new_adapter + (event,) * put.changed:
        after = {"name": imported.name} if name == "adapter.created" else shown
        await audit.record(conn, imported.author, name, put.adapter_id, project_id=imported.project_id, after=after)


def _rejection(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, param="file", code="adapter_rejected")
