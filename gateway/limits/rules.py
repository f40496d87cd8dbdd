"""The limits that apply to a caller, remembered until the change feed reports a change. Holds no amounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gateway.db.changes import Change
from gateway.domain.limits.limit import Limit
from gateway.domain.tenancy.principal import Principal

MAX_PROJECTS = 10_000

Load = Callable[[str, str], Awaitable[Sequence[Limit]]]
"""A function that returns the limits of an organization, one of its projects and the project's keys.

It takes the ids of the organization and the project.
"""


class Sizes(msgspec.Struct, frozen=True):
    """The most tokens of a request's prompt, of its completion, and of both together; None: no bound."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None


class Applicable(msgspec.Struct, frozen=True):
    """The limits and bounds that apply to one key with one model: limits to reserve from, and bounds of one request."""

    reserving: tuple[Limit, ...]
    """The limits that a request reserves from."""
    sizes: Sizes
    """The bounds of one request."""


NOTHING = Applicable((), Sizes())


class _Project(msgspec.Struct, frozen=True):
    """The limits of one project, and those of each key and model that were asked for."""

    limits: tuple[Limit, ...]
    """All limits of the project and its organization."""
    by_caller: dict[tuple[str, str], Applicable]
    """The limits that apply to a key with a model, by key and model."""


class Rules:
    """The limits of callers, cached until they change. `changed` has to be subscribed to the change feed."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._projects: dict[str, _Project] = {}
        self._generation = 0  # an answer asked for under an older one may be stale and is not remembered

    async def applicable(self, principal: Principal, model: str) -> Applicable:
        """Return the limits that apply to a caller and a model, without I/O unless the project's limits are not known.

        Raises one of `gateway.db.pool.FAILURES`: when the limits have to be loaded and the database fails.
        """
        project = self._projects.get(principal.project_id) or await self._fetch(principal)
        if not project.limits:
            return NOTHING
        caller = (principal.api_key_id, model)
        found = project.by_caller.get(caller)
        if found is None:
            found = project.by_caller[caller] = _applicable(project.limits, *caller)
        return found

    def changed(self, change: Change | None) -> None:
        """Forget the limits that a change is about."""
        if change is None or (change.table == "limits" and change.project_id is None):
            self._projects.clear()
        elif change.table == "limits" and change.project_id is not None:
            self._projects.pop(change.project_id, None)
        self._generation += 1

    def forget(self, project_id: str) -> None:
        """Drop the cached limits of a project, since they have proved outdated: they are loaded again."""
        self._projects.pop(project_id, None)

    async def _fetch(self, principal: Principal) -> _Project:
        generation = self._generation
        limits = await self._load(principal.organization_id, principal.project_id)
        project = _Project(tuple(limit for limit in limits if limit.reserves or limit.bounds_size), {})
        if generation == self._generation:
            if len(self._projects) >= MAX_PROJECTS:
                self._projects.clear()
            self._projects[principal.project_id] = project
        return project


def _applicable(limits: Sequence[Limit], api_key_id: str, model: str) -> Applicable:
    mine = [limit for limit in limits if limit.applies(api_key_id, model)]

    def least(unit: str) -> int | None:
        return min((limit.max for limit in mine if limit.bounds_size and limit.unit == unit), default=None)

    return Applicable(
        tuple(limit for limit in mine if limit.reserves),
        Sizes(least("input_tokens"), least("output_tokens"), least("tokens")),
    )
