"""POST, GET and DELETE of files.

A key sees the files of its project alone. The id of another project's file gets the same 404 as an id that does not
exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from gateway.db.organization.audit import Author
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.domain.tenancy.principal import Principal
from gateway.files.names import check_size, checked_name
from gateway.files.service import File, Files
from gateway.http.caller import Caller
from gateway.http.download import open_download
from gateway.http.fields import invalid_field, missing_field
from gateway.http.request.call import Call, call_of
from gateway.http.shape import Form, shape
from gateway.http.upload_body import receive_form
from gateway.openai.files.wire import (
    MAX_SECONDS,
    MIN_SECONDS,
    ExpiresAfter,
    FileDeleted,
    FileList,
    FileObject,
    FilePurpose,
)
from gateway.openai.shared.list_query import MAX_SHOWN, read_listing
from gateway.openai.shared.pages import as_list, unknown_cursor
from gateway.openai.shared.replies import json_response
from gateway.support.pace import Pace

PER_S, BURST = 50.0, 200.0
CHANGES_PER_S, CHANGES_BURST = 10.0, 200.0
BYTES_PER_REQUEST = 4 << 20
"""The number of bytes read or written that count as one more request against a project's pace."""

MAX_LISTED = 10_000
PURPOSES: tuple[str, ...] = get_args(FilePurpose)
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM = Form(required=("file", "purpose"), optional=(ANCHOR, SECONDS), texts=("purpose", ANCHOR, SECONDS))
LIST_QUERY: dict[str, dict[str, Any]] = {
    "purpose": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": MAX_LISTED},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}

_ID = re.compile(r"file_[a-z2-7]{24}")


def files(service: Files, *, max_bytes: int) -> list[HTTPRouteHandler]:
    """Return the routes of files. Each project has a pace of its own.

    max_bytes: the most bytes of a file that comes in one request.
    """
    pace = Pace(PER_S, BURST, what="files")
    changes = Pace(CHANGES_PER_S, CHANGES_BURST, what="files that are made and deleted")

    @post(
        "/files",
        status_code=200,
        request_max_body_size=None,  # bounded as it is read
        opt=shape(form=FORM, reply=FileObject),
    )
    async def create_file(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Store a file.

        `purpose` is what the file is for: `batch` for the input of a batch, whose name ends in `.jsonl`. The file
        expires after `expires_after[seconds]`, or after 30 days for the purpose `batch`, or not at all.
        """
        changes.take(caller.project_id)
        part = await service.content.begin(caller.project_id)
        try:
            received = await receive_form(
                request, part, file="file", fields=("purpose", ANCHOR, SECONDS), max_bytes=max_bytes
            )
            purpose, keep = _purpose(received.fields), _keep_seconds(received.fields)
            name = checked_name(received.name, purpose, "file")
            check_size(part.num_bytes, purpose, "file")
            if not part.num_bytes:
                raise InvalidRequest("The file is empty.", param="file", code="empty_file")
            await part.flush()
            made = await service.make(caller.project_id, part, name=name, purpose=purpose, keep_seconds=keep)
        except BaseException:
            await part.give_up()
            raise
        pace.charge(caller.project_id, part.num_bytes / BYTES_PER_REQUEST)
        return json_response(file_wire(made))

    @get("/files", opt=shape(reply=FileList, query=LIST_QUERY))
    async def list_files(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """List the files of the project, the newest first."""
        pace.take(caller.project_id)
        asked = read_listing(
            request.query_params.multi_items(), known=LIST_QUERY, order="desc", limit=MAX_LISTED, max_limit=MAX_LISTED
        )
        found = await service.page(
            caller.project_id, purpose=asked.purpose, after=asked.after, order=asked.order, limit=asked.limit
        )
        if found is None:
            raise unknown_cursor(asked.after)
        pace.charge(caller.project_id, len(found.files) / 100)
        body = as_list([(file.id, file_wire(file)) for file in found.files], found.has_more)
        return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")

    @get("/files/{file_id:str}", opt=shape(reply=FileObject))
    async def retrieve_file(file_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return a file, without its content."""
        pace.take(caller.project_id)
        return json_response(file_wire(await _existing_file(caller, file_id)))

    @get("/files/{file_id:str}/content", opt=shape(media=("application/octet-stream",)))
    async def download_file(file_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return the content of a file."""
        file = await _existing_file(caller, file_id)
        pace.take(caller.project_id, 1 + file.num_bytes / BYTES_PER_REQUEST)
        return await open_download(file.name, file.num_bytes, service.read(caller.project_id, file.id))

    @delete("/files/{file_id:str}", status_code=200, opt=shape(reply=FileDeleted))
    async def delete_file(file_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Delete a file for good. The audit log records it. A batch that reads the file goes on."""
        changes.take(caller.project_id)
        if not await service.delete(
            caller.project_id, well_formed_file_id(file_id), author_of(call_of(request.scope), caller)
        ):
            raise no_such_file(file_id)
        return json_response(FileDeleted(file_id))

    async def _existing_file(caller: Principal, file_id: str) -> File:
        file = await service.get(caller.project_id, well_formed_file_id(file_id))
        if file is None:
            raise no_such_file(file_id)
        return file

    return [create_file, list_files, retrieve_file, download_file, delete_file]


def file_wire(file: File) -> FileObject:
    """Return a file in OpenAI's shape."""
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()) if file.expires_at is not None else UNSET,
        filename=file.name,
        purpose=file.purpose,
    )


def well_formed_file_id(file_id: str) -> str:
    """Return an id if it has the form of a file's id, else "", which is no file's id."""
    return file_id if _ID.fullmatch(file_id) else ""


def no_such_file(file_id: str) -> NotFound:
    """Return the error for an id that no file of the project has."""
    return NotFound(f"No such File object: {file_id[:MAX_SHOWN]}", param="id")


def author_of(call: Call, caller: Principal) -> Author:
    """Return the author whom the audit log names for actions with a project's key."""
    return Author(
        organization_id=caller.organization_id,
        kind="api_key",
        id=caller.api_key_id,
        email=None,
        address=call.address,
        request_id=call.request_id,
    )


def _purpose(fields: Mapping[str, str]) -> str:
    if "purpose" not in fields:
        raise missing_field("purpose")
    if fields["purpose"] not in PURPOSES:
        allowed = ", ".join(f"'{purpose}'" for purpose in PURPOSES)
        raise invalid_field(f"Invalid value for 'purpose': expected one of {allowed}.", "purpose")
    return fields["purpose"]


def _keep_seconds(fields: Mapping[str, str]) -> int | None:
    """Return the seconds of `expires_after`; None where it is not given.

    Raises InvalidRequest: when one of its fields is missing or wrong; the error names the field.
    """
    if ANCHOR not in fields and SECONDS not in fields:
        return None
    for name in (ANCHOR, SECONDS):
        if name not in fields:
            raise missing_field(name)
    if fields[ANCHOR] != "created_at":
        raise invalid_field(f"Invalid value for '{ANCHOR}': expected 'created_at'.", ANCHOR)
    seconds = fields[SECONDS]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= len(str(MAX_SECONDS))):
        seconds = "0"
    if not MIN_SECONDS <= int(seconds) <= MAX_SECONDS:
        raise invalid_field(
            f"Invalid value for '{SECONDS}': expected a number from {MIN_SECONDS} to {MAX_SECONDS}.", SECONDS
        )
    return ExpiresAfter("created_at", int(seconds)).seconds
