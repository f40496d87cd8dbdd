"""A project's adapters over HTTP: uploaded, checked against the base model, stored by content, versioned by name."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from adapters.errors import AdapterMissing, AdapterRejected
from adapters.peft_format import check_fit, check_rank, read_adapter
from adapters.ref import check_adapter_name
from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.common import author
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.projects import active_project, existing_project
from gateway.admin.services import AdminServices, Caller, Services
from gateway.admin.upload import FORM, receive_adapter
from gateway.db import adapters, audit
from gateway.db.limits import exceeded_storage
from gateway.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from gateway.tenancy.actor import Actor

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Adapter(msgspec.Struct, frozen=True):
    """model: the id under which the project's keys reach it. created_at in Unix seconds."""

    id: str
    name: str
    model: str
    version: int
    digest: str
    rank: int
    size_bytes: int
    created_at: int
    object: Literal["organization.project.adapter"] = "organization.project.adapter"


class PutAdapter(Adapter, frozen=True, kw_only=True):
    """changed: false if this content was the current version already."""

    changed: bool


class DeletedAdapter(msgspec.Struct, frozen=True):
    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.deleted"] = "organization.project.adapter.deleted"


class AdapterController(Controller):
    path = "/projects/{project_id:str}/adapters"

    @get(opt=needs("adapters.read", query=LIST_QUERY))
    async def list_adapters(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Adapter]:
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and not await adapters.adapter_existed(conn, project_id, query.after):
                raise unknown_cursor(query.after)
            rows = await adapters.list_adapters(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([Adapter(**_fields(row, services.model_name)) for row in rows], query.limit)

    # The handler counts the bytes itself: an adapter is larger than any other body may be.
    @post(status_code=200, request_max_body_size=None, opt=needs("adapters.write", form=FORM))
    async def put_adapter(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> PutAdapter:
        """Upload an adapter. The same name with other content becomes a new version and the current one."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        services.upload_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=services.upload_dir) as upload:
            name = await receive_adapter(request, Path(upload), services.max_adapter_bytes)
            try:
                check_adapter_name(name)
            except ValueError as error:
                raise InvalidRequest(f"{error}.", param="name", code="invalid_value") from None
            row, changed = await _store(services, caller, project_id, name, Path(upload))
        return PutAdapter(**_fields(row, services.model_name), changed=changed)

    @delete("/{name:str}", status_code=200, opt=needs("adapters.write"))
    async def remove_adapter(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> DeletedAdapter:
        """Remove an adapter with all its versions. Content that no other adapter uses leaves the store."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await adapters.find_adapter(conn, project_id, name)
            digests = await adapters.remove_adapter(conn, project_id, name)
            if before is None or digests is None:
                raise NotFound(f"The project has no adapter named '{name}'.", param="name")
            shown = Adapter(**_fields(before, services.model_name))
            await audit.record(conn, author(caller), "adapter.deleted", before.id, project_id=project_id, before=shown)
        await discard_content(services, digests)
        return DeletedAdapter(name)


async def discard_content(services: AdminServices, digests: Sequence[str]) -> None:
    """Take those that no adapter uses any more out of the backends and the store."""
    async with services.database.acquire() as conn:
        unreferenced = await adapters.unreferenced_digests(conn, digests)
    for digest in unreferenced:
        await services.on_adapter_removed(digest)
    await _discard_unused(services, unreferenced)


async def _store(
    services: AdminServices, caller: Actor, project_id: str, name: str, upload: Path
) -> tuple[adapters.AdapterRow, bool]:
    """Check the files, put them into the store and, once they are there, refer to them.

    No connection is held while files are read. Content is referred to in a transaction in which nothing leaves the
    store; what was removed just before it, because nobody referred to it yet, is put there again.
    """
    digest = ""
    try:
        while True:
            async with services.file_slots:
                digest, rank = await asyncio.to_thread(_take_in, services, upload)
            async with services.database.acquire() as conn, adapters.store_shared(conn):
                if services.store.holds(digest):
                    return await _put(conn, services, caller, project_id, name, digest, rank)
    except AdapterRejected as error:
        raise InvalidRequest(str(error), param="file", code="adapter_rejected") from None
    except (Conflict, NotFound, QuotaExceeded):
        await _discard_unused(services, [digest])
        raise


async def _put(
    conn: Connection, services: AdminServices, caller: Actor, project_id: str, name: str, digest: str, rank: int
) -> tuple[adapters.AdapterRow, bool]:
    """In a transaction in which nothing leaves the store."""
    await active_project(conn, caller.organization_id, project_id)
    before = await adapters.find_adapter(conn, project_id, name)
    size_bytes = services.store.size_bytes(digest)
    row, changed = await adapters.put_adapter(conn, project_id, name, digest=digest, rank=rank, size_bytes=size_bytes)
    if changed:
        await _check_storage(conn, caller.organization_id, project_id)
        shown = Adapter(**_fields(before, services.model_name)) if before else None
        after = Adapter(**_fields(row, services.model_name))
        event = "adapter.updated" if before else "adapter.created"
        await audit.record(conn, author(caller), event, row.id, project_id=project_id, before=shown, after=after)
    return row, changed


async def _discard_unused(services: AdminServices, digests: Sequence[str]) -> None:
    """Content that nobody refers to leaves the store."""
    async with services.database.acquire() as conn, adapters.store_exclusive(conn):
        # Somebody may have uploaded the same content since.
        for digest in await adapters.unreferenced_digests(conn, digests):
            await asyncio.to_thread(_discard, services, digest)


async def _check_storage(conn: Connection, organization_id: str, project_id: str) -> None:
    """Raises QuotaExceeded, which undoes what was stored just now."""
    exceeded = await exceeded_storage(conn, organization_id, project_id)
    if exceeded is not None:
        limit, stored = exceeded
        raise QuotaExceeded(
            f"The adapters of this {limit.scope} may have {limit.max} bytes; with this one they would have {stored}.",
            param="file",
        )


def _take_in(services: AdminServices, upload: Path) -> tuple[str, int]:
    """Digest and rank. Raises AdapterRejected for what is no adapter of this base model."""
    adapter = read_adapter(upload)
    check_fit(adapter, services.model_config.adapter_targets(), services.model_config.num_layers)
    check_rank(adapter, services.max_adapter_rank)
    return services.store.add(upload), adapter.rank_max


def _discard(services: AdminServices, digest: str) -> None:
    try:
        services.store.remove(digest)
    except AdapterMissing:
        return  # gone is what was wanted


def _fields(row: adapters.AdapterRow, model_name: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "model": f"{model_name}:{row.name}",
        "version": row.version,
        "digest": row.digest,
        "rank": row.rank,
        "size_bytes": row.size_bytes,
        "created_at": int(row.created_at.timestamp()),
    }
