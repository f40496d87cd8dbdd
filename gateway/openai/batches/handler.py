"""POST and GET of batches.

A key sees the batches of its project alone. The id of another project's batch gets the same 404 as an id that does not
exist.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from gateway.batches.service import Batch, Batches, ended_time
from gateway.domain.errors import NotFound
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.batches.wire import (
    BatchCounts,
    BatchErrors,
    BatchInputDetails,
    BatchList,
    BatchObject,
    BatchOutputDetails,
    BatchUsage,
    CreateBatch,
)
from gateway.openai.files.handler import author_of, well_formed_file_id
from gateway.openai.shared.list_query import MAX_SHOWN, read_listing
from gateway.openai.shared.pages import as_list, unknown_cursor
from gateway.openai.shared.replies import json_response
from gateway.support.pace import Pace

PER_S, BURST = 50.0, 200.0
CHANGES_PER_S, CHANGES_BURST = 2.0, 100.0
LIST_QUERY: dict[str, dict[str, Any]] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
}

_CREATE = msgspec.json.Decoder(CreateBatch)
_ID = re.compile(r"batch_[a-z2-7]{24}")


def batches(service: Batches, bodies: Bodies) -> list[HTTPRouteHandler]:
    """Return the routes of batches. Each project has a pace of its own."""
    pace = Pace(PER_S, BURST, what="batches")
    changes = Pace(CHANGES_PER_S, CHANGES_BURST, what="batches that are made and cancelled")

    @post("/batches", status_code=200, opt=shape(body=CreateBatch, reply=BatchObject))
    async def create_batch(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Run the requests of a file within 24 hours, with capacity that other requests leave free, at half the price.

        The file is checked first: a batch whose file is wrong has the status `failed` soon, and says why in `errors`.
        """
        changes.take(caller.project_id)
        wire = await decoded(_CREATE, await bodies.read(request, caller))
        made = await service.create(
            caller.project_id,
            author_of(call_of(request.scope), caller),
            api_key_id=caller.api_key_id,
            endpoint=wire.endpoint,
            input_file_id=well_formed_file_id(wire.input_file_id),
            metadata=wire.metadata or {},
            keep_seconds=wire.output_expires_after.seconds if wire.output_expires_after is not None else None,
        )
        return json_response(batch_wire(made))

    @get("/batches", opt=shape(reply=BatchList, query=LIST_QUERY))
    async def list_batches(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """List the batches of the project, the newest first."""
        pace.take(caller.project_id)
        asked = read_listing(request.query_params.multi_items(), known=LIST_QUERY, order="desc")
        found = await service.page(caller.project_id, after=asked.after, limit=asked.limit)
        if found is None:
            raise unknown_cursor(asked.after)
        body = as_list([(batch.row.id, batch_wire(batch)) for batch in found.batches], found.has_more)
        return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")

    @get("/batches/{batch_id:str}", opt=shape(reply=BatchObject))
    async def retrieve_batch(batch_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return a batch."""
        pace.take(caller.project_id)
        found = await service.get(caller.project_id, _well_formed_id(batch_id))
        if found is None:
            raise _no_such(batch_id)
        return json_response(batch_wire(found))

    @post("/batches/{batch_id:str}/cancel", status_code=200, opt=shape(reply=BatchObject))
    async def cancel_batch(batch_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Cancel a batch. Requests that were answered stay in its output; the others never run."""
        changes.take(caller.project_id)
        author = author_of(call_of(request.scope), caller)
        ended = await service.cancel(caller.project_id, _well_formed_id(batch_id), author)
        if ended is None:
            raise _no_such(batch_id)
        return json_response(batch_wire(ended))

    return [create_batch, list_batches, retrieve_batch, cancel_batch]


def batch_wire(batch: Batch) -> BatchObject:
    """Return a batch in OpenAI's shape."""
    row = batch.row
    return BatchObject(
        id=row.id,
        endpoint=row.endpoint,
        errors=BatchErrors(data=batch.errors) if batch.errors else None,
        input_file_id=row.input_file_id,
        status=row.status,  # type: ignore[arg-type]
        output_file_id=row.output_file_id if row.has_output else None,
        error_file_id=row.error_file_id if row.has_errors else None,
        created_at=int(row.created_at.timestamp()),
        in_progress_at=_time(row.in_progress_at),
        expires_at=int(row.expires_at.timestamp()),
        finalizing_at=_time(row.finalizing_at),
        completed_at=_time(ended_time(row, "completed")),
        failed_at=_time(ended_time(row, "failed")),
        expired_at=_time(ended_time(row, "expired")),
        cancelling_at=_time(row.cancelling_at),
        cancelled_at=_time(ended_time(row, "cancelled")),
        request_counts=BatchCounts(total=row.num_total, completed=row.num_completed, failed=row.num_failed),
        usage=BatchUsage(
            input_tokens=row.input_tokens,
            input_tokens_details=BatchInputDetails(row.cached_tokens),
            output_tokens=row.output_tokens,
            output_tokens_details=BatchOutputDetails(0),
            total_tokens=row.input_tokens + row.output_tokens,
        ),
        metadata=batch.metadata,
        waits_for=UNSET if batch.waits_for is None else batch.waits_for,
    )


def _time(instant: datetime.datetime | None) -> int | None:
    return None if instant is None else int(instant.timestamp())


def _well_formed_id(batch_id: str) -> str:
    """Return an id if it has the form of a batch's id, else "", which is no batch's id."""
    return batch_id if _ID.fullmatch(batch_id) else ""


def _no_such(batch_id: str) -> NotFound:
    return NotFound(f"No such Batch object: {batch_id[:MAX_SHOWN]}", param="batch_id")
