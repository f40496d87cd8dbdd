"""Model strings to routes, within the models that one tenant may use, remembered until a change.

An adapter that belongs to somebody else is looked up, and missed, exactly like one that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from adapters.ref import AdapterRef
from gateway.db.adapters.routes import (
    NamedTarget,
    RouteRow,
    find_current,
    find_named,
    find_shared,
    find_version,
    list_named,
    list_routes,
    list_shared,
)
from gateway.db.changes import Change
from gateway.db.pool import LOOKUP_TIMEOUT_S, UNAVAILABLE, Database
from gateway.db.pools.served import pools_serving
from gateway.domain.adapters.defaults import Defaults
from gateway.domain.errors import ModelNotFound, Overloaded
from gateway.domain.experiments.treatment import Treatment
from gateway.domain.routing.bases import Bases
from gateway.domain.routing.model_string import WantedAdapter, read_model
from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.document import targets_of
from gateway.domain.tenancy.principal import Principal
from gateway.routing.experiments import ExperimentLoader, ProjectKey, RunningExperiment
from gateway.routing.policies import RoutedPolicy
from gateway.routing.route import OwnName, Route, RoutedAdapter

RETRY_AFTER_S = 1.0

_DEFAULTS = msgspec.json.Decoder(Defaults)
_TREATMENT = msgspec.json.Decoder(Treatment)

Found = Route | RunningExperiment | RoutedPolicy


class Resolver:
    """The cached mapping of model strings to routes. Its `changed` must be subscribed to the change feed.

    An adapter answers under every pool of its own base, and under no other.
    """

    def __init__(self, database: Database, bases: Bases, project_key: ProjectKey) -> None:
        """Initialize an empty cache.

        bases: the served base models, which may change in place; call `changed(None)` when they did. project_key: gives
        the secrets under which units of experiments are digested.
        """
        self._database = database
        self._experiments = ExperimentLoader(database, bases, project_key)
        self.bases = bases
        """The base models that are served, each with those who may use it."""
        self._found: dict[str, dict[str, Found]] = {}  # by project and model string
        self._borrowers: dict[str, set[str]] = {}  # projects for which something of an owner's was found
        self._generation = 0  # an answer asked for under an older one may be stale and is not remembered

    async def resolve(self, principal: Principal, model: str) -> Route:
        """Return the route of a request that exposes no unit to an experiment.

        A request of an experiment goes where its control goes, and one of a policy to the policy's first target that
        can be used.

        Raises as `find`.
        """
        found = await self.find(principal, model)
        route = await self._usual_route(principal.project_id, principal.organization_id, found)
        if route is None:
            raise ModelNotFound(model)
        return route

    async def find(self, principal: Principal, model: str) -> Found:
        """Return the route of a project's key for a model, or the experiment or policy that decides for each request.

        Raises ModelNotFound: when the key may use no such model; the error is the same as if there were none.
        Raises Overloaded: when the database cannot be asked.
        """
        found = await self.look_up(principal.project_id, principal.organization_id, model)
        if found is None or not found.is_in(principal.models):
            raise ModelNotFound(model)
        return found

    async def look_up(self, project_id: str, organization_id: str, model: str) -> Found | None:
        """Return the target of a project's model string, without regard to keys' allow-lists; None for an unknown one.

        Raises Overloaded: when the database cannot be asked.
        """
        if self.bases.is_visible(model, project_id, organization_id):
            return Route(model, model, model)
        known = self._found.get(project_id)
        return (known.get(model) if known else None) or await self._find_target(project_id, organization_id, model)

    async def list_routes(self, principal: Principal) -> list[Route]:
        """Return everything that a project's key may use: bases, adapters and aliases.

        Adapters are the project's own and those shared with it. Versions that the key's models name come last.

        Raises Overloaded: when the database cannot be asked.
        """
        project_id, organization_id, allowed = principal.project_id, principal.organization_id, principal.models
        try:
            async with self._database.acquire() as conn:
                rows, names = await list_routes(conn, project_id), await list_named(conn, project_id)
                names += await list_shared(conn, organization_id, project_id)
        except UNAVAILABLE:
            raise _unavailable() from None
        visible = self.bases.visible(project_id, organization_id)
        found: list[Found | None] = [Route(name, name, name) for name in visible]
        for row in rows:
            pools = [pool for pool in self.bases.pools_of(row.base_digest) if pool in visible]
            found += [_route(pool, f"{pool}:{row.name}", row) for pool in pools]
        for each in names:
            if each.experiment_id is not None or each.policy is not None:
                known = self._found.get(project_id, {}).get(each.name)
                found.append(known or await self._find_target(project_id, organization_id, each.name))
            elif each.version is None or self.bases.pools_of(each.version.base_digest):
                found.append((await self._target_of_name(project_id, organization_id, each))[0])
        for model in sorted(allowed or ()):
            if "@" in model:
                found.append(await self._find_target(project_id, organization_id, model))
        allowed_ones = [each for each in found if each is not None and each.is_in(allowed)]
        routes = [await self._usual_route(project_id, organization_id, each) for each in allowed_ones]
        return [route for route in routes if route is not None]

    def changed(self, change: Change | None) -> None:
        """Forget the answers that a change may have made stale; None: all answers."""
        is_shared_route = change is not None and change.table == "routes" and change.project_id is None
        if change is None or is_shared_route:  # a route of an organization answers in all its projects
            self._found.clear()
            self._borrowers.clear()
        elif change.table in ("adapters", "model_aliases", "adapter_shares", "experiments", "routes"):
            self._forget(change.project_id)
        elif change.table == "projects":  # a share of an archived project
            self._forget(change.id)
        self._generation += 1

    async def _usual_route(self, project_id: str, organization_id: str, found: Found) -> Route | None:
        """Return one route for all requests: that of an experiment's control, or of a policy's first usable target."""
        if isinstance(found, RunningExperiment):
            return found.control
        if isinstance(found, Route):
            return found
        for target in targets_of(found.document):
            each = await self.look_up(project_id, organization_id, target)
            route = each.control if isinstance(each, RunningExperiment) else each
            if isinstance(route, Route):
                return msgspec.structs.replace(route, id=found.name, named=found.named)
        return None

    def _forget(self, project_id: str | None) -> None:
        """Forget the routes of a project, and of all projects that call its adapters.

        project_id: None: of all projects.
        """
        if project_id is not None:
            for each in (project_id, *self._borrowers.pop(project_id, ())):
                self._found.pop(each, None)

    def _cache_route(self, project_id: str, model: str, found: Found) -> None:
        self._found.setdefault(project_id, {})[model] = found
        if isinstance(found, Route) and found.adapter is not None and found.adapter.is_shared:
            self._borrowers.setdefault(found.adapter.ref.tenant, set()).add(project_id)

    async def _find_target(self, project_id: str, organization_id: str, model: str) -> Found | None:
        visible = self.bases.visible(project_id, organization_id)
        wanted = read_model(model, visible)
        if wanted is None:
            return None
        generation = self._generation
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                found, is_sure = await self._ask_database(project_id, organization_id, model, wanted, visible)
        except UNAVAILABLE:
            raise _unavailable() from None
        if found is not None and generation == self._generation and is_sure:
            self._cache_route(project_id, model, found)
        return found

    async def _ask_database(
        self, project_id: str, organization_id: str, model: str, wanted: WantedAdapter, visible: Collection[str]
    ) -> tuple[Found | None, bool]:
        """Query the database for the target of a model string. Return it, and whether it may be cached."""
        if wanted.is_alias:
            async with self._database.acquire() as conn:
                named = await find_named(conn, project_id, wanted.name)
                if named is None:
                    named = await find_shared(conn, organization_id, project_id, wanted.name)
            return await self._target_of_name(project_id, organization_id, named)
        row = await self._look_up(project_id, wanted)
        pool, is_sure = await self._pool_of(row, visible, wanted.base)
        return None if row is None or pool is None else _route(pool, model, row), is_sure

    async def _target_of_name(
        self, project_id: str, organization_id: str, named: NamedTarget | None
    ) -> tuple[Found | None, bool]:
        """Return the target of a project's own name, and whether it may be cached."""
        if named is None:
            return None, True
        if named.experiment_id is not None:
            loaded = self._experiments.load(project_id, organization_id, named.experiment_id, named.created_at)
            return await loaded, True
        if named.policy is not None:
            owner = organization_id if named.is_shared else project_id
            of_several = OwnName(owner, named.created_at, has_several_targets=True)
            policy, document = named.policy, read_document(named.policy.document.encode())
            return RoutedPolicy(policy.route_id, named.name, policy.version, document, of_several), True
        own, treatment = OwnName(project_id, named.created_at), _treatment(named)
        visible = self.bases.visible(project_id, organization_id)
        if named.version is None:
            pool = named.pool if named.pool in visible else None
            return None if pool is None else Route(named.name, pool, pool, None, treatment, own), True
        chosen = named.pool if named.pool in visible else None
        pool, is_sure = await self._pool_of(named.version, visible, chosen)
        if pool is None and chosen is not None:  # it serves another base by now
            pool, is_sure = await self._pool_of(named.version, visible)
        if pool is None:
            return None, is_sure
        route = _route(pool, named.name, named.version)
        return msgspec.structs.replace(route, treatment=treatment, named=own), is_sure

    async def _pool_of(
        self, row: RouteRow | None, visible: Collection[str], wanted: str | None = None
    ) -> tuple[str | None, bool]:
        """Return the pool that serves a version, and whether that may be cached.

        wanted: the pool that it has to be; None: any that the project may use. row: the version; None where there is
        none, and so no pool. visible: the pools that the project may use.
        """
        if row is None:
            return None, True
        pools, is_sure = self.bases.pools_of(row.base_digest), True
        if not pools:
            # Adapters go with their pool to another base, of which this gateway may not know for a moment.
            async with self._database.acquire() as conn:
                pools, is_sure = await pools_serving(conn, row.base_digest or ""), False
        pool = wanted or next((pool for pool in pools if pool in visible), None)
        return pool if pool in pools else None, is_sure

    async def _look_up(self, project_id: str, wanted: WantedAdapter) -> RouteRow | None:
        async with self._database.acquire() as conn:
            if wanted.version is not None:
                return await find_version(conn, project_id, wanted.name, wanted.version)
            return await find_current(conn, project_id, wanted.name)


def _route(pool: str, model: str, row: RouteRow) -> Route:
    ref = AdapterRef(row.project_id, row.name, row.version, row.digest)
    adapter = RoutedAdapter(row.adapter_id, ref, ref.key, _DEFAULTS.decode(row.defaults), row.created_at, row.is_shared)
    return Route(model, f"{pool}:{row.name}", pool, adapter)


def _treatment(named: NamedTarget) -> Treatment | None:
    return None if named.treatment is None else _TREATMENT.decode(named.treatment)


def _unavailable() -> Overloaded:
    return Overloaded(
        "The model cannot be looked up at the moment. Try again in a moment.", retry_after_s=RETRY_AFTER_S
    )
