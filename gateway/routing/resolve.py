"""Model strings to routes: `<base>` or `<base>:<adapter>`, within what one tenant may use.

An adapter that belongs to somebody else is looked up, and missed, exactly like one that does not exist.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from gateway.db.adapters import AdapterRow, find_adapter, list_adapters
from gateway.db.changes import Change
from gateway.db.pool import UNAVAILABLE, Database
from gateway.errors import ModelNotFound, Overloaded

RETRY_AFTER_S = 1.0


class Route(msgspec.Struct, frozen=True):
    """Where a request goes: the pool of a base model, and the adapter to apply there."""

    base: str
    adapter: AdapterRow | None

    @property
    def model(self) -> str:
        """The id clients use."""
        return self.base if self.adapter is None else f"{self.base}:{self.adapter.name}"


class Resolver:
    """Remembers adapters it has found until the change feed says that they changed; pass it `changed` to subscribe."""

    def __init__(self, database: Database, bases: frozenset[str]) -> None:
        self._database = database
        self._bases = bases
        self._found: dict[tuple[str, str], AdapterRow] = {}
        self._generation = 0  # an answer asked for under an older one may be stale and is not remembered

    async def resolve(self, project_id: str, model: str, allowed: Container[str] | None = None) -> Route:
        """Raises ModelNotFound, and Overloaded when the database cannot be asked. allowed: models, None for all."""
        base, colon, name = model.partition(":")
        if base not in self._bases or (colon and not name) or (allowed is not None and model not in allowed):
            raise ModelNotFound(model)
        if not colon:
            return Route(base, None)
        adapter = self._found.get((project_id, name)) or await self._find(project_id, name)
        if adapter is None:
            raise ModelNotFound(model)
        return Route(base, adapter)

    async def list_routes(self, project_id: str, allowed: Container[str] | None = None) -> list[Route]:
        """Everything this tenant may use: each base, then each of its adapters on it, oldest first.

        allowed: as in `resolve`.
        """
        try:
            async with self._database.acquire() as conn:
                adapters = await list_adapters(conn, project_id)
        except UNAVAILABLE:
            raise _unavailable() from None
        routes = [Route(base, adapter) for base in sorted(self._bases) for adapter in (None, *adapters)]
        return [route for route in routes if allowed is None or route.model in allowed]

    def changed(self, change: Change | None) -> None:
        """Forget what a change may have made stale; None: everything."""
        if change is None:
            self._found.clear()
        elif change.table == "adapters":
            self._found = {key: row for key, row in self._found.items() if key[0] != change.project_id}
        self._generation += 1

    async def _find(self, project_id: str, name: str) -> AdapterRow | None:
        generation = self._generation
        if "\0" in name:  # PostgreSQL's text cannot hold it
            return None
        try:
            async with self._database.acquire() as conn:
                adapter = await find_adapter(conn, project_id, name)
        except UNAVAILABLE:
            raise _unavailable() from None
        if adapter is not None and generation == self._generation:
            self._found[project_id, name] = adapter
        return adapter


def _unavailable() -> Overloaded:
    return Overloaded("The model cannot be looked up at the moment.", retry_after_s=RETRY_AFTER_S)
