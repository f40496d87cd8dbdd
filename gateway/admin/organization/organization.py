"""The caller's organization over HTTP: what it is called, and whether its projects may use models."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get, post

from gateway.admin.access import Nothing, needs, read_body
from gateway.admin.common import audit_author, seconds_or_none, unix_seconds
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit, organizations
from gateway.domain.tenancy.actor import Actor


class Organization(msgspec.Struct, frozen=True):
    """The organization of the caller."""

    id: str
    name: str
    created_at: int
    """Unix seconds."""
    suspended_at: int | None
    """Unix seconds; null while the organization is not suspended."""
    object: Literal["organization"] = "organization"


class OrganizationController(Controller):
    """Endpoints for the caller's organization."""

    path = "/"

    @get(opt=needs("organization.read"))
    async def get_organization(self, services: Services, caller: Caller) -> Organization:
        """Return the caller's organization."""
        async with services.database.acquire() as conn:
            return _wire(await organizations.get_organization(conn, caller.organization_id))

    @post("/suspend", status_code=200, opt=needs("organization.write", body=Nothing))
    async def suspend_organization(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Organization:
        """Refuse the API keys of all projects, in every gateway within a second.

        Operators' keys and logins keep working.
        """
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, True)

    @post("/resume", status_code=200, opt=needs("organization.write", body=Nothing))
    async def resume_organization(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Organization:
        """Let the API keys of a suspended organization work again."""
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, False)


async def _set_suspended(services: AdminServices, caller: Actor, suspended: bool) -> Organization:
    async with services.database.transaction() as conn:
        before = await organizations.lock_organization(conn, caller.organization_id)
        if (before.suspended_at is not None) == suspended:
            return _wire(before)
        after = await organizations.set_organization_suspended(conn, caller.organization_id, suspended)
        event = "organization.suspended" if suspended else "organization.resumed"
        await audit.record(conn, audit_author(caller), event, after.id, before=_wire(before), after=_wire(after))
        return _wire(after)


def _wire(row: organizations.OrganizationRow) -> Organization:
    return Organization(row.id, row.name, unix_seconds(row.created_at), seconds_or_none(row.suspended_at))
