"""The logged content of requests, over HTTP, where a project logs it. The audit log records each reading."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.organization.projects import existing_project
from gateway.admin.services import Caller, Services
from gateway.content.transcript import LoggedChoice, LoggedMessage
from gateway.db.organization import audit
from gateway.domain.errors import NotFound


class RequestContent(msgspec.Struct, frozen=True, kw_only=True):
    """The logged content of a request. Redacted parts show as `[email]`, `[card]` and the like."""

    request_id: str
    project_id: str
    endpoint: str
    model: str
    input: list[LoggedMessage]
    """The messages of the request, or its prompts, which have no role."""
    input_truncated: bool
    """True if the end of the input is not logged, since it was too long."""
    output: list[LoggedChoice]
    output_truncated: bool
    """True if the end of the output is not logged, since it was too long."""
    created_at: int
    """Unix seconds."""
    expires_at: int
    """Unix seconds at which the content is deleted."""
    object: Literal["organization.request_content"] = "organization.request_content"


@get("/projects/{project_id:str}/requests/{request_id:str}/content", opt=needs("content.read"))
async def get_request_content(
    project_id: FromPath[str], request_id: FromPath[str], services: Services, caller: Caller
) -> RequestContent:
    """Return the logged content of a request, redacted.

    If there was no such request, it was not logged, or its content has expired, the answer is the same 404.
    """
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        found = await services.contents.read(conn, project_id, request_id)
        if found is None:
            raise NotFound(f"The content of the request '{request_id}' was not logged.", param="request_id")
        await audit.record(conn, audit_author(caller), "request_content.read", request_id, project_id=project_id)
    content = found.content
    return RequestContent(
        request_id=request_id,
        project_id=project_id,
        endpoint=content.endpoint,
        model=content.model,
        input=content.input,
        input_truncated=content.input_truncated,
        output=content.output,
        output_truncated=content.output_truncated,
        created_at=unix_seconds(found.created_at),
        expires_at=unix_seconds(found.expires_at),
    )
