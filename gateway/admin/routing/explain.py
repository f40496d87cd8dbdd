"""Explains over HTTP which models a request would be sent to and why, by a route or a model's name. Nothing runs."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Controller, Request, post
from litestar.params import FromPath

from gateway.admin.access import needs, read_body
from gateway.admin.organization.keys import existing_key
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.routing.request_body import read_request_body
from gateway.admin.routing.wire import (
    ExplainedCopy,
    ExplainedEdge,
    ExplainedStep,
    ExplainedTarget,
    ExplainModel,
    ExplainRoute,
    ModelExplanation,
    ModelKind,
    RouteExplanation,
)
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.adapters.aliases import find_alias
from gateway.db.ids import new_id
from gateway.db.routing import routes
from gateway.domain.errors import ModelNotFound, NotFound
from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.document import Document, Node
from gateway.domain.routing.policy.facts import Facts
from gateway.domain.tenancy.actor import Actor
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned
from gateway.routing.policies import RoutedPolicy

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")

ANOTHER = "another project"
"""The text in place of the id of a paying project that the reader may not know."""


class ExplainController(Controller):
    """Endpoints that explain the plan of a request without running it."""

    path = "/projects/{project_id:str}"

    @post("/plans/explain", status_code=200, opt=needs("routes.read", body=ExplainModel))
    async def explain_model(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> ModelExplanation:
        """Explain which models a request of a project would be sent to now, and why, without running the request.

        The model is a base model, an adapter, an alias, an experiment, or a route of the project or of the
        organization.
        """
        wanted = await read_body(request, ExplainModel)
        asked, minute = read_request_body(wanted), _minute(wanted.time)
        allowed = None
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if wanted.api_key_id is not None:
                allowed = (await existing_key(conn, project_id, wanted.api_key_id)).models
        found = await services.planner.find(project_id, caller.organization_id, wanted.model)
        if found is None:
            raise ModelNotFound(wanted.model)
        kind: ModelKind = "experiment" if isinstance(found, RunningExperiment) else "model"
        document, version = Document(Node(target=wanted.model)), None
        if isinstance(found, RoutedPolicy):
            kind = "route" if found.named.owner_id == project_id else "shared_route"
            document, version = found.document, asked.version or found.version
            if version != found.version:
                async with services.database.acquire() as conn:
                    document = await _stored_document(conn, found.named.owner_id, found.id, version)
        facts = _facts(asked, found.id, minute)
        planned = await services.planner.plan(project_id, caller.organization_id, document, facts)
        explained = _route_explanation(wanted.model, version or 0, planned, project_id, caller)
        return ModelExplanation(
            wanted.model,
            kind,
            version,
            found.is_in(allowed),
            explained.request_id,
            asked.prompt_tokens,
            explained.steps,
            explained.trace,
            explained.targets,
        )

    @post("/routes/{name:str}/explain", status_code=200, opt=needs("routes.read", body=ExplainRoute))
    async def explain_route(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> RouteExplanation:
        """Explain the decisions that a route would take for a request of a project, without running it.

        A route of the organization is explained unless the project itself has the name.
        """
        wanted = await read_body(request, ExplainRoute)
        return await _explain(services, caller, project_id, name, wanted, _minute(wanted.time))


async def _explain(
    services: AdminServices, caller: Actor, project_id: str, name: str, wanted: ExplainRoute, minute: int
) -> RouteExplanation:
    async with services.database.acquire() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        owner_id, row = project_id, await routes.find_route(conn, project_id, name)
        if row is None and await find_alias(conn, project_id, name) is None:
            owner_id, row = caller.organization_id, await routes.find_route(conn, caller.organization_id, name)
        if row is None:
            raise NotFound(f"The project has no route named '{name}'.", param="name")
        version = wanted.version or row.version
        document = await _stored_document(conn, owner_id, row.id, version)
    facts = _facts(wanted, row.id, minute)
    planned = await services.planner.plan(project_id, caller.organization_id, document, facts)
    return _route_explanation(name, version, planned, project_id, caller)


async def _stored_document(conn: Connection, owner_id: str, route_id: str, version: int) -> Document:
    """Return the document of a version of a route.

    Raises InvalidRequest: when that version is not stored.
    """
    row = await routes.find_route_version(conn, owner_id, route_id, version)
    if row is None:
        raise wrong_value("version", f"the route has no version {version} that is kept")
    return read_document(row.document.encode())


def _facts(wanted: ExplainRoute, route_id: str, minute: int) -> Facts:
    """Return the facts of a request to explain. minute: the minute of the day in UTC."""
    return Facts(
        route_id=route_id,
        request_id=wanted.request_id or new_id("req"),
        user=wanted.user,
        key_id=wanted.api_key_id,
        metadata=wanted.metadata,
        num_prompts=wanted.num_prompts,
        prompt_tokens=wanted.prompt_tokens,
        max_tokens=wanted.max_tokens,
        n=wanted.n,
        tools=wanted.tools,
        tier=wanted.service_tier,
        stream=wanted.stream,
        minute=minute,
    )


def _minute(time: str | None) -> int:
    if time is None:
        now = datetime.datetime.now(datetime.UTC)
        return now.hour * 60 + now.minute
    found = _TIME.fullmatch(time)
    if found is None:
        raise wrong_value("time", "a time of day is HH:MM, from 00:00 to 23:59")
    return int(found[1]) * 60 + int(found[2])


def _route_explanation(name: str, version: int, planned: Planned, project_id: str, caller: Actor) -> RouteExplanation:
    plan, facts = planned.plan, planned.facts

    def shown(payer: str | None) -> str | None:
        is_known = payer in (None, project_id) or bool(caller.permissions)
        return payer if is_known else ANOTHER

    steps = [
        ExplainedStep(
            each.target,
            each.path,
            {str(on): at for on, at in each.then.items()},
            each.first_token_ms,
            has_check=each.accept is not None,
            hedge_ms=each.hedge_ms,
            wait_ms=each.wait_ms,
            copies=[ExplainedCopy(copy.target, copy.path, shown(copy.payer)) for copy in each.copies],
        )
        for each in plan.steps
    ]
    trace = [ExplainedEdge(each.path, each.reason) for each in plan.trace]
    targets = [ExplainedTarget(target, **msgspec.structs.asdict(each)) for target, each in facts.targets.items()]
    return RouteExplanation(name, version, facts.request_id, steps, trace, targets)
