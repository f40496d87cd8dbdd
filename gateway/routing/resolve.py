"""Model strings to routes, within what one tenant may use, remembered until something of it changes.

An adapter that belongs to somebody else is looked up, and missed, exactly like one that does not exist.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection

import msgspec

from adapters.ref import AdapterRef
from gateway.db.adapters.routes import RouteRow, find_alias_target, find_current, find_version, list_routes
from gateway.db.changes import Change
from gateway.db.pool import UNAVAILABLE, Database
from gateway.db.pools.served import pools_serving
from gateway.domain.adapters.defaults import Defaults
from gateway.domain.errors import ModelNotFound, Overloaded
from gateway.domain.routing.bases import Bases
from gateway.domain.routing.model_string import Wanted, read_model
from gateway.domain.tenancy.principal import Principal

RETRY_AFTER_S = 1.0

_DEFAULTS = msgspec.json.Decoder(Defaults)


class RoutedAdapter(msgspec.Struct, frozen=True):
    """One version of an adapter. id: the adapter's. key: of its content, as engines know it. is_shared: another project
    of the organization owns it. created_at: of the name it was asked for by."""

    id: str
    ref: AdapterRef
    key: str
    defaults: Defaults
    created_at: datetime.datetime
    is_shared: bool

    @property
    def label(self) -> str:
        """The name of the adapter as a reply gives it."""
        return f"{self.ref.name}@{self.ref.version}"


class Route(msgspec.Struct, frozen=True):
    """Where a request goes: the pool of a base model, and the adapter to apply there.

    id: what it was asked for by. model: what limits, prices, allow-lists and the ledger know it by, `<base>` or
    `<base>:<adapter>`, whatever the version.
    """

    id: str
    model: str
    base: str
    adapter: RoutedAdapter | None = None

    def is_in(self, allowed: Collection[str] | None) -> bool:
        """Tell whether these models include the route's model; None stands for all models."""
        return allowed is None or self.model in allowed or self.id in allowed


class Resolver:
    """Remembers the routes it has found until the change feed says that they changed; pass it `changed` to subscribe.

    An adapter answers under every pool of its own base, and under no other.
    """

    def __init__(self, database: Database, bases: Bases) -> None:
        """bases: what is served, which may change in place; call `changed(None)` when it did."""
        self._database = database
        self.bases = bases
        """What is served, and who may use it."""
        self._found: dict[str, dict[str, Route]] = {}  # by project and model string
        self._borrowers: dict[str, set[str]] = {}  # projects for which something of an owner's was found
        self._generation = 0  # an answer asked for under an older one may be stale and is not remembered

    async def resolve(self, principal: Principal, model: str) -> Route:
        """Return where a request of a project's key goes.

        Raises ModelNotFound: when the key may use no such model, to the byte as if there were none.
        Raises Overloaded: when the database cannot be asked.
        """
        project_id, organization_id = principal.project_id, principal.organization_id
        if self.bases.is_visible(model, project_id, organization_id):
            route: Route | None = Route(model, model, model)
        else:
            found = self._found.get(project_id)
            route = (found.get(model) if found else None) or await self._find(project_id, organization_id, model)
        if route is None or not route.is_in(principal.models):
            raise ModelNotFound(model)
        return route

    async def list_routes(self, principal: Principal) -> list[Route]:
        """Return everything that a project's key may use: the bases, its adapters and those shared with it, and its
        aliases; versions that the key's models name come last.

        Raises Overloaded: when the database cannot be asked.
        """
        project_id, organization_id, allowed = principal.project_id, principal.organization_id, principal.models
        try:
            async with self._database.acquire() as conn:
                rows = await list_routes(conn, project_id)
        except UNAVAILABLE:
            raise _unavailable() from None
        visible = self.bases.visible(project_id, organization_id)
        routes: list[Route | None] = [Route(name, name, name) for name in visible]
        for row in rows:
            pools = [pool for pool in self.bases.pools_of(row.base_digest) if pool in visible]
            if row.alias is not None:
                pools = pools[:1]
            routes += [_route(pool, row.alias or f"{pool}:{row.name}", row) for pool in pools]
        versions = [
            await self._find(project_id, organization_id, model) for model in sorted(allowed or ()) if "@" in model
        ]
        return [route for route in (*routes, *versions) if route is not None and route.is_in(allowed)]

    def changed(self, change: Change | None) -> None:
        """Forget what a change may have made stale; None: everything."""
        if change is None:
            self._found.clear()
            self._borrowers.clear()
        elif change.table in ("adapters", "model_aliases", "adapter_shares"):
            self._forget(change.project_id)
        elif change.table == "projects":  # what an archived one shared
            self._forget(change.id)
        self._generation += 1

    def _forget(self, project_id: str | None) -> None:
        """Forget the routes of a project, and of all projects that call its adapters."""
        if project_id is not None:
            for each in (project_id, *self._borrowers.pop(project_id, ())):
                self._found.pop(each, None)

    def _remember(self, project_id: str, route: Route) -> None:
        self._found.setdefault(project_id, {})[route.id] = route
        if route.adapter is not None and route.adapter.is_shared:
            self._borrowers.setdefault(route.adapter.ref.tenant, set()).add(project_id)

    async def _find(self, project_id: str, organization_id: str, model: str) -> Route | None:
        visible = self.bases.visible(project_id, organization_id)
        wanted = read_model(model, visible)
        if wanted is None:
            return None
        generation = self._generation
        row = await self._look_up(project_id, wanted)
        pools = self.bases.pools_of(row.base_digest) if row is not None else []
        is_ahead = False
        if (
            row is not None and not pools
        ):  # adapters go with their pool to another base, of which this gateway may not know for a moment
            pools, is_ahead = await self._pools_serving(row.base_digest), True
        pool = wanted.base or next((pool for pool in pools if pool in visible), None)
        if row is None or pool not in pools:
            return None
        route = _route(pool, model, row)
        if generation == self._generation and not is_ahead:
            self._remember(project_id, route)
        return route

    async def _look_up(self, project_id: str, wanted: Wanted) -> RouteRow | None:
        try:
            async with self._database.acquire() as conn:
                if wanted.is_alias:
                    return await find_alias_target(conn, project_id, wanted.name)
                if wanted.version is not None:
                    return await find_version(conn, project_id, wanted.name, wanted.version)
                return await find_current(conn, project_id, wanted.name)
        except UNAVAILABLE:
            raise _unavailable() from None

    async def _pools_serving(self, base_digest: str | None) -> list[str]:
        try:
            async with self._database.acquire() as conn:
                return await pools_serving(conn, base_digest or "")
        except UNAVAILABLE:
            raise _unavailable() from None


def _route(pool: str, model: str, row: RouteRow) -> Route:
    ref = AdapterRef(row.project_id, row.name, row.version, row.digest)
    adapter = RoutedAdapter(row.adapter_id, ref, ref.key, _DEFAULTS.decode(row.defaults), row.created_at, row.is_shared)
    return Route(model, f"{pool}:{row.name}", pool, adapter)


def _unavailable() -> Overloaded:
    return Overloaded(
        "The model cannot be looked up at the moment. Try again in a moment.", retry_after_s=RETRY_AFTER_S
    )
