"""A project's routes over HTTP: model ids behind which a routing policy stands, with versions and rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.names import check_name, claim_name
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.routing.documents import check_payers, checked_document
from gateway.admin.routing.wire import (
    CreateRoute,
    DeletedRoute,
    RollBackRoute,
    RouteVersion,
    RoutingPolicy,
    UpdateRoute,
    route_wire,
    shown_version,
)
from gateway.admin.services import Caller, Services
from gateway.db.experiments.experiments import draft_of
from gateway.db.organization import audit
from gateway.db.routing import routes
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.routing.policy.checks import read_document

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ROUTES = 200


class RouteController(Controller):
    """Endpoints for the routes of a project."""

    path = "/projects/{project_id:str}/routes"

    @get(opt=needs("routes.read", query=LIST_QUERY))
    async def list_routes(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[RoutingPolicy]:
        """List the routes of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await routes.list_owned_routes(conn, project_id)
        return page_of_all([route_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("routes.write", body=CreateRoute))
    async def create_route(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RoutingPolicy:
        """Create a route."""
        wanted = await read_body(request, CreateRoute)
        check_name("name", wanted.name, "route")
        document = await checked_document(services, wanted, caller, project_id)
        async with services.database.transaction() as conn:
            names = await claim_name(conn, services, caller.organization_id, project_id, wanted.name)
            draft = await draft_of(conn, project_id, wanted.name)
            if draft is not None:
                raise Conflict(
                    f"The draft of the experiment '{draft}' has the model string '{wanted.name}'.", param="name"
                )
            if sum(each.target_kind == "route" for each in names) >= MAX_ROUTES:
                raise InvalidRequest(
                    f"The project already has {MAX_ROUTES} routes, the most there can be. Remove one first."
                )
            await routes.create_route(conn, project_id, wanted.name, document)
            made = await _existing_route(conn, project_id, wanted.name)
            await audit.record(conn, audit_author(caller), "route.created", made.id, project_id=project_id, after=made)
        return made

    @get("/{name:str}", opt=needs("routes.read"))
    async def get_route(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> RoutingPolicy:
        """Return a route."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return await _existing_route(conn, project_id, name)

    @get("/{name:str}/versions", opt=needs("routes.read", query=LIST_QUERY))
    async def list_route_versions(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Page[RouteVersion]:
        """List the versions of a route that are kept, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            route = await _existing_route(conn, project_id, name)
            rows = await routes.list_versions(conn, project_id, route.id)
        return page_of_all([shown_version(row) for row in rows], query)

    @post("/{name:str}", status_code=200, opt=needs("routes.write", body=UpdateRoute))
    async def update_route(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> RoutingPolicy:
        """Let a new version of a route answer. Requests within the next second may still get the version before."""
        wanted = await read_body(request, UpdateRoute)
        document = await checked_document(services, wanted, caller, project_id)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await _existing_route(conn, project_id, name)
            if before.document == msgspec.json.decode(document):
                return before
            await routes.update_route(conn, project_id, before.id, document)
            after = await _existing_route(conn, project_id, name)
            await audit.record(
                conn, audit_author(caller), "route.updated", after.id, project_id=project_id, before=before, after=after
            )
        return after

    @post("/{name:str}/rollback", status_code=200, opt=needs("routes.write", body=RollBackRoute))
    async def roll_back_route(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> RoutingPolicy:
        """Let an earlier version of a route answer again, as it was: targets that are gone since are passed over."""
        wanted = await read_body(request, RollBackRoute)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await _existing_route(conn, project_id, name)
            version = await _version(conn, project_id, before, wanted.version)
            await check_payers(conn, caller, read_document(version.document.encode()))
            if before.version == wanted.version:
                return before
            await routes.set_version(conn, project_id, before.id, wanted.version)
            after = await _existing_route(conn, project_id, name)
            await audit.record(
                conn,
                audit_author(caller),
                "route.rolled_back",
                after.id,
                project_id=project_id,
                before=before,
                after=after,
            )
        return after

    @delete("/{name:str}", status_code=200, opt=needs("routes.write"))
    async def delete_route(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> DeletedRoute:
        """Delete a route with its versions."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await _existing_route(conn, project_id, name)
            await routes.remove_route(conn, project_id, before.id)
            await audit.record(
                conn, audit_author(caller), "route.deleted", before.id, project_id=project_id, before=before
            )
        return DeletedRoute(name)


async def _existing_route(conn: Connection, project_id: str, name: str) -> RoutingPolicy:
    row = await routes.find_route(conn, project_id, name)
    if row is None:
        raise NotFound(f"The project has no route named '{name}'.", param="name")
    return route_wire(row)


async def _version(conn: Connection, project_id: str, route: RoutingPolicy, version: int) -> routes.RouteVersionRow:
    row = await routes.find_route_version(conn, project_id, route.id, version)
    if row is None:
        raise wrong_value("version", f"the route '{route.name}' has no version {version} that is kept")
    return row
