"""Experiments that requests can name: the arm of a request, and its target. No I/O once one is loaded.

`ExperimentLoader` reads one; `Resolver` remembers it until the change feed reports a change of it.
"""

from __future__ import annotations

import asyncio
import datetime
from array import array
from collections.abc import Awaitable, Callable, Collection

import msgspec
import numpy as np

from adapters.ref import AdapterRef
from gateway.db.experiments.live import LiveArm, LiveExperiment, exposed_digests, find_live
from gateway.db.pool import Database
from gateway.domain.adapters.defaults import NO_DEFAULTS, Defaults
from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.assignment import CONTROL, Assigned, Exposed, Holdout, Split, assign, unit_digest
from gateway.domain.experiments.definition import SHADOW_ARM, Experiment, Target
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.shadowing import is_shadowed
from gateway.domain.experiments.treatment import Treatment
from gateway.domain.routing.bases import Bases
from gateway.routing.route import OwnName, Route, RoutedAdapter

ARM_HEADER = "x-lorikeet-arm"
"""The request header by which a client asks for an arm."""

ProjectKey = Callable[[str], Awaitable[bytes]]
"""A function that returns a project's secret by its id, as `gateway.experiments.keys.ProjectKeys.key` does."""

MAX_EXPOSED = 100
"""The most experiments whose exposed units are kept in memory, at nine bytes a unit."""

UnitOf = Callable[[str], str | None]
"""A function that returns the unit that a request names in a source (`definition.UnitSource.source`)."""

_DEFINITION = msgspec.json.Decoder(Experiment)
_DEFAULTS = msgspec.json.Decoder(Defaults)
_TREATMENT = msgspec.json.Decoder(Treatment)


class RoutedArm(msgspec.Struct, frozen=True):
    """One arm of an experiment, and the target of its requests."""

    name: str
    model: str
    """The name by which limits, prices and allow-lists know the arm: `<base>` or `<base>:<adapter>`."""
    route: Route | None
    """The route of the arm; None if its version or pool is gone, or the project may not use the pool."""


class RoutedShadow(msgspec.Struct, frozen=True):
    """The shadow arm of an experiment, and the part of the requests that it gets copies of."""

    arm: RoutedArm
    share: int
    """The part of the requests that is copied, in parts of 10,000."""


class RunningExperiment(msgspec.Struct, frozen=True):
    """An experiment as a gateway remembers it: all data that an assignment needs."""

    id: str
    name: str
    model: str
    """The model string by which requests name the experiment."""
    version: int
    source: str
    """The part of a request that names its unit."""
    arms: tuple[RoutedArm, ...]
    split: Split
    project_key: bytes
    """The secret under which the project's units are digested."""
    shadow: RoutedShadow | None = None

    @property
    def control(self) -> Route | None:
        """Return the route of the arm that everybody gets without an experiment."""
        return self.arms[CONTROL].route

    def is_in(self, allowed: Collection[str] | None) -> bool:
        """Tell whether a key's models include the experiment: by its name, or by the targets of all its arms.

        None stands for all models.
        """
        return allowed is None or self.model in allowed or all(arm.model in allowed for arm in self.arms)

    def expose(self, unit_of: UnitOf, *, forced_arm: str | None = None, is_off: bool = False) -> Exposure:
        """Return the arm of one request.

        forced_arm: the name of an arm that the client asks for. is_off: the client asks for the control. Neither is
        analysed.
        Raises InvalidRequest: when the experiment has no such arm; and as `unit_of` does.
        """
        unit = unit_of(self.source)
        digest = unit_digest(self.project_key, unit) if unit else b""
        if is_off:
            assigned = Assigned(CONTROL, "forced")
        elif forced_arm is not None:
            assigned = Assigned(self._index(forced_arm), "forced")
        else:
            assigned = assign(self.split, unit, digest)
        arm = assigned.arm
        return Exposure(
            self.id, self.name, self.version, arm, self.arms[arm].name, assigned.epoch, assigned.reason, digest
        )

    def shadow_of(self, request_id: str, exposure: Exposure, allowed: Collection[str] | None) -> RoutedArm | None:
        """Return the shadow arm if a request is copied to it, else None.

        A request that asks for an arm, or for no part in the experiment, is not copied, nor is any while the experiment
        does not run. allowed: the models that the request's key may use; None stands for all.
        """
        shadow = self.shadow
        if shadow is None or self.split.paused or exposure.reason == "forced":
            return None
        if allowed is not None and self.model not in allowed and shadow.arm.model not in allowed:
            return None
        return shadow.arm if is_shadowed(self.split.seed, request_id, shadow.share) else None

    def _index(self, name: str) -> int:
        for at, arm in enumerate(self.arms):
            if arm.name == name:
                return at
        raise InvalidRequest(
            f"The header {ARM_HEADER} names no arm of the experiment '{self.name}'.",
            param=ARM_HEADER,
            code="invalid_value",
        )


class ExperimentLoader:
    """The reader of experiments from the database. A gateway process has one."""

    def __init__(self, database: Database, bases: Bases, project_key: ProjectKey) -> None:
        self._database = database
        self._bases = bases
        self._project_key = project_key
        self._exposed: dict[str, tuple[datetime.datetime, asyncio.Task[Exposed]]] = {}  # by experiment

    async def load(
        self, project_id: str, organization_id: str, experiment_id: str, created_at: datetime.datetime
    ) -> RunningExperiment | None:
        """Return an experiment of a project; None where there is none that has started.

        created_at: the time at which its name was made.

        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the project's secret.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            row = await find_live(conn, project_id, experiment_id)
        if row is None:
            return None
        exposed = None if row.exposed_at is None else await self._units(row.id, row.exposed_at)
        project_key = await self._project_key(project_id)
        visible = self._bases.visible(project_id, organization_id)
        definition, name = _DEFINITION.decode(row.definition), OwnName(project_id, created_at, has_several_targets=True)
        arms = tuple(
            RoutedArm(arm.name, _model(live), self._route(row.model, name, live, arm.target, visible))
            for live, arm in zip((each for each in row.arms if each.arm != SHADOW_ARM), definition.arms, strict=True)
        )
        source, shadow = definition.unit.source, None
        if definition.shadow is not None:
            live = row.arms[-1]
            route = self._route(row.model, name, live, definition.shadow.target, visible)
            shadow = RoutedShadow(RoutedArm(definition.shadow.name, _model(live), route), definition.shadow.share)
        return RunningExperiment(
            row.id, row.name, row.model, row.version, source, arms, _split_of(row, exposed), project_key, shadow
        )

    def _route(
        self, model: str, name: OwnName, live: LiveArm, target: Target, visible: Collection[str]
    ) -> Route | None:
        """Return the target of an arm's requests; None if an alias with the same target could not be served either."""
        if not live.has_pool or live.pool_name not in visible:
            return None
        adapter = None
        if live.adapter_id is not None:
            if live.digest is None or not live.fits:
                return None
            assert live.adapter_name is not None and live.version is not None and live.defaults is not None
            ref = AdapterRef(name.owner_id, live.adapter_name, live.version, live.digest)
            defaults = _DEFAULTS.decode(live.defaults)
            adapter = RoutedAdapter(live.adapter_id, ref, ref.key, defaults, name.created_at, is_shared=False)
        return Route(model, _model(live), live.pool_name, adapter, _treatment(live, target), name)

    async def _units(self, experiment_id: str, listed_at: datetime.datetime) -> Exposed:
        """Return the units that keep the arm of an earlier epoch. The database is read once for all requests that wait.

        listed_at: the time at which the list of these units changed last.
        """
        known = self._exposed.pop(experiment_id, None)
        if known is None or known[0] != listed_at or _has_failed(known[1]):
            known = listed_at, asyncio.create_task(self._read_units(experiment_id))
        self._exposed[experiment_id] = known
        if len(self._exposed) > MAX_EXPOSED:
            del self._exposed[next(iter(self._exposed))]
        return await asyncio.shield(known[1])

    async def _read_units(self, experiment_id: str) -> Exposed:
        async with self._database.acquire() as conn:
            keys, epochs = await exposed_digests(conn, experiment_id)
        return await asyncio.to_thread(exposed_of, keys, epochs)


def exposed_of(keys: bytes, epochs: bytes) -> Exposed:
    """Return the epochs of units, sorted by digest for look-ups.

    keys: the first eight bytes of each digest. epochs: each unit's epoch, in the same order.
    """
    numbers = np.frombuffer(keys, dtype="<u8")
    order = np.argsort(numbers, kind="stable")
    return Exposed(
        array("Q", numbers[order].astype(np.uint64).tobytes()), np.frombuffer(epochs, np.uint8)[order].tobytes()
    )


def _has_failed(task: asyncio.Task[Exposed]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _model(live: LiveArm) -> str:
    """Return the name by which limits and lists of allowed models know an arm, even if the arm cannot be served."""
    return live.pool_name if live.adapter_name is None else f"{live.pool_name}:{live.adapter_name}"


def _treatment(live: LiveArm, target: Target) -> Treatment | None:
    if live.treatment is not None:
        return _TREATMENT.decode(live.treatment)
    return None if target.defaults == NO_DEFAULTS else Treatment(target.defaults, target.mode)


def _split_of(row: LiveExperiment, exposed: Exposed | None) -> Split:
    holdout = None
    if row.holdout_seed is not None and row.holdout_size is not None:
        holdout = Holdout(row.holdout_seed, row.holdout_size)
    return Split(
        row.seed,
        row.layer_seed,
        row.slots,
        tuple(row.tables),
        exposed=exposed,
        ended=tuple(row.ended),
        enrolling=row.enrolling,
        paused=row.state != "running",
        holdout=holdout,
    )
