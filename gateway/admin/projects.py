"""Projects over HTTP. A tenant is a project."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath

from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.api.fields import decode
from gateway.db import projects
from gateway.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""Goes through `check_name` as well."""

UNPRINTABLE = ("Cc", "Cf", "Zl", "Zp")
"""Unicode categories: control characters, invisible ones such as those that turn text around, line separators."""


class CreateProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class Project(msgspec.Struct, frozen=True):
    """Times in Unix seconds."""

    id: str
    name: str
    created_at: int
    archived_at: int | None = None
    status: Literal["active"] = "active"
    object: Literal["organization.project"] = "organization.project"


_create_decoder = msgspec.json.Decoder(CreateProject)


class ProjectController(Controller):
    path = "/projects"

    @get()
    async def list_projects(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page:
        query = read_list_query(request.query_params, by_name=True)
        async with services.database.acquire() as conn:
            if query.name is not None:
                found = await projects.find_project(conn, caller.organization_id, query.name)
                return page([_wire(found)] if found else [], query.limit)
            if query.after and await projects.get_project(conn, caller.organization_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await projects.list_projects(conn, caller.organization_id, after=query.after, limit=query.limit + 1)
        return page([_wire(row) for row in rows], query.limit)

    @post(status_code=200)
    async def create_project(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Project:
        wanted = decode(_create_decoder, await request.body())
        check_name(wanted.name)
        async with services.database.acquire() as conn:
            row = await projects.create_project(conn, caller.organization_id, wanted.name)
        if row is None:
            raise Conflict(f"A project named '{wanted.name}' exists already.", param="name")
        return _wire(row)

    @get("/{project_id:str}")
    async def get_project(self, project_id: FromPath[str], services: Services, caller: Caller) -> Project:
        async with services.database.acquire() as conn:
            return _wire(await existing_project(conn, caller.organization_id, project_id))


def check_name(name: str) -> None:
    """Raises InvalidRequest for a name that does not look like what it is."""
    if name != name.strip():
        reason = "it must not begin or end with a space"
    elif any(unicodedata.category(character) in UNPRINTABLE for character in name):
        reason = "it must not hold control characters or invisible ones"
    else:
        return
    raise InvalidRequest(f"Invalid value for 'name': {reason}.", param="name", code="invalid_value")


async def existing_project(conn: Connection, organization_id: str, project_id: str) -> projects.ProjectRow:
    """Raises NotFound, alike for another organization's project and for none."""
    row = await projects.get_project(conn, organization_id, project_id)
    if row is None:
        raise NotFound(f"No project has the id '{project_id}'.", param="project_id")
    return row


def _wire(row: projects.ProjectRow) -> Project:
    return Project(id=row.id, name=row.name, created_at=int(row.created_at.timestamp()))
