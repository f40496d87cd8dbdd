"""The files of a project over HTTP, for the people who may read its content. The audit log records each reading."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.admin.access import needs
from gateway.admin.common import audit_author, seconds_or_none, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.files.names import checked_name
from gateway.files.service import File
from gateway.http.download import open_download
from gateway.http.shape import Form, shape
from gateway.http.upload_body import receive_form

FORM = Form(required=("file",), optional=())
LIST_QUERY = ("after", "limit")


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a project. Times are Unix seconds."""

    id: str
    project_id: str
    name: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None
    object: Literal["organization.project.file"] = "organization.project.file"


class DeletedFile(msgspec.Struct, frozen=True):
    """A file of a project that was deleted."""

    id: str
    object: Literal["organization.project.file.deleted"] = "organization.project.file.deleted"
    deleted: bool = True


class FileController(Controller):
    """Endpoints for the files of a project."""

    path = "/projects/{project_id:str}/files"

    @get(opt=needs("content.read", query=LIST_QUERY))
    async def list_project_files(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[ProjectFile]:
        """List the files of a project, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        found = await services.files.page(
            project_id, purpose=None, after=query.after, order="desc", limit=query.limit + 1
        )
        if found is None:
            assert query.after is not None, "the list has a beginning"
            raise unknown_cursor(query.after)
        return page([_wire(project_id, file) for file in found.files], query.limit)

    @post(
        status_code=200,
        request_max_body_size=None,  # bounded as it is read
        opt=needs("keys.write", form=FORM),
    )
    async def upload_project_file(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> ProjectFile:
        """Store the input file of a batch, whose name ends in `.jsonl`."""
        async with services.database.acquire() as conn:
            await active_project(conn, caller.organization_id, project_id)
        part = await services.files.content.begin(project_id)
        try:
            received = await receive_form(request, part, file="file", fields=(), max_bytes=services.max_file_bytes)
            name = checked_name(received.name, "batch", "file")
            if not part.num_bytes:
                raise InvalidRequest("The file is empty.", param="file", code="empty_file")
            await part.flush()
            made = await services.files.make(project_id, part, name=name, purpose="batch", keep_seconds=None)
        except BaseException:
            await part.give_up()
            raise
        return _wire(project_id, made)

    @get(
        "/{file_id:str}/content",
        opt=needs("content.read") | shape(media=("application/octet-stream",)),
    )
    async def download_project_file(
        self, project_id: FromPath[str], file_id: FromPath[str], services: Services, caller: Caller
    ) -> ASGIResponse:
        """Return the content of a file of a project. Nothing is redacted."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        file = await services.files.get(project_id, file_id)
        if file is None:
            raise _no_such(file_id)
        reply = await open_download(file.name, file.num_bytes, services.files.read(project_id, file_id))
        async with services.database.transaction() as conn:
            await audit.record(conn, audit_author(caller), "file.read", file_id, project_id=project_id)
        return reply

    @delete("/{file_id:str}", status_code=200, opt=needs("keys.write"))
    async def delete_project_file(
        self, project_id: FromPath[str], file_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedFile:
        """Delete a file of a project for good. A batch that reads the file goes on."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        if not await services.files.delete(project_id, file_id, audit_author(caller)):
            raise _no_such(file_id)
        return DeletedFile(file_id)


def _no_such(file_id: str) -> NotFound:
    return NotFound(f"No file of this project has the id '{file_id}'.", param="file_id")


def _wire(project_id: str, file: File) -> ProjectFile:
    return ProjectFile(
        id=file.id,
        project_id=project_id,
        name=file.name,
        purpose=file.purpose,
        bytes=file.num_bytes,
        created_at=unix_seconds(file.created_at),
        expires_at=seconds_or_none(file.expires_at),
    )
