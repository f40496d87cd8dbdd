"""The batches of a project over HTTP, for its people and for operators: progress, and the reasons of failed lines.

The content of lines and of their results is in files.
"""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import Nothing, needs, read_body
from gateway.admin.common import audit_author, seconds_or_none, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import Caller, Services
from gateway.batches.service import Batch, BatchError
from gateway.db.organization.keys import find_usable_key_by_id
from gateway.domain.batches.endpoints import BatchEndpoint
from gateway.domain.batches.line import BatchWait
from gateway.domain.errors import NotFound

LIST_QUERY = ("after", "limit")
MAX_LEFT_S = 1e9
"""The longest time to a batch's end that is shown."""


class CreateProjectBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new batch of a project."""

    input_file_id: Annotated[str, Meta(pattern="^file_[a-z2-7]{24}$")]
    """The file with a request on each line, of the purpose `batch`."""
    endpoint: BatchEndpoint
    """The endpoint of all requests."""
    api_key_id: Annotated[str, Meta(pattern="^key_[a-z2-7]{24}$")]
    """The key of the project as which the requests run: each request may use the models that the key may use when the
    request runs."""


class ProjectBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of a project. Times are Unix seconds."""

    id: str
    project_id: str
    api_key_id: str
    """The key as which the requests run."""
    endpoint: str
    status: str
    created_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    cancelling_at: int | None
    ended_at: int | None
    """The time at which the batch was completed, failed, expired or cancelled."""
    expires_at: int
    """The end of the completion window."""
    expected_at: int | None
    """The time at which the last line would have a result at the present pace; null while no lines end."""
    waits_for: BatchWait | None
    """The reason why no line could run lately, such as a limit that is reached; null once a line has a result."""
    total: int
    """The number of lines."""
    completed: int
    """The number of lines whose request succeeded."""
    failed: int
    """The number of lines whose request failed."""
    failures: dict[str, int]
    """The number of lines that failed, by the code of their error."""
    lines_per_s: float
    """Lines that got a result per second, over about the last minute."""
    input_tokens: int
    """Prompt tokens of the lines that have a result."""
    cached_tokens: int
    """The part of `input_tokens` that engines found in their caches."""
    output_tokens: int
    """Completion tokens of the lines that have a result."""
    errors: list[BatchError]
    """The faults of the input file, for which the batch failed."""
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    object: Literal["organization.project.batch"] = "organization.project.batch"


class BatchController(Controller):
    """Endpoints for the batches of a project."""

    path = "/projects/{project_id:str}/batches"

    @get(opt=needs("billing.read", query=LIST_QUERY))
    async def list_project_batches(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[ProjectBatch]:
        """List the batches of a project, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        found = await services.batches.page(project_id, after=query.after, limit=query.limit + 1)
        if found is None:
            assert query.after is not None, "the list has a beginning"
            raise unknown_cursor(query.after)
        return page([_wire(project_id, batch) for batch in found.batches], query.limit)

    @post(status_code=200, opt=needs("keys.write", body=CreateProjectBatch))
    async def create_project_batch(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> ProjectBatch:
        """Run the requests of a file as one of the project's keys, with the capacity that other requests leave free."""
        wanted = await read_body(request, CreateProjectBatch)
        async with services.database.acquire() as conn:
            await active_project(conn, caller.organization_id, project_id)
            key = await find_usable_key_by_id(conn, project_id, wanted.api_key_id)
        if key is None or key.suspended or "inference" not in key.scopes:
            raise wrong_value("api_key_id", "expected a key of the project that may use models")
        made = await services.batches.create(
            project_id,
            audit_author(caller),
            api_key_id=wanted.api_key_id,
            endpoint=wanted.endpoint,
            input_file_id=wanted.input_file_id,
            metadata={},
            keep_seconds=None,
        )
        return _wire(project_id, made)

    @get("/{batch_id:str}", opt=needs("billing.read"))
    async def get_project_batch(
        self, project_id: FromPath[str], batch_id: FromPath[str], services: Services, caller: Caller
    ) -> ProjectBatch:
        """Return a batch of a project."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        found = await services.batches.get(project_id, batch_id)
        if found is None:
            raise _no_such(batch_id)
        return _wire(project_id, found)

    @post("/{batch_id:str}/cancel", status_code=200, opt=needs("keys.write", body=Nothing))
    async def cancel_project_batch(
        self,
        project_id: FromPath[str],
        batch_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> ProjectBatch:
        """Cancel a batch of a project. Requests that were answered stay in its output; the others never run."""
        await read_body(request, Nothing)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        ended = await services.batches.cancel(project_id, batch_id, audit_author(caller))
        if ended is None:
            raise _no_such(batch_id)
        return _wire(project_id, ended)


def _no_such(batch_id: str) -> NotFound:
    return NotFound(f"No batch of this project has the id '{batch_id}'.", param="batch_id")


def _wire(project_id: str, batch: Batch) -> ProjectBatch:
    row = batch.row
    waits_for = batch.waits_for
    pace = row.lines_per_s if row.status == "in_progress" and waits_for is None else 0.0
    return ProjectBatch(
        id=row.id,
        project_id=project_id,
        api_key_id=row.api_key_id,
        endpoint=row.endpoint,
        status=row.status,
        created_at=unix_seconds(row.created_at),
        in_progress_at=seconds_or_none(row.in_progress_at),
        finalizing_at=seconds_or_none(row.finalizing_at),
        cancelling_at=seconds_or_none(row.cancelling_at),
        ended_at=seconds_or_none(row.ended_at),
        expires_at=unix_seconds(row.expires_at),
        expected_at=_expected_at(row.num_total - row.num_completed - row.num_failed, pace),
        waits_for=waits_for,
        total=row.num_total,
        completed=row.num_completed,
        failed=row.num_failed,
        failures=batch.failures,
        lines_per_s=pace,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        errors=batch.errors,
        input_file_id=row.input_file_id,
        output_file_id=row.output_file_id if row.has_output else None,
        error_file_id=row.error_file_id if row.has_errors else None,
    )


def _expected_at(num_left: int, lines_per_s: float) -> int | None:
    """Return the Unix second at which the last line will have a result; None while no lines end."""
    if lines_per_s <= 0:
        return None
    left_s = num_left / lines_per_s
    return math.ceil(datetime.datetime.now(datetime.UTC).timestamp() + left_s) if left_s < MAX_LEFT_S else None
