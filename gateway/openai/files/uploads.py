"""POST of uploads: files that come part by part, and can go on after a part that failed."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.domain.errors import InvalidRequest, NotFound
from gateway.files.content import FileContent
from gateway.files.names import check_size, checked_name
from gateway.files.uploads import MAX_PART_BYTES, Upload, Uploads
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.shape import Form, shape
from gateway.http.upload_body import receive_form
from gateway.openai.files.handler import file_wire
from gateway.openai.files.wire import CompleteUpload, CreateUpload, UploadObject, UploadPart
from gateway.openai.shared.list_query import MAX_SHOWN
from gateway.openai.shared.replies import json_response
from gateway.support.pace import Pace

PER_S, BURST = 20.0, 400.0
MD5_BYTES_PER_REQUEST = 8 << 20
"""The number of bytes read to check an MD5 that count as one more request against a project's pace."""

FORM = Form(required=("data",), optional=())

_CREATE, _COMPLETE = msgspec.json.Decoder(CreateUpload), msgspec.json.Decoder(CompleteUpload)
_ID = re.compile(r"upload_[a-z2-7]{24}")


def uploads(service: Uploads, content: FileContent, bodies: Bodies) -> list[HTTPRouteHandler]:
    """Return the routes of uploads. Each project has a pace of its own."""
    pace = Pace(PER_S, BURST, what="uploads")

    @post("/uploads", status_code=200, opt=shape(body=CreateUpload, reply=UploadObject))
    async def create_upload(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Begin an upload, which takes parts for an hour."""
        pace.take(caller.project_id)
        wire = await decoded(_CREATE, await bodies.read(request, caller))
        check_size(wire.bytes, wire.purpose, "bytes")
        begun = await service.begin(
            caller.project_id,
            name=checked_name(wire.filename, wire.purpose, "filename"),
            purpose=wire.purpose,
            num_bytes=wire.bytes,
            keep_seconds=wire.expires_after.seconds if wire.expires_after is not None else None,
        )
        return json_response(_upload_wire(begun))

    @post(
        "/uploads/{upload_id:str}/parts",
        status_code=200,
        request_max_body_size=None,  # bounded as it is read
        opt=shape(form=FORM, reply=UploadPart),
    )
    async def add_upload_part(
        upload_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Add a part of up to 64 MiB. Parts may come in any order, and several at once."""
        pace.take(caller.project_id)
        if not await service.check_pending(caller.project_id, _well_formed_id(upload_id)):
            raise _no_such(upload_id)
        part = await content.begin(caller.project_id)
        try:
            await receive_form(request, part, file="data", fields=(), max_bytes=MAX_PART_BYTES)
            if not part.num_bytes:
                raise InvalidRequest("The part is empty.", param="data", code="invalid_value")
            await part.flush()
            if not await service.add(caller.project_id, upload_id, part):
                raise _no_such(upload_id)
        except BaseException:
            await part.give_up()
            raise
        return json_response(UploadPart(id=part.id, created_at=int(time.time()), upload_id=upload_id))

    @post("/uploads/{upload_id:str}/complete", status_code=200, opt=shape(body=CompleteUpload, reply=UploadObject))
    async def complete_upload(
        upload_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Make a file of the parts, in the order of `part_ids`, which together have as many bytes as were announced."""
        pace.take(caller.project_id)
        wire = await decoded(_COMPLETE, await bodies.read(request, caller))
        done = await service.complete(caller.project_id, _well_formed_id(upload_id), wire.part_ids, md5=wire.md5)
        if done is None:
            raise _no_such(upload_id)
        if wire.md5 is not None:
            pace.charge(caller.project_id, done.num_bytes / MD5_BYTES_PER_REQUEST)
        return json_response(_upload_wire(done))

    @post("/uploads/{upload_id:str}/cancel", status_code=200, opt=shape(reply=UploadObject))
    async def cancel_upload(upload_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """End an upload, and delete its parts."""
        pace.take(caller.project_id)
        ended = await service.cancel(caller.project_id, _well_formed_id(upload_id))
        if ended is None:
            raise _no_such(upload_id)
        return json_response(_upload_wire(ended))

    return [create_upload, add_upload_part, complete_upload, cancel_upload]


def _upload_wire(upload: Upload) -> UploadObject:
    return UploadObject(
        id=upload.id,
        bytes=upload.num_bytes,
        created_at=int(upload.created_at.timestamp()),
        expires_at=int(upload.expires_at.timestamp()),
        filename=upload.name,
        purpose=upload.purpose,
        status=upload.state,
        file=file_wire(upload.file) if upload.file is not None else None,
    )


def _well_formed_id(upload_id: str) -> str:
    """Return an id if it has the form of an upload's id, else "", which is no upload's id."""
    return upload_id if _ID.fullmatch(upload_id) else ""


def _no_such(upload_id: str) -> NotFound:
    return NotFound(f"No such Upload object: {upload_id[:MAX_SHOWN]}", param="upload_id")
