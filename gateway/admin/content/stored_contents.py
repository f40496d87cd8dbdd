"""The stored responses and conversations of projects, over HTTP, for the people who may read a project's content.

The audit log records each reading.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import get
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.organization.projects import existing_project
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.domain.errors import NotFound

Items = list[dict[str, Any]]

_ITEMS = msgspec.json.Decoder(Items)


class StoredResponseContent(msgspec.Struct, frozen=True, kw_only=True):
    """The stored response of a request: the items of its own turn, none of them redacted."""

    id: str
    request_id: str
    project_id: str
    model: str
    created_at: int
    """Unix seconds."""
    status: str
    previous_response_id: str | None
    """The response that this one goes on from."""
    conversation_id: str | None
    """The conversation that this response was added to."""
    input: Items
    """The items that the request sent."""
    output: Items
    """The items that the model made."""
    object: Literal["organization.stored_response"] = "organization.stored_response"


class ConversationContent(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with all its items, the oldest first. Nothing is redacted."""

    id: str
    project_id: str
    items: Items
    object: Literal["organization.conversation"] = "organization.conversation"


class _Shown(msgspec.Struct, frozen=True):
    """The part of a response that is shown."""

    status: str
    conversation: dict[str, str] | None = None


@get("/projects/{project_id:str}/requests/{request_id:str}/response", opt=needs("content.read"))
async def get_request_response(
    project_id: FromPath[str], request_id: FromPath[str], services: Services, caller: Caller
) -> StoredResponseContent:
    """Return the stored response of a request.

    If there was no such request, or its response is not stored any more, the answer is the same 404.
    """
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        found = await services.responses.find_by_request(conn, project_id, request_id)
        if found is None:
            raise NotFound(f"No response of the request '{request_id}' is stored.", param="request_id")
        await audit.record(conn, audit_author(caller), "stored_response.read", found.id, project_id=project_id)
    response = msgspec.json.decode(found.response, type=_Shown)
    return StoredResponseContent(
        id=found.id,
        request_id=request_id,
        project_id=project_id,
        model=found.model,
        created_at=unix_seconds(found.created_at),
        status=response.status,
        previous_response_id=found.parent_id,
        conversation_id=(response.conversation or {}).get("id"),
        input=_ITEMS.decode(found.input),
        output=_ITEMS.decode(found.output),
    )


@get("/projects/{project_id:str}/stored_conversations/{conversation_id:str}", opt=needs("content.read"))
async def get_conversation_content(
    project_id: FromPath[str], conversation_id: FromPath[str], services: Services, caller: Caller
) -> ConversationContent:
    """Return a conversation with all its items. The answer is a 404 where there is no such conversation any more."""
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        found = await services.conversations.all_items(conn, project_id, conversation_id)
        if found is None:
            raise NotFound(f"There is no conversation with the id '{conversation_id}'.", param="conversation_id")
        await audit.record(conn, audit_author(caller), "conversation.read", conversation_id, project_id=project_id)
    items: Items = [msgspec.json.decode(each.content) for each in found]
    return ConversationContent(id=conversation_id, project_id=project_id, items=items)
