"""A project's service accounts over HTTP, as OpenAI has them: each is made together with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import Name, audit_author, check_name, unix_seconds, with_revoked_keys
from gateway.admin.organization.key_quota import check_room_for_account
from gateway.admin.organization.key_restrictions import bounds_of
from gateway.admin.organization.key_wire import api_key
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit, keys
from gateway.db.organization import service_accounts as accounts
from gateway.domain.errors import NotFound
from gateway.domain.tenancy.keys import new_key

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class CreateServiceAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new service account."""

    name: Name


class ServiceAccount(msgspec.Struct, frozen=True):
    """An owner of keys that is not a person."""

    id: str
    name: str
    created_at: int
    """Unix seconds."""
    role: Literal["member"] = "member"
    """Always `member`, as in OpenAI's API. The scopes of a key say what the key may do."""
    object: Literal["organization.project.service_account"] = "organization.project.service_account"


class FirstKey(msgspec.Struct, frozen=True):
    """The key that a new service account gets."""

    id: str
    name: str
    value: str
    """The key, which is shown this once."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.service_account.api_key"] = "organization.project.service_account.api_key"


class CreatedServiceAccount(ServiceAccount, frozen=True, kw_only=True):
    """A new service account with its first API key."""

    api_key: FirstKey


class DeletedServiceAccount(msgspec.Struct, frozen=True):
    """A service account that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.service_account.deleted"] = "organization.project.service_account.deleted"


class ServiceAccountController(Controller):
    """Endpoints for the service accounts of a project."""

    path = "/projects/{project_id:str}/service_accounts"

    @get(opt=needs("keys.read", query=LIST_QUERY))
    async def list_service_accounts(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[ServiceAccount]:
        """List the service accounts of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await accounts.get_service_account(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await accounts.list_service_accounts(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([_wire(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("keys.write", body=CreateServiceAccount))
    async def create_service_account(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> CreatedServiceAccount:
        """Create a service account with its first API key. The reply shows the key this once.

        If the caller is a key that is held to networks or to a date, the first key is held to the same.
        """
        wanted = await read_body(request, CreateServiceAccount)
        check_name(wanted.name)
        made = new_key("project")
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            await check_room_for_account(conn, project_id)
            row = await accounts.create_service_account(conn, project_id, wanted.name)
            own = await bounds_of(conn, caller)
            key = await keys.create_key(
                conn,
                organization_id=caller.organization_id,
                project_id=project_id,
                name=wanted.name,
                public=made.public,
                sha256=made.sha256,
                scopes={"inference"},
                expires_at=own.expires_at,
                ip_allow=own.ip_allow,
                owner_service_account_id=row.id,
            )
            assert key is not None, "two keys of 238 random bits are never the same"
            after = {"service_account": _wire(row), "api_key": api_key(key)}
            await audit.record(
                conn, audit_author(caller), "service_account.created", row.id, project_id=project_id, after=after
            )
        first = FirstKey(key.id, key.name, made.secret, unix_seconds(key.created_at))
        return CreatedServiceAccount(row.id, row.name, unix_seconds(row.created_at), api_key=first)

    @get("/{account_id:str}", opt=needs("keys.read"))
    async def get_service_account(
        self, project_id: FromPath[str], account_id: FromPath[str], services: Services, caller: Caller
    ) -> ServiceAccount:
        """Return a service account."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return _wire(await _existing_account(conn, project_id, account_id))

    @delete("/{account_id:str}", status_code=200, opt=needs("keys.write"))
    async def delete_service_account(
        self, project_id: FromPath[str], account_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedServiceAccount:
        """Delete a service account and revoke its API keys."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = _wire(await _existing_account(conn, project_id, account_id))
            revoked = await accounts.remove_service_account(conn, project_id, account_id)
            shown = with_revoked_keys(before, revoked)
            await audit.record(
                conn, audit_author(caller), "service_account.deleted", account_id, project_id=project_id, before=shown
            )
        return DeletedServiceAccount(account_id)


async def _existing_account(conn: Connection, project_id: str, account_id: str) -> accounts.ServiceAccountRow:
    row = await accounts.get_service_account(conn, project_id, account_id)
    if row is None:
        raise NotFound(f"The project has no service account with the id '{account_id}'.", param="account_id")
    return row


def _wire(row: accounts.ServiceAccountRow) -> ServiceAccount:
    return ServiceAccount(row.id, row.name, unix_seconds(row.created_at))
