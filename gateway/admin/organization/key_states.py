"""Changes of a project's key during its life, over HTTP: a new secret, and suspension."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, post
from litestar.params import FromPath

from gateway.admin.access import Nothing, needs, read_body
from gateway.admin.organization.key_restrictions import check_not_less_restricted
from gateway.admin.organization.key_wire import ApiKey, CreatedKey, api_key, created_key
from gateway.admin.organization.keys import existing_key, record_key
from gateway.admin.organization.projects import active_project
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import keys
from gateway.domain.errors import Conflict
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.keys import new_key

MAX_GRACE_S = 30 * 86_400


class RotateKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to give a key a new secret."""

    grace_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_GRACE_S)] = 86_400
    """Seconds for which the old secret stays valid."""


class KeyStateController(Controller):
    """Endpoints that rotate, suspend and resume an API key of a project."""

    path = "/projects/{project_id:str}/api_keys/{key_id:str}"

    @post("/rotate", status_code=200, opt=needs("keys.write", body=RotateKey))
    async def rotate_key(
        self,
        project_id: FromPath[str],
        key_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> CreatedKey:
        """Give an API key a new secret. The old secret stays valid for `grace_seconds`."""
        wanted = await read_body(request, RotateKey)
        grace = datetime.timedelta(seconds=wanted.grace_seconds)
        made = new_key("project")
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await existing_key(conn, project_id, key_id)
            await check_not_less_restricted(conn, caller, before.expires_at, before.ip_allow)
            if not await keys.rotate_key(conn, project_id, key_id, public=made.public, sha256=made.sha256, grace=grace):
                raise _already_revoked()
            after = await existing_key(conn, project_id, key_id)
            await record_key(conn, caller, "api_key.rotated", before, after)
        return created_key(after, made.secret)

    @post("/suspend", status_code=200, opt=needs("keys.write", body=Nothing))
    async def suspend_key(
        self,
        project_id: FromPath[str],
        key_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> ApiKey:
        """Refuse an API key, in every gateway within a second, until it is resumed."""
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, project_id, key_id, True)

    @post("/resume", status_code=200, opt=needs("keys.write", body=Nothing))
    async def resume_key(
        self,
        project_id: FromPath[str],
        key_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> ApiKey:
        """Let a suspended API key work again."""
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, project_id, key_id, False)


async def _set_suspended(
    services: AdminServices, caller: Actor, project_id: str, key_id: str, suspended: bool
) -> ApiKey:
    async with services.database.transaction() as conn:
        await active_project(conn, caller.organization_id, project_id)
        before = await existing_key(conn, project_id, key_id)
        if before.revoked_at is not None and not suspended:
            raise _already_revoked()
        if (before.suspended_at is not None) == suspended:
            return api_key(before)
        await keys.set_key_suspended(conn, project_id, key_id, suspended)
        after = await existing_key(conn, project_id, key_id)
        await record_key(conn, caller, "api_key.suspended" if suspended else "api_key.resumed", before, after)
        return api_key(after)


def _already_revoked() -> Conflict:
    return Conflict("The API key is revoked.", param="key_id", code="api_key_revoked")
