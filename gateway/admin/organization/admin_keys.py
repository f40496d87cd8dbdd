"""Operators' keys over HTTP: they open the admin API, and no model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import Name, UnixTime, audit_author, check_name, expiry_time
from gateway.admin.organization.key_restrictions import check_not_less_restricted
from gateway.admin.organization.key_wire import AdminApiKey, CreatedAdminKey, admin_api_key, created_admin_key
from gateway.admin.organization.keys import Networks, networks, owning_user
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit, keys, users
from gateway.domain.errors import NotFound
from gateway.domain.tenancy.keys import new_key
from gateway.domain.tenancy.permissions import check_grant, role_permissions, scope_permissions
from gateway.domain.tenancy.principal import Permission, Scope

if TYPE_CHECKING:
    from gateway.db.pool import Connection

AdminScope = Literal["admin_read", "admin_write"]


class CreateAdminKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new operator's key.

    The key belongs to the person who creates it and may never do more than this person. A key that is created with
    another key ends no later than that key and works from no other networks.
    """

    name: Name
    scopes: Annotated[tuple[AdminScope, ...], msgspec.Meta(min_length=1, max_length=2)] = ("admin_read", "admin_write")
    expires_at: UnixTime | None = None
    """Unix seconds; null never expires."""
    ip_allowlist: Networks | None = None
    """Networks from which the key may be used; null allows all."""


class DeletedAdminKey(msgspec.Struct, frozen=True):
    """An operator's key that was revoked."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.admin_api_key.deleted"] = "organization.admin_api_key.deleted"


class AdminKeyController(Controller):
    """Endpoints for operators' keys."""

    path = "/admin_api_keys"

    @get(opt=needs("admin_keys.read", query=LIST_QUERY))
    async def list_admin_keys(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[AdminApiKey]:
        """List the operators' keys."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            if query.after and await keys.get_admin_key(conn, caller.organization_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await keys.list_admin_keys(conn, caller.organization_id, after=query.after, limit=query.limit + 1)
        return page([admin_api_key(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("admin_keys.write", body=CreateAdminKey))
    async def create_admin_key(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> CreatedAdminKey:
        """Create an operator's key. The reply shows the key this once."""
        wanted = await read_body(request, CreateAdminKey)
        check_name(wanted.name)
        expires_at, ip_allow = expiry_time(wanted.expires_at), networks(wanted.ip_allowlist)
        made = new_key("admin")
        async with services.database.transaction() as conn:
            owner = await owning_user(conn, caller)
            check_grant(caller, await _effective(conn, caller.organization_id, wanted.scopes, owner))
            await check_not_less_restricted(conn, caller, expires_at, ip_allow)
            row = await keys.create_key(
                conn,
                organization_id=caller.organization_id,
                project_id=None,
                name=wanted.name,
                public=made.public,
                sha256=made.sha256,
                scopes=set(wanted.scopes),
                expires_at=expires_at,
                ip_allow=ip_allow,
                owner_user_id=owner,
            )
            assert row is not None, "two keys of 238 random bits are never the same"
            await audit.record(conn, audit_author(caller), "admin_api_key.created", row.id, after=admin_api_key(row))
        return created_admin_key(row, made.secret)

    @get("/{key_id:str}", opt=needs("admin_keys.read"))
    async def get_admin_key(self, key_id: FromPath[str], services: Services, caller: Caller) -> AdminApiKey:
        """Return an operator's key without its secret."""
        async with services.database.acquire() as conn:
            return admin_api_key(await _existing_key(conn, caller.organization_id, key_id))

    @delete("/{key_id:str}", status_code=200, opt=needs("admin_keys.write"))
    async def revoke_admin_key(self, key_id: FromPath[str], services: Services, caller: Caller) -> DeletedAdminKey:
        """Revoke an operator's key for good."""
        async with services.database.transaction() as conn:
            before = await _existing_key(conn, caller.organization_id, key_id)
            does = await _effective(conn, caller.organization_id, before.scopes, before.owner_user_id)
            check_grant(caller, does)
            if before.revoked_at is None:
                await keys.revoke_admin_key(conn, caller.organization_id, key_id)
                shown = admin_api_key(before)
                await audit.record(conn, audit_author(caller), "admin_api_key.deleted", key_id, before=shown)
        return DeletedAdminKey(key_id)


async def _existing_key(conn: Connection, organization_id: str, key_id: str) -> keys.KeyRow:
    row = await keys.get_admin_key(conn, organization_id, key_id)
    if row is None:
        raise NotFound(f"No admin API key has the id '{key_id}'.", param="key_id")
    return row


async def _effective(
    conn: Connection, organization_id: str, scopes: Iterable[Scope], owner_user_id: str | None
) -> frozenset[Permission]:
    """Return the permissions of a key with these scopes: no more than its owner has."""
    permissions = scope_permissions(scopes)
    if owner_user_id is None:
        return permissions
    owner = await users.get_user(conn, organization_id, owner_user_id)
    return permissions & role_permissions(owner.role if owner else None)
