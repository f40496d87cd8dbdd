"""The arms of a unit as the gateway would serve them now, without exposing the unit to anything. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Callable

from gateway.db.experiments.live import list_flags
from gateway.db.pool import Database
from gateway.domain.errors import ModelNotFound
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.tenancy.principal import Principal
from gateway.routing.experiments import RunningExperiment
from gateway.routing.resolve import Resolver

API_KEY = "api_key"
"""The source of units that are API keys: for it, the unit is the caller's own key, whatever the targeting key."""


class Flags:
    """The experiments of all projects, as flags. A gateway process has one."""

    def __init__(self, database: Database, resolver: Resolver) -> None:
        self._database = database
        self._resolver = resolver

    async def evaluate(
        self, caller: Principal, unit: str, name: str | None = None
    ) -> list[tuple[RunningExperiment, Exposure]]:
        """Return the arm of a unit in each experiment of the caller's project that has started, by name.

        name: the name of the only experiment that is asked for; None: all experiments. The list is empty where no
        experiment of the name has started.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            models = await list_flags(conn, caller.project_id, name)
        found = []
        for model in models:
            experiment = await self._find_experiment(caller, model)
            if experiment is not None:
                found.append((experiment, experiment.expose(_unit_of(caller, unit))))
        return found

    async def _find_experiment(self, caller: Principal, model: str) -> RunningExperiment | None:
        try:
            found = await self._resolver.find(caller, model)
        except ModelNotFound:  # to the key, or by now
            return None
        return found if isinstance(found, RunningExperiment) else None


def _unit_of(caller: Principal, unit: str) -> Callable[[str], str | None]:
    return lambda source: caller.api_key_id if source == API_KEY else unit
