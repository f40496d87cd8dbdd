"""A project's adapters over HTTP: content becomes a version, and one of the versions is current."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from adapters.ref import check_adapter_name
from gateway.adapters.cooldown import check_not_paused, import_over_error
from gateway.adapters.intake import ImportedVersion
from gateway.adapters.presence import keep_alive
from gateway.adapters.verify import Verification
from gateway.adapters.workspace import workspace
from gateway.admin.access import LIST_QUERY, Nothing, needs, read_body
from gateway.admin.adapters.adapter_wire import (
    Adapter,
    AdapterImport,
    DeletedAdapter,
    PutAdapter,
    TenantsAdapter,
    adapter_fields,
    import_wire,
)
from gateway.admin.adapters.experiment_holds import check_not_in_experiment
from gateway.admin.adapters.upload import FORM, read_json, receive_adapter
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.adapters import adapter_imports, adapters, aliases
from gateway.db.adapters.adapter_imports import ImportRow
from gateway.db.adapters.adapter_versions import find_version, record_promotion
from gateway.db.experiments.arms import experiments_of_adapter
from gateway.db.limits.limits import max_storage_bytes
from gateway.db.organization import audit
from gateway.domain.adapters.sources import WrongSource
from gateway.domain.errors import Conflict, InvalidRequest, NotFound, Overloaded, QuotaExceeded
from gateway.domain.tenancy.permissions import projects_with
from gateway.http.shape import shape

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_AT_WORK = 16
"""The most imports of one project that are not over: each takes room on a gateway's disk."""

MAX_WRAPPING_BYTES = 16 << 10
"""Bytes by which a form or a tar archive may be larger than the two files in it."""


class AddFromSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to download an adapter from a source."""

    name: str
    source: Annotated[str, Meta(max_length=2048)]
    """An address that the operator allows, for example `hf://organization/repository`."""
    promote: bool = True
    """True if the version becomes current once it is ready."""
    base: Annotated[str, Meta(max_length=256)] | None = None
    """The base model that the adapter is for, where the gateway serves several."""


class AdapterController(Controller):
    """Endpoints for the adapters of a project."""

    path = "/projects/{project_id:str}/adapters"

    @get(opt=needs("adapters.read", query=LIST_QUERY))
    async def list_adapters(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Adapter]:
        """List the adapters of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and not await adapters.adapter_existed(conn, project_id, query.after):
                raise unknown_cursor(query.after)
            rows = await adapters.list_adapters(conn, project_id, after=query.after, limit=query.limit + 1)
        return page(
            [Adapter(**adapter_fields(row, services.bases, caller.organization_id)) for row in rows], query.limit
        )

    # The handler counts the bytes itself: an adapter is larger than any other body may be.
    @post(
        status_code=200,
        request_max_body_size=None,
        opt=needs("adapters.write", form=FORM, body=AddFromSource)
        | shape(reply=PutAdapter, accepted_reply=AdapterImport),
    )
    async def put_adapter(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Response[Any]:
        """Upload an adapter or, with a JSON body, let the server download it from a source.

        The content becomes a new version, and the current one once an engine has tried it, unless `promote` is false. A
        download is answered with status 202 and an import, which tells its result later.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
            imported = await _fetch_later(request, services, caller, project_id)
            return Response(imported, status_code=202)
        begun = await _begin_upload(request, services, caller, project_id)
        async with workspace(services.store) as folder:
            row, content = await _receive(request, services, caller, begun, folder)
            version = await services.lifecycle.intake.take_in(row, content)
        return Response(await put_answer(services, caller.organization_id, project_id, row.name, version))

    @get("/{name:str}", opt=needs("adapters.read"))
    async def get_adapter(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> Adapter:
        """Return an adapter."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await adapters.find_adapter(conn, project_id, name)
        if row is None:
            raise no_such_adapter(name)
        return Adapter(**adapter_fields(row, services.bases, caller.organization_id))

    @post("/{name:str}/rollback", status_code=200, opt=needs("adapters.write", body=Nothing))
    async def roll_back_adapter(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Adapter:
        """Make the version current that was current before. Rolling back twice leads back."""
        await read_body(request, Nothing)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await locked_adapter(conn, project_id, name)
            if before.previous_version is None:
                raise Conflict(
                    f"There is no version of '{name}' to roll back to: no other version was current before.",
                    param="name",
                )
            return await make_current(conn, services, caller, before, before.previous_version, "adapter.rolled_back")

    @delete("/{name:str}", status_code=200, opt=needs("adapters.write"))
    async def remove_adapter(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> DeletedAdapter:
        """Remove an adapter with all its versions, and the aliases that point at them.

        Content that no other adapter uses is deleted from the store soon.
        """
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await locked_adapter(conn, project_id, name)
            gone = [alias.name for alias in await aliases.list_aliases(conn, project_id) if alias.adapter == name]
            check_not_in_experiment(await experiments_of_adapter(conn, before.id), f"The adapter '{name}'")
            await adapters.remove_adapter(conn, project_id, name)
            shown = audited(before)
            await audit.record(
                conn, audit_author(caller), "adapter.deleted", before.id, project_id=project_id, before=shown
            )
        return DeletedAdapter(name, gone)


@get("/adapters", opt=needs("adapters.read", query=LIST_QUERY, in_any_project=True))
async def list_all_adapters(
    request: Request[Any, Any, Any], services: Services, caller: Caller
) -> Page[TenantsAdapter]:
    """List the adapters of every project whose adapters the caller may read, the oldest first."""
    query, project_ids = read_list_query(request.query_params), projects_with(caller, "adapters.read")
    organization_id = caller.organization_id
    async with services.database.acquire() as conn:
        if query.after and not await adapters.adapter_existed_in(conn, organization_id, project_ids, query.after):
            raise unknown_cursor(query.after)
        rows = await adapters.list_all_adapters(
            conn, organization_id, project_ids, after=query.after, limit=query.limit + 1
        )
    shown = [
        TenantsAdapter(
            **adapter_fields(row.adapter, services.bases, caller.organization_id),
            project_id=row.adapter.project_id,
            project_name=row.project_name,
        )
        for row in rows
    ]
    return page(shown, query.limit)


@post("/adapters/verify", status_code=200, opt=needs("adapters.write", body=Nothing))
async def verify_adapters(request: Request[Any, Any, Any], services: Services, caller: Caller) -> Verification:
    """Read the content of every adapter version again, and compare the store with the database."""
    await read_body(request, Nothing)
    return await services.lifecycle.verifier.verify(caller.organization_id)


async def _begin_upload(
    request: Request[Any, Any, Any], services: AdminServices, caller: Caller, project_id: str
) -> ImportRow:
    """Begin an upload, before its first byte is read: imports in progress are counted and bounded."""
    check_disk(services)
    announced = request.headers.get("content-length", "")
    async with services.database.transaction() as conn:
        await active_project(conn, caller.organization_id, project_id)
        await check_room(conn, project_id)
        await check_not_paused(conn, project_id)
        if announced.isascii() and announced.isdecimal():
            await check_storage(conn, caller.organization_id, project_id, int(announced), "file")
        return await adapter_imports.create_import(
            conn, project_id, name="", source="upload", state="receiving", promote=True, author=audit_author(caller)
        )


async def _receive(
    request: Request[Any, Any, Any], services: AdminServices, caller: Caller, begun: ImportRow, folder: Path
) -> tuple[ImportRow, Path]:
    """Receive an upload; return the import, which is ready to be taken in, and the folder with the content.

    An import whose body is no adapter is deleted.

    Raises as `receive_adapter`.
    """

    async def touch() -> None:
        async with services.database.acquire() as conn:
            await adapter_imports.touch_import(conn, begun.id)

    try:
        async with keep_alive(touch):
            uploaded = await receive_adapter(request, folder, services.max_adapter_bytes)
            check_name(uploaded.name)
            base_digest = digest_of_base(services, caller, begun.project_id, uploaded.base)
        async with services.database.acquire() as conn:
            row = await adapter_imports.set_uploaded(
                conn, begun.id, name=uploaded.name, promote=uploaded.promote, base_digest=base_digest
            )
            size_bytes = _size_bytes(uploaded.content)
            await adapter_imports.touch_import(conn, begun.id, received_bytes=size_bytes, size_bytes=size_bytes)
    except BaseException:
        async with services.database.acquire() as conn:
            await adapter_imports.drop_import(conn, begun.id)
        raise
    if row is None:
        raise import_over_error()
    return row, uploaded.content


def _size_bytes(content: Path) -> int:
    """Return the size in bytes of an archive, or of all files in a folder."""
    files = content.iterdir() if content.is_dir() else (content,)
    return sum(file.stat().st_size for file in files)


async def _fetch_later(
    request: Request[Any, Any, Any], services: AdminServices, caller: Caller, project_id: str
) -> AdapterImport:
    wanted = await read_json(request, AddFromSource, services.max_body_bytes)
    check_name(wanted.name)
    base_digest = digest_of_base(services, caller, project_id, wanted.base)
    try:
        services.sources.admit(wanted.source)
    except WrongSource as error:
        raise InvalidRequest(
            f"Invalid value for 'source': {error}.", param="source", code="source_not_allowed"
        ) from None
    check_disk(services)
    async with services.database.transaction() as conn:
        await active_project(conn, caller.organization_id, project_id)
        await check_room(conn, project_id)
        await check_not_paused(conn, project_id)
        row = await adapter_imports.create_import(
            conn,
            project_id,
            name=wanted.name,
            source=wanted.source,
            state="fetching",
            promote=wanted.promote,
            author=audit_author(caller),
            base_digest=base_digest,
        )
        shown = import_wire(row, services.bases, caller.organization_id)
        await audit.record(
            conn, audit_author(caller), "adapter_import.created", row.id, project_id=project_id, after=shown
        )
    return shown


def check_disk(services: AdminServices) -> None:
    """Check that the disk has room for uploads.

    Raises Overloaded: when it has not.
    """
    if services.disk.is_low():
        raise Overloaded("The server's disk is nearly full: no adapter can be added now.", code="storage_full")


async def check_room(conn: Connection, project_id: str) -> None:
    """Check how many imports of a project are in progress.

    Raises Conflict: when the project has `MAX_AT_WORK` imports in progress.
    """
    if await adapter_imports.num_at_work(conn, project_id) >= MAX_AT_WORK:
        raise Conflict(
            f"The project has {MAX_AT_WORK} imports in progress, the most there can be. Complete or cancel one.",
            code="too_many_imports",
        )


async def check_storage(
    conn: Connection, organization_id: str, project_id: str, announced_bytes: int, param: str
) -> None:
    """Check the size of a new adapter before it arrives.

    Bytes that are stored already are not added: only an inspection shows whether the new content is among them, and
    would count once.

    Raises QuotaExceeded: for an adapter that is larger than all that may be stored.
    """
    most = await max_storage_bytes(conn, organization_id, project_id)
    if most is not None and announced_bytes > most + MAX_WRAPPING_BYTES:
        raise QuotaExceeded(
            f"All adapters together may have {most} bytes here; this adapter alone has {announced_bytes}.",
            param=param,
        )


async def put_answer(
    services: AdminServices, organization_id: str, project_id: str, name: str, imported: ImportedVersion
) -> PutAdapter:
    """Return the answer to an upload.

    Raises NotFound: for an adapter that was removed meanwhile.
    """
    async with services.database.acquire() as conn:
        row = await adapters.find_adapter(conn, project_id, name)
    if row is None:
        raise no_such_adapter(name)
    return PutAdapter(
        **adapter_fields(row, services.bases, organization_id),
        uploaded_version=imported.version,
        version_state=imported.state,
        changed=imported.changed,
    )


async def make_current(
    conn: Connection, services: AdminServices, caller: Caller, before: adapters.AdapterRow, version: int, event: str
) -> Adapter:
    """Make a version of a locked adapter the current one, at the caller's wish.

    Raises Conflict: for a version that is not ready.
    """
    found = await find_version(conn, before.id, version)
    if found is None or found.state != "ready":
        state = found.state if found else "deleted"
        raise Conflict(
            f"Version {version} of '{before.name}' is '{state}'; only a version that is 'ready' can be promoted."
        )
    if found.current:
        await adapters.confirm_current(conn, before.id)
        return Adapter(**adapter_fields(before, services.bases, caller.organization_id))
    promotion = await adapters.next_promotion(conn, before.id)
    await record_promotion(conn, before.id, version, promotion)
    await adapters.promote(conn, before.id, version, promotion)
    after = await locked_adapter(conn, before.project_id, before.name)
    await audit.record(
        conn,
        audit_author(caller),
        event,
        before.id,
        project_id=before.project_id,
        before=audited(before),
        after=audited(after),
    )
    return Adapter(**adapter_fields(after, services.bases, caller.organization_id))


def audited(row: adapters.AdapterRow) -> dict[str, Any]:
    """Return an adapter for the audit log, without its settings, which may hold a system prompt.

    The adapter's current version is part of the entry.
    """
    return {
        "name": row.name,
        "version": row.version,
        "previous_version": row.previous_version,
        "digest": row.digest,
    }


async def locked_adapter(conn: Connection, project_id: str, name: str) -> adapters.AdapterRow:
    """Return an adapter of the project by its name, locked until the transaction ends.

    Raises NotFound: when the project has no such adapter.
    """
    row = await adapters.lock_adapter(conn, project_id, name)
    if row is None:
        raise no_such_adapter(name)
    return row


def check_name(name: str) -> None:
    """Check the name of an adapter.

    Raises InvalidRequest: when an adapter cannot have this name.
    """
    try:
        check_adapter_name(name)
    except ValueError as error:
        raise InvalidRequest(f"{error}.", param="name", code="invalid_value") from None


def digest_of_base(services: AdminServices, caller: Caller, project_id: str, name: str | None) -> str | None:
    """Return the digest of the base model of this name; None stays None.

    Raises InvalidRequest: when the project may use no pool of the name.
    """
    if name is None:
        return None
    visible = services.bases.visible(project_id, caller.organization_id)
    base = visible.get(name)
    if base is None:
        known = ", ".join(f"'{each}'" for each in visible)
        raise InvalidRequest(
            f"Invalid value for 'base': expected the name of a base model that is served: {known}.",
            param="base",
            code="invalid_value",
        )
    return base.digest


def no_such_adapter(name: str) -> NotFound:
    """Return the error about an adapter that the project does not have."""
    return NotFound(f"The project has no adapter named '{name}'.", param="name")
