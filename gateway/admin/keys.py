"""A project's API keys over HTTP. The key itself is in the reply to its creation and nowhere else."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.projects import Name, check_name, existing_project
from gateway.admin.services import Caller, Services
from gateway.api.fields import decode
from gateway.db import keys
from gateway.errors import InvalidRequest, NotFound
from gateway.tenancy.keys import new_key

ProjectScope = Literal["inference", "adapters"]


class CreateKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """expires_at: Unix seconds; null never expires."""

    name: Name = "default"
    scopes: Annotated[tuple[ProjectScope, ...], msgspec.Meta(min_length=1, max_length=2)] = ("inference",)
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=2**32)] | None = None


class ApiKey(msgspec.Struct, frozen=True):
    """A key without its secret. Times in Unix seconds."""

    id: str
    project_id: str
    name: str
    redacted_value: str
    scopes: list[str]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    object: Literal["organization.project.api_key"] = "organization.project.api_key"


class CreatedKey(ApiKey, frozen=True, kw_only=True):
    """value: the key, shown this once."""

    value: str


class DeletedKey(msgspec.Struct, frozen=True):
    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.api_key.deleted"] = "organization.project.api_key.deleted"


_create_decoder = msgspec.json.Decoder(CreateKey)


class KeyController(Controller):
    path = "/projects/{project_id:str}/api_keys"

    @get()
    async def list_keys(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page:
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await keys.get_key(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await keys.list_keys(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([ApiKey(**_fields(row)) for row in rows], query.limit)

    @post(status_code=200)
    async def create_key(
        self,
        project_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> CreatedKey:
        wanted = decode(_create_decoder, await request.body() or b"{}")
        check_name(wanted.name)
        made = new_key("project")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await keys.create_key(
                conn,
                organization_id=caller.organization_id,
                project_id=project_id,
                name=wanted.name,
                public=made.public,
                sha256=made.sha256,
                scopes=set(wanted.scopes),
                expires_at=_expiry(wanted.expires_at),
            )
        assert row is not None, "two keys of 238 random bits are never the same"
        return CreatedKey(**_fields(row), value=made.secret)

    @delete("/{key_id:str}", status_code=200)
    async def revoke_key(
        self, project_id: FromPath[str], key_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedKey:
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if await keys.revoke_key(conn, project_id, key_id) is None:
                raise NotFound(f"The project has no API key with the id '{key_id}'.", param="key_id")
        return DeletedKey(key_id)


@get("/api_keys/{key_id:str}")
async def get_key(key_id: FromPath[str], services: Services, caller: Caller) -> ApiKey:
    """A key of any project, by its id alone."""
    async with services.database.acquire() as conn:
        row = await keys.find_project_key(conn, caller.organization_id, key_id)
    if row is None:
        raise NotFound(f"No API key has the id '{key_id}'.", param="key_id")
    return ApiKey(**_fields(row))


def _expiry(expires_at: int | None) -> datetime.datetime | None:
    if expires_at is None:
        return None
    expiry = datetime.datetime.fromtimestamp(expires_at, datetime.UTC)
    if expiry <= datetime.datetime.now(datetime.UTC):
        raise InvalidRequest("Invalid value for 'expires_at': it has passed.", param="expires_at", code="invalid_value")
    return expiry


def _fields(row: keys.KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "project_id": row.project_id,
        "name": row.name,
        "redacted_value": f"{row.public}***",
        "scopes": row.scopes,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": _seconds(row.expires_at),
        "revoked_at": _seconds(row.revoked_at),
        "last_used_at": _seconds(row.last_used_at),
    }


def _seconds(time: datetime.datetime | None) -> int | None:
    return int(time.timestamp()) if time else None
