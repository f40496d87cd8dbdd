"""Members of a project over HTTP: users of the organization with their role in the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds, with_revoked_keys
from gateway.admin.organization.key_restrictions import check_may_admit
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit, members, users
from gateway.domain.errors import NotFound
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import check_grant, project_role_permissions
from gateway.domain.tenancy.principal import Role

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class AddMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user and the role that the user gets in a project."""

    user_id: str
    role: Role


class ModifyMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new role of a member of a project."""

    role: Role


class Member(msgspec.Struct, frozen=True):
    """A user with a role in a project."""

    id: str
    """The id of the user."""
    name: str
    email: str
    role: Role
    added_at: int
    """Unix seconds."""
    object: Literal["organization.project.user"] = "organization.project.user"


class DeletedMember(msgspec.Struct, frozen=True):
    """A user who is no longer a member of a project."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.user.deleted"] = "organization.project.user.deleted"


class MemberController(Controller):
    """Endpoints for the members of a project."""

    path = "/projects/{project_id:str}/users"

    @get(opt=needs("members.read", query=LIST_QUERY))
    async def list_members(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Member]:
        """List the members of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await members.get_member(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await members.list_members(conn, project_id, after=query.after, limit=query.limit + 1)
        return page([_wire(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("members.write", body=AddMember))
    async def add_member(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Member:
        """Give a user a role in a project. A member gets this role instead of the present one."""
        wanted = await read_body(request, AddMember)
        return await _put_member(services, caller, project_id, wanted.user_id, wanted.role, is_member=False)

    @get("/{user_id:str}", opt=needs("members.read"))
    async def get_member(
        self, project_id: FromPath[str], user_id: FromPath[str], services: Services, caller: Caller
    ) -> Member:
        """Return a member of a project."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return _wire(await _existing_member(conn, project_id, user_id))

    @post("/{user_id:str}", status_code=200, opt=needs("members.write", body=ModifyMember))
    async def modify_member(
        self,
        project_id: FromPath[str],
        user_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Member:
        """Change the role of a member of a project."""
        wanted = await read_body(request, ModifyMember)
        return await _put_member(services, caller, project_id, user_id, wanted.role, is_member=True)

    @delete("/{user_id:str}", status_code=200, opt=needs("members.write"))
    async def remove_member(
        self, project_id: FromPath[str], user_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedMember:
        """Remove a user from a project, and revoke the API keys that the user owns in the project."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await _existing_member(conn, project_id, user_id)
            check_grant(caller, project_role_permissions(before.role), project_id)
            shown = with_revoked_keys(_wire(before), await members.remove_member(conn, project_id, user_id))
            await audit.record(
                conn, audit_author(caller), "member.removed", user_id, project_id=project_id, before=shown
            )
        return DeletedMember(user_id)


async def _put_member(
    services: AdminServices, caller: Actor, project_id: str, user_id: str, role: Role, *, is_member: bool
) -> Member:
    """Give a user a role in a project. is_member: whether the user has to be a member already."""
    async with services.database.transaction() as conn:
        await active_project(conn, caller.organization_id, project_id)
        known = "\0" not in user_id and await users.lock_user(conn, caller.organization_id, user_id)
        if not known and not is_member:
            raise wrong_value("user_id", "the organization has no user with this id")
        before = await _existing_member(conn, project_id, user_id) if is_member else None
        before = before or await members.get_member(conn, project_id, user_id)
        check_grant(
            caller,
            project_role_permissions(role) | project_role_permissions(before.role if before else None),
            project_id,
        )
        await check_may_admit(conn, caller)
        await members.put_member(conn, caller.organization_id, project_id, user_id, role)
        after = _wire(await _existing_member(conn, project_id, user_id))
        if before is None or before.role != role:
            event, shown = ("member.updated", _wire(before)) if before else ("member.added", None)
            await audit.record(
                conn, audit_author(caller), event, user_id, project_id=project_id, before=shown, after=after
            )
        return after


async def _existing_member(conn: Connection, project_id: str, user_id: str) -> members.MemberRow:
    row = await members.get_member(conn, project_id, user_id)
    if row is None:
        raise NotFound(f"The project has no member with the id '{user_id}'.", param="user_id")
    return row


def _wire(row: members.MemberRow) -> Member:
    return Member(id=row.id, name=row.name, email=row.email, role=row.role, added_at=unix_seconds(row.added_at))
