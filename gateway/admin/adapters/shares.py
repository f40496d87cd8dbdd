"""The other projects that may call an adapter, over HTTP: the operator decides, since they are other tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, check_name, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.adapters import shares
from gateway.db.organization import audit, projects
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ShareAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The project with which an adapter is to be shared."""

    project_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """The id of the project that may call the adapter from now on."""


class Share(msgspec.Struct, frozen=True):
    """An adapter that another project may call."""

    id: str
    adapter: str
    project_id: str
    """The id of the project that may call the adapter, beside its owner."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.adapter.share"] = "organization.project.adapter.share"


class DeletedShare(msgspec.Struct, frozen=True):
    """A project with which an adapter is no longer shared."""

    adapter: str
    project_id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.share.deleted"] = "organization.project.adapter.share.deleted"


class ShareController(Controller):
    """Endpoints for the projects with which an adapter is shared."""

    path = "/projects/{project_id:str}/adapters/{name:str}/shares"

    @get(opt=needs("organization.read", query=LIST_QUERY))
    async def list_shares(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Page[Share]:
        """List the projects with which an adapter is shared."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await shares.list_shares(conn, await _adapter_id(conn, project_id, name))
        return page_of_all([_wire(row, name) for row in rows], query)

    @post(status_code=200, opt=needs("projects.write", body=ShareAdapter))
    async def share_adapter(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Share:
        """Let another project call an adapter under its name, always in its current version.

        The other project sees nothing else of the owner. If it has an adapter of the same name, its own adapter wins.
        Its requests are its own, at the price of the adapter's class and with the adapter's defaults.
        """
        wanted = await read_body(request, ShareAdapter)
        check_name(wanted.project_id, "project_id")
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            adapter_id = await _adapter_id(conn, project_id, name)
            if wanted.project_id == project_id:
                raise wrong_value("project_id", "the adapter belongs to this project already")
            await _check_active(conn, caller.organization_id, wanted.project_id)
            known = await shares.find_share(conn, adapter_id, wanted.project_id)
            if known is not None:
                return _wire(known, name)
            row = await shares.create_share(conn, adapter_id, name, wanted.project_id)
            if row is None:
                raise Conflict(
                    f"Another adapter named '{name}' is already shared with the project.", param="project_id"
                )
            made = _wire(row, name)
            await audit.record(
                conn, audit_author(caller), "adapter.shared", adapter_id, project_id=project_id, after=made
            )
        return made

    @delete("/{other_project_id:str}", status_code=200, opt=needs("projects.write"))
    async def unshare_adapter(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        other_project_id: FromPath[str],
        services: Services,
        caller: Caller,
    ) -> DeletedShare:
        """Stop sharing an adapter with a project. Requests that run finish."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            adapter_id = await _adapter_id(conn, project_id, name)
            row = await shares.find_share(conn, adapter_id, other_project_id)
            if row is None:
                raise NotFound(
                    f"The adapter is not shared with a project with the id '{other_project_id}'.",
                    param="other_project_id",
                )
            await shares.remove_share(conn, adapter_id, other_project_id)
            before = _wire(row, name)
            await audit.record(
                conn, audit_author(caller), "adapter.unshared", adapter_id, project_id=project_id, before=before
            )
        return DeletedShare(name, other_project_id)


async def _adapter_id(conn: Connection, project_id: str, name: str) -> str:
    adapter_id = await shares.find_own_adapter(conn, project_id, name)
    if adapter_id is None:
        raise NotFound(f"The project has no adapter named '{name}'.", param="name")
    return adapter_id


async def _check_active(conn: Connection, organization_id: str, project_id: str) -> None:
    """Check that the organization has an active project with this id.

    Raises InvalidRequest: when it has none; the error is the same where another organization has such a project.
    """
    found = await projects.get_project(conn, organization_id, project_id)
    if found is None or found.archived_at is not None:
        raise wrong_value("project_id", "the organization has no active project with this id")


def _wire(row: shares.ShareRow, adapter: str) -> Share:
    return Share(row.id, adapter, row.project_id, unix_seconds(row.created_at))
