"""What one request said and got, over HTTP, where its project logs that. Who reads it is in the audit log."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.common import author, seconds
from gateway.admin.organization.projects import existing_project
from gateway.admin.services import Caller, Services
from gateway.content.transcript import LoggedChoice, LoggedMessage
from gateway.db.organization import audit
from gateway.domain.errors import NotFound


class RequestContent(msgspec.Struct, frozen=True, kw_only=True):
    """Text as it was, but for what was redacted, which shows as `[email]`, `[card]` and the like. input: messages or,
    without a role, prompts; input_truncated, output_truncated: there was more. Times in Unix seconds."""

    request_id: str
    project_id: str
    endpoint: str
    model: str
    input: list[LoggedMessage]
    input_truncated: bool
    output: list[LoggedChoice]
    output_truncated: bool
    created_at: int
    expires_at: int
    object: Literal["organization.request_content"] = "organization.request_content"


@get("/projects/{project_id:str}/requests/{request_id:str}/content", opt=needs("content.read"))
async def get_request_content(
    project_id: FromPath[str], request_id: FromPath[str], services: Services, caller: Caller
) -> RequestContent:
    """Redacted. The same 404 for a request that there never was, that was not logged, or whose time is over."""
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        found = await services.contents.read(conn, project_id, request_id)
        if found is None:
            raise NotFound(f"The content of the request '{request_id}' was not logged.", param="request_id")
        await audit.record(conn, author(caller), "request_content.read", request_id, project_id=project_id)
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
        created_at=seconds(found.created_at),
        expires_at=seconds(found.expires_at),
    )
