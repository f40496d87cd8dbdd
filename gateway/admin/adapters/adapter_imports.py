"""Imports of adapters over HTTP: their list, and uploads that go on where they stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, patch, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.adapters.cooldown import check_not_paused
from gateway.adapters.intake import ImportedVersion
from gateway.adapters.uploads import OFFSET_HEADER
from gateway.admin.access import LIST_QUERY, Nothing, needs, read_body
from gateway.admin.adapters.adapter_wire import AdapterImport, PutAdapter, import_wire
from gateway.admin.adapters.adapters import (
    check_disk,
    check_name,
    check_room,
    check_storage,
    digest_of_base,
    put_answer,
)
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.adapters import adapter_imports
from gateway.db.adapters.adapter_imports import ImportRow
from gateway.db.adapters.adapter_versions import find_version
from gateway.db.organization import audit
from gateway.domain.errors import Conflict, InvalidRequest, NotFound, UploadsPaused
from gateway.http.upload_body import bounded_chunks

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_OFFSET_DIGITS = 16


class CreateAdapterImport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The announcement of a resumable upload of an archive."""

    name: str
    size_bytes: Annotated[int, Meta(ge=1, le=2**50)]
    """The size of the archive. More bytes are refused."""
    promote: bool = True
    """True if the version becomes current once it is ready."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """The SHA-256 of the archive in hexadecimal. Other bytes are refused."""
    base: Annotated[str, Meta(max_length=256)] | None = None
    """The base model that the adapter is for, where the gateway serves several."""


class AdapterImportController(Controller):
    """Endpoints for the adapter imports of a project, and for resumable uploads."""

    path = "/projects/{project_id:str}/adapter_imports"

    @get(opt=needs("adapters.read", query=LIST_QUERY))
    async def list_adapter_imports(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[AdapterImport]:
        """List the adapter imports of a project, the newest first. Imports that ended are listed for up to a month."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await adapter_imports.find_import(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await adapter_imports.list_imports(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([import_wire(row, services.bases, caller.organization_id) for row in rows], query.limit)

    @post(status_code=200, opt=needs("adapters.write", body=CreateAdapterImport))
    async def create_adapter_import(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> AdapterImport:
        """Begin a resumable upload of an archive. The upload expires a day after its last byte."""
        wanted = await read_body(request, CreateAdapterImport)
        check_name(wanted.name)
        base_digest = digest_of_base(services, caller, project_id, wanted.base)
        if wanted.size_bytes > services.max_adapter_bytes:
            raise wrong_value("size_bytes", f"an adapter may have at most {services.max_adapter_bytes} bytes")
        check_disk(services)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            await check_room(conn, project_id)
            await check_not_paused(conn, project_id)
            await check_storage(conn, caller.organization_id, project_id, wanted.size_bytes, "size_bytes")
            row = await adapter_imports.create_import(
                conn,
                project_id,
                name=wanted.name,
                source="upload",
                state="receiving",
                promote=wanted.promote,
                author=audit_author(caller),
                size_bytes=wanted.size_bytes,
                sha256=wanted.sha256,
                base_digest=base_digest,
            )
            shown = import_wire(row, services.bases, caller.organization_id)
            event = "adapter_import.created"
            await audit.record(conn, audit_author(caller), event, row.id, project_id=project_id, after=shown)
        return shown

    @get("/{import_id:str}", opt=needs("adapters.read"))
    async def get_adapter_import(
        self, project_id: FromPath[str], import_id: FromPath[str], services: Services, caller: Caller
    ) -> AdapterImport:
        """Return an adapter import."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return import_wire(await _existing(conn, project_id, import_id), services.bases, caller.organization_id)

    # The announced size bounds the body.
    @patch(
        "/{import_id:str}",
        status_code=200,
        request_max_body_size=None,
        opt=needs("adapters.write", headers=(OFFSET_HEADER,), raw=True),
    )
    async def append_to_adapter_import(
        self,
        project_id: FromPath[str],
        import_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> AdapterImport:
        """Add bytes to a resumable upload, at the offset that the header names.

        The offset is the import's `received_bytes`. Bytes that arrived before a connection broke are kept.
        """
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await _existing(conn, project_id, import_id)
            await check_not_paused(conn, project_id)
        offset = _offset(request)
        check_disk(services)
        await services.lifecycle.uploads.append(row, offset, bounded_chunks(request, services.max_adapter_bytes))
        async with services.database.acquire() as conn:
            return import_wire(await _existing(conn, project_id, import_id), services.bases, caller.organization_id)

    @post("/{import_id:str}/complete", status_code=200, opt=needs("adapters.write", body=Nothing))
    async def complete_adapter_import(
        self,
        project_id: FromPath[str],
        import_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> PutAdapter:
        """Complete a resumable upload after its last byte.

        The reply is that of an upload in one piece. An import that has ended is answered with its result.
        """
        await read_body(request, Nothing)
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await _existing(conn, project_id, import_id)
            if row.state == "receiving" and row.received_bytes != row.size_bytes:
                come = "Not all" if row.size_bytes is None else f"Only {row.received_bytes} of {row.size_bytes}"
                raise Conflict(
                    f"{come} bytes have arrived. Send the rest, then complete the import.", code="upload_incomplete"
                )
            mine = None
            if row.state == "receiving":
                await check_not_paused(conn, project_id)
                services.lifecycle.uploads.whole_file(row)
                mine = await adapter_imports.set_uploaded(conn, import_id)
        if mine is None:
            return await _answer_again(services, row)
        try:
            content = await services.lifecycle.uploads.verified_file(mine)
            imported = await services.lifecycle.intake.take_in(mine, content, again="receiving")
        except UploadsPaused:
            raise  # it may be completed later
        except BaseException:
            services.lifecycle.uploads.discard(mine)
            raise
        services.lifecycle.uploads.discard(mine)
        return await put_answer(services, caller.organization_id, project_id, mine.name, imported)

    @delete("/{import_id:str}", status_code=200, opt=needs("adapters.write"))
    async def cancel_adapter_import(
        self, project_id: FromPath[str], import_id: FromPath[str], services: Services, caller: Caller
    ) -> AdapterImport:
        """Cancel an adapter import that has not ended."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await _existing(conn, project_id, import_id)
            if not await adapter_imports.end_import(conn, import_id, "failed", "canceled"):
                raise Conflict(
                    f"This import has ended and is '{before.state}'; only an import in progress can be canceled.",
                    param="import_id",
                )
            after = import_wire(await _existing(conn, project_id, import_id), services.bases, caller.organization_id)
            event, shown = "adapter_import.canceled", import_wire(before, services.bases, caller.organization_id)
            await audit.record(
                conn, audit_author(caller), event, import_id, project_id=project_id, before=shown, after=after
            )
        services.lifecycle.uploads.discard(before)
        return after


async def _answer_again(services: AdminServices, row: ImportRow) -> PutAdapter:
    """Return the answer to a client that repeats a request because it did not get the first answer.

    Raises InvalidRequest: when the import or its version was rejected.
    Raises Conflict: when the import runs still or has failed, or its version was deleted.
    """
    if row.state == "rejected":
        raise InvalidRequest(row.reason or "", param="file", code="adapter_rejected")
    if row.adapter_id is None or row.version is None:
        state = "is still in progress" if row.state in adapter_imports.AT_WORK else f"failed: {row.reason}"
        raise Conflict(f"This import {state}.", param="import_id")
    async with services.database.acquire() as conn:
        version = await find_version(conn, row.adapter_id, row.version)
    if version is None:
        raise Conflict("The adapter version that this import made was deleted.", param="import_id")
    if version.state == "rejected":
        raise InvalidRequest(version.reason or "", param="file", code="adapter_rejected")
    imported = ImportedVersion(row.adapter_id, row.version, version.state, changed=False)
    return await put_answer(services, row.author.organization_id, row.project_id, row.name, imported)


async def _existing(conn: Connection, project_id: str, import_id: str) -> ImportRow:
    """Return an import of the project.

    Raises NotFound: when the project has no import with this id.
    """
    row = await adapter_imports.find_import(conn, project_id, import_id)
    if row is None:
        raise NotFound(f"The project has no import with the id '{import_id}'.", param="import_id")
    return row


def _offset(request: Request[Any, Any, Any]) -> int:
    """Return the offset that the header names.

    Raises InvalidRequest: when the header is missing or is no whole number.
    """
    text = request.headers.get(OFFSET_HEADER, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_OFFSET_DIGITS):
        raise InvalidRequest(
            f"The header '{OFFSET_HEADER}' must be a whole number: the place in the file at which the body begins.",
            param=OFFSET_HEADER,
            code="invalid_value",
        )
    return int(text)
