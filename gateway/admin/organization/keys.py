"""A project's API keys over HTTP: made, listed, changed, revoked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET, UnsetType

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import Name, UnixTime, audit_author, check_name, expiry_time
from gateway.admin.organization.key_quota import check_room_for_key
from gateway.admin.organization.key_restrictions import check_not_less_restricted
from gateway.admin.organization.key_wire import ApiKey, CreatedKey, api_key, created_key
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit, keys
from gateway.db.organization.service_accounts import get_service_account
from gateway.domain.errors import NotFound
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.addresses import Network, parse_network
from gateway.domain.tenancy.keys import new_key
from gateway.domain.tenancy.permissions import check_grant, scope_permissions

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ProjectScope = Literal["inference", "feedback", "adapters", "experiments", "usage"]
Scopes = Annotated[tuple[ProjectScope, ...], msgspec.Meta(min_length=1, max_length=4)]
Models = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=64)]
Networks = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=64)]


class CreateKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new key of a project."""

    name: Name = "default"
    scopes: Scopes = ("inference",)
    expires_at: UnixTime | None = None
    """Unix seconds; null never expires."""
    models: Models | None = None
    """Ids of the models that the key may call; null allows all."""
    ip_allowlist: Networks | None = None
    """Networks from which the key may be used; null allows all."""
    service_account_id: str | None = None
    """The service account that owns the key. Left out, the key belongs to the person who creates it."""


class ModifyKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New settings of a key. A field that is left out stays as it is."""

    name: Name | UnsetType = UNSET
    scopes: Scopes | UnsetType = UNSET
    expires_at: UnixTime | UnsetType | None = UNSET
    models: Models | UnsetType | None = UNSET
    ip_allowlist: Networks | UnsetType | None = UNSET


class DeletedKey(msgspec.Struct, frozen=True):
    """An API key of a project that was revoked."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.api_key.deleted"] = "organization.project.api_key.deleted"


class KeyController(Controller):
    """Endpoints for the API keys of a project."""

    path = "/projects/{project_id:str}/api_keys"

    @get(opt=needs("keys.read", query=LIST_QUERY))
    async def list_keys(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[ApiKey]:
        """List the API keys of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await keys.get_key(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await keys.list_keys(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([api_key(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("keys.write", body=CreateKey))
    async def create_key(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> CreatedKey:
        """Create an API key of a project. The reply shows the key this once."""
        wanted = await read_body(request, CreateKey)
        check_name(wanted.name)
        check_grant(caller, scope_permissions(wanted.scopes), project_id)
        _check_models(wanted.models)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            await check_room_for_key(conn, project_id)
            owner = await _service_account(conn, project_id, wanted.service_account_id)
            expires_at, ip_allow = expiry_time(wanted.expires_at), networks(wanted.ip_allowlist)
            await check_not_less_restricted(conn, caller, expires_at, ip_allow)
            made = new_key("project")
            row = await keys.create_key(
                conn,
                organization_id=caller.organization_id,
                project_id=project_id,
                name=wanted.name,
                public=made.public,
                sha256=made.sha256,
                scopes=set(wanted.scopes),
                expires_at=expires_at,
                models=wanted.models,
                ip_allow=ip_allow,
                owner_user_id=None if owner else await owning_user(conn, caller),
                owner_service_account_id=owner,
            )
            assert row is not None, "two keys of 238 random bits are never the same"
            await record_key(conn, caller, "api_key.created", None, row)
        return created_key(row, made.secret)

    @get("/{key_id:str}", opt=needs("keys.read"))
    async def get_key(
        self, project_id: FromPath[str], key_id: FromPath[str], services: Services, caller: Caller
    ) -> ApiKey:
        """Return an API key without its secret."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return api_key(await existing_key(conn, project_id, key_id))

    @post("/{key_id:str}", status_code=200, opt=needs("keys.write", body=ModifyKey))
    async def modify_key(
        self,
        project_id: FromPath[str],
        key_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> ApiKey:
        """Change the name, scopes, models, networks or end of an API key."""
        wanted = await read_body(request, ModifyKey)
        if wanted.name is not UNSET:
            check_name(wanted.name)
        if wanted.models is not UNSET:
            _check_models(wanted.models)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await existing_key(conn, project_id, key_id)
            scopes = before.scopes if wanted.scopes is UNSET else list(wanted.scopes)
            check_grant(caller, scope_permissions(scopes), project_id)
            after = msgspec.structs.replace(
                before,
                name=before.name if wanted.name is UNSET else wanted.name,
                scopes=sorted(set(scopes)),
                expires_at=before.expires_at if wanted.expires_at is UNSET else expiry_time(wanted.expires_at),
                models=before.models if wanted.models is UNSET else wanted.models,
                ip_allow=before.ip_allow if wanted.ip_allowlist is UNSET else networks(wanted.ip_allowlist),
            )
            if after != before:
                await check_not_less_restricted(conn, caller, after.expires_at, after.ip_allow)
                await keys.modify_key(conn, after)
                await record_key(conn, caller, "api_key.updated", before, after)
        return api_key(after)

    @delete("/{key_id:str}", status_code=200, opt=needs("keys.write"))
    async def revoke_key(
        self, project_id: FromPath[str], key_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedKey:
        """Revoke an API key for good."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await existing_key(conn, project_id, key_id)
            if before.revoked_at is None:
                await keys.revoke_key(conn, project_id, key_id)
                await record_key(conn, caller, "api_key.deleted", before, await existing_key(conn, project_id, key_id))
        return DeletedKey(key_id)


@get("/api_keys/{key_id:str}", opt=needs("keys.read"))
async def find_key(key_id: FromPath[str], services: Services, caller: Caller) -> ApiKey:
    """Find an API key of any project by its id."""
    async with services.database.acquire() as conn:
        row = await keys.find_project_key(conn, caller.organization_id, key_id)
    if row is None:
        raise NotFound(f"No API key has the id '{key_id}'.", param="key_id")
    return api_key(row)


async def owning_user(conn: Connection, caller: Actor) -> str | None:
    """Return the user who owns a key that the caller makes: the caller, or the person who owns the caller's key."""
    if caller.kind == "user":
        return caller.id
    made_with = await keys.get_admin_key(conn, caller.organization_id, caller.id)
    return made_with.owner_user_id if made_with else None


async def existing_key(conn: Connection, project_id: str, key_id: str) -> keys.KeyRow:
    """Return an API key of a project.

    Raises NotFound: when the project has no key with this id.
    """
    row = await keys.get_key(conn, project_id, key_id)
    if row is None:
        raise NotFound(f"The project has no API key with the id '{key_id}'.", param="key_id")
    return row


async def record_key(
    conn: Connection, caller: Actor, event: str, before: keys.KeyRow | None, after: keys.KeyRow
) -> None:
    """Record a change of a key in the audit log: the key as it was, if it existed, and as it is now.

    event: the name of the change. before: None for a new key.
    """
    shown = api_key(before) if before else None
    await audit.record(
        conn, audit_author(caller), event, after.id, project_id=after.project_id, before=shown, after=api_key(after)
    )


async def _service_account(conn: Connection, project_id: str, account_id: str | None) -> str | None:
    if account_id is None:
        return None
    if "\0" in account_id or await get_service_account(conn, project_id, account_id) is None:
        raise wrong_value("service_account_id", "the project has no service account with this id")
    return account_id


def _check_models(models: Sequence[str] | None) -> None:
    for index, model in enumerate(models or ()):
        check_name(model, f"models[{index}]")


def networks(texts: Sequence[str] | None) -> list[Network] | None:
    """Return the networks of an allowlist.

    Raises InvalidRequest: when a text is no network; the error names its place in `ip_allowlist`.
    """
    if texts is None:
        return None
    parsed = []
    for index, text in enumerate(texts):
        try:
            parsed.append(parse_network(text))
        except ValueError as error:
            raise wrong_value(f"ip_allowlist[{index}]", str(error)) from None
    return parsed
