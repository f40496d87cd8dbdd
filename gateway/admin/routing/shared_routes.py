"""An organization's routes over HTTP: model ids that answer in all its projects, with versions and rollback.

A project's own name hides the organization's, so that nothing changes for a project whose name was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.names import check_name
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.routing.documents import check_payers, checked_shared_document
from gateway.admin.routing.wire import (
    CreateRoute,
    DeletedRoute,
    RollBackRoute,
    RouteVersion,
    RoutingPolicy,
    SharedRoute,
    UpdateRoute,
    route_wire,
    shown_version,
)
from gateway.admin.services import Caller, Services
from gateway.db.adapters.aliases import list_aliases
from gateway.db.organization import audit
from gateway.db.organization.organizations import lock_organization
from gateway.db.pools.managed import is_usable_by_any
from gateway.db.pools.pools import keep_pools
from gateway.db.routing import routes
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.routing.policy.checks import read_document

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_SHARED_ROUTES = 200
"""The most routes of an organization."""


@get("/projects/{project_id:str}/shared_routes", opt=needs("routes.read", query=LIST_QUERY))
async def list_shared_routes(
    project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
) -> Page[SharedRoute]:
    """List the routes that the organization has made for all projects, as far as a project needs to know them."""
    query = read_list_query(request.query_params)
    async with services.database.acquire() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        rows = await routes.list_owned_routes(conn, caller.organization_id)
        own = {each.name for each in await list_aliases(conn, project_id)}
    return page_of_all([SharedRoute(row.id, row.name, row.version, row.name in own) for row in rows], query)


class SharedRouteController(Controller):
    """Endpoints for the routes of the organization, which answer in all projects."""

    path = "/routes"

    @get(opt=needs("routes.read", query=LIST_QUERY))
    async def list_organization_routes(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[RoutingPolicy]:
        """List the routes of the organization, which answer in all its projects."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            rows = await routes.list_owned_routes(conn, caller.organization_id)
        return page_of_all([route_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("routes.write", body=CreateRoute))
    async def create_organization_route(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RoutingPolicy:
        """Create a route for all projects of the organization. A project that has the name itself keeps its own."""
        wanted = await read_body(request, CreateRoute)
        check_name("name", wanted.name, "route")
        document = await checked_shared_document(services, wanted, caller)
        organization_id = caller.organization_id
        async with services.database.transaction() as conn:
            await keep_pools(conn)
            await lock_organization(conn, organization_id)
            is_served = wanted.name in services.bases.visible("", organization_id)
            if is_served or await is_usable_by_any(conn, wanted.name, organization_id):
                raise wrong_value("name", "a base model has this name")
            if len(await routes.list_owned_routes(conn, organization_id)) >= MAX_SHARED_ROUTES:
                raise InvalidRequest(
                    f"The organization already has {MAX_SHARED_ROUTES} routes, the most there can be. Remove one first."
                )
            if not await routes.create_shared_route(conn, organization_id, wanted.name, document):
                raise Conflict(f"A route of the organization has the name '{wanted.name}'.", param="name")
            made = await _existing_route(conn, organization_id, wanted.name)
            await audit.record(conn, audit_author(caller), "route.created", made.id, after=made)
        return made

    @get("/{name:str}", opt=needs("routes.read"))
    async def get_organization_route(self, name: FromPath[str], services: Services, caller: Caller) -> RoutingPolicy:
        """Return a route of the organization."""
        async with services.database.acquire() as conn:
            return await _existing_route(conn, caller.organization_id, name)

    @get("/{name:str}/versions", opt=needs("routes.read", query=LIST_QUERY))
    async def list_organization_route_versions(
        self, name: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[RouteVersion]:
        """List the versions of a route of the organization that are kept, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            route = await _existing_route(conn, caller.organization_id, name)
            rows = await routes.list_versions(conn, caller.organization_id, route.id)
        return page_of_all([shown_version(row) for row in rows], query)

    @post("/{name:str}", status_code=200, opt=needs("routes.write", body=UpdateRoute))
    async def update_organization_route(
        self, name: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RoutingPolicy:
        """Let a new version of a route answer in all projects.

        Requests within the next second may still get the version before.
        """
        wanted = await read_body(request, UpdateRoute)
        document = await checked_shared_document(services, wanted, caller)
        organization_id = caller.organization_id
        async with services.database.transaction() as conn:
            await lock_organization(conn, organization_id)
            before = await _existing_route(conn, organization_id, name)
            if before.document == msgspec.json.decode(document):
                return before
            await routes.update_route(conn, organization_id, before.id, document)
            after = await _existing_route(conn, organization_id, name)
            await audit.record(conn, audit_author(caller), "route.updated", after.id, before=before, after=after)
        return after

    @post("/{name:str}/rollback", status_code=200, opt=needs("routes.write", body=RollBackRoute))
    async def roll_back_organization_route(
        self, name: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RoutingPolicy:
        """Let an earlier version of a route answer again in all projects, as it was."""
        wanted = await read_body(request, RollBackRoute)
        organization_id = caller.organization_id
        async with services.database.transaction() as conn:
            await lock_organization(conn, organization_id)
            before = await _existing_route(conn, organization_id, name)
            version = await routes.find_route_version(conn, organization_id, before.id, wanted.version)
            if version is None:
                raise wrong_value("version", f"the route '{name}' has no version {wanted.version} that is kept")
            await check_payers(conn, caller, read_document(version.document.encode()))
            if before.version == wanted.version:
                return before
            await routes.set_version(conn, organization_id, before.id, wanted.version)
            after = await _existing_route(conn, organization_id, name)
            await audit.record(conn, audit_author(caller), "route.rolled_back", after.id, before=before, after=after)
        return after

    @delete("/{name:str}", status_code=200, opt=needs("routes.write"))
    async def delete_organization_route(self, name: FromPath[str], services: Services, caller: Caller) -> DeletedRoute:
        """Delete a route of the organization with its versions."""
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            before = await _existing_route(conn, caller.organization_id, name)
            await routes.remove_route(conn, caller.organization_id, before.id)
            await audit.record(conn, audit_author(caller), "route.deleted", before.id, before=before)
        return DeletedRoute(name)


async def _existing_route(conn: Connection, organization_id: str, name: str) -> RoutingPolicy:
    row = await routes.find_route(conn, organization_id, name)
    if row is None:
        raise NotFound(f"The organization has no route named '{name}'.", param="name")
    return route_wire(row)
