"""Changes of an experiment's state over HTTP: started, paused, stopped, decided, archived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Controller, Request, post
from litestar.params import FromPath

from adapters.ref import content_key
from gateway.admin.access import Nothing, needs, read_body
from gateway.admin.experiments import wire
from gateway.admin.experiments.experiments import (
    check_known,
    check_model_free,
    existing_experiment,
    record,
    shown_experiment,
    with_warnings,
)
from gateway.admin.experiments.targets import not_ready_error, resolve_arms
from gateway.admin.names import MAX_NAMES
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.adapters import aliases
from gateway.db.experiments import arms, experiments, layers
from gateway.db.experiments.arms import PinnedArm
from gateway.db.experiments.experiments import ExperimentRow, holdout_of
from gateway.db.ids import new_id
from gateway.db.pools.pools import keep_pools
from gateway.domain.errors import Conflict
from gateway.domain.experiments import states
from gateway.domain.experiments.allocation import first_split, free_slots
from gateway.domain.experiments.states import Verb
from gateway.domain.tenancy.actor import Actor
from gateway.experiments.results import keep_state_look

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ExperimentLifeController(Controller):
    """Endpoints that move an experiment from state to state."""

    path = "/projects/{project_id:str}/experiments/{experiment_id:str}"

    @post("/start", status_code=200, opt=needs("experiments.write", body=Nothing))
    async def start_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Start a draft, or let a paused experiment go on.

        The arms of a draft are settled: each keeps the version that its model string stands for now, and every adapter
        is loaded before the first request comes. The model string of the experiment stands for the experiment.
        """
        await read_body(request, Nothing)
        loaded = await _load_arms(services, caller, project_id, experiment_id)
        async with services.database.transaction() as conn:
            await keep_pools(conn)
            await active_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id, lock=True)
            state, before = states.state_after(row.state, "start"), await shown_experiment(conn, row)
            if row.state == "draft":
                await _begin(conn, services, caller, row, loaded)
            else:
                await keep_state_look(conn, row)
                await experiments.set_state(conn, experiment_id, state)
            return await _record_change(conn, caller, "experiment.started", before, project_id)

    @post("/pause", status_code=200, opt=needs("experiments.write", body=Nothing))
    async def pause_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Give all units the control, until the experiment is started again."""
        await read_body(request, Nothing)
        return await _move(services, caller, project_id, experiment_id, "pause", "experiment.paused")

    @post("/stop", status_code=200, opt=needs("experiments.write", body=Nothing))
    async def stop_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Give all units the control for good. Outcomes of exposed units still come within their window."""
        await read_body(request, Nothing)
        return await _move(services, caller, project_id, experiment_id, "stop", "experiment.stopped")

    @post("/decide", status_code=200, opt=needs("experiments.write", body=wire.DecideExperiment))
    async def decide_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Choose an arm of a stopped experiment. The experiment's model string becomes an alias of the arm's model."""
        wanted = await read_body(request, wire.DecideExperiment)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id, lock=True)
            states.state_after(row.state, "decide")
            names = [arm.name for arm in row.definition.arms]
            if wanted.arm not in names:
                raise wrong_value("arm", f"the arms are {', '.join(names)}")
            before, at = await shown_experiment(conn, row), names.index(wanted.arm)
            pinned = (await arms.list_arms(conn, [row.id]))[row.id]
            await keep_state_look(conn, row)
            await arms.promote_arm(conn, project_id, row.model, pinned[at])
            await experiments.set_decided(conn, row.id, at)
            return await _record_change(conn, caller, "experiment.decided", before, project_id)

    @post("/archive", status_code=200, opt=needs("experiments.write", body=Nothing))
    async def archive_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Archive a decided experiment. Its results are kept."""
        await read_body(request, Nothing)
        return await _move(services, caller, project_id, experiment_id, "archive", "experiment.archived")


async def _move(
    services: AdminServices, caller: Actor, project_id: str, experiment_id: str, verb: Verb, event: str
) -> wire.Experiment:
    """Move an experiment to another state, and change nothing else."""
    async with services.database.transaction() as conn:
        await active_project(conn, caller.organization_id, project_id)
        row = await existing_experiment(conn, project_id, experiment_id, lock=True)
        state, before = states.state_after(row.state, verb), await shown_experiment(conn, row)
        await keep_state_look(conn, row)
        await experiments.set_state(conn, experiment_id, state)
        return await _record_change(conn, caller, event, before, project_id)


async def _record_change(
    conn: Connection, caller: Actor, event: str, before: wire.Experiment, project_id: str
) -> wire.Experiment:
    """Record a change of state, and return the experiment as it is now."""
    row = await existing_experiment(conn, project_id, before.id)
    shown = await shown_experiment(conn, row)
    await record(conn, caller, event, project_id, before.id, before=before, after=shown)
    return await with_warnings(conn, caller.organization_id, row, shown)


async def _load_arms(
    services: AdminServices, caller: Actor, project_id: str, experiment_id: str
) -> frozenset[tuple[str | None, str]]:
    """Load the adapters of a draft's arms on their engines, and return them as (digest of the base, content key).

    Called outside of the transaction that starts the experiment, since it takes as long as engines take.

    Raises Conflict: when an arm is not ready; the error names the first one.
    """
    async with services.database.transaction() as conn:
        await keep_pools(conn)
        await existing_project(conn, caller.organization_id, project_id)
        row = await existing_experiment(conn, project_id, experiment_id)
        states.state_after(row.state, "start")
        if row.state != "draft":
            return frozenset()
        found = await resolve_arms(conn, caller.organization_id, project_id, row.definition)
    keys = [_key_of(project_id, arm) for arm in found]
    wanted = frozenset(key for key in keys if key is not None)
    missing = await services.load_adapters(wanted) if wanted else frozenset()
    for key, (place, name, target) in zip(keys, row.definition.targets, strict=True):
        if key in missing:
            raise not_ready_error(place, name, target.model, "no engine has it loaded; try again in a moment")
    return wanted


async def _begin(
    conn: Connection,
    services: AdminServices,
    caller: Actor,
    row: ExperimentRow,
    loaded: frozenset[tuple[str | None, str]],
) -> None:
    """Resolve the arms of a locked draft, reserve its part of its layer and its name, and set it running.

    loaded: the adapters that engines have loaded for the arms, as (base, content key).
    """
    project_id, defined = row.project_id, row.definition
    await check_known(conn, project_id, defined)
    found = await resolve_arms(conn, caller.organization_id, project_id, defined)
    for arm, (place, name, target) in zip(found, defined.targets, strict=True):
        key = _key_of(project_id, arm)
        if key is not None and key not in loaded:
            raise not_ready_error(place, name, target.model, "it was moved just now; start the experiment again")
    await _take_name(conn, services, caller, row)
    slots = free_slots(defined.layer, await layers.lock_slots(conn, project_id, defined.layer), defined.coverage)
    weights = [arm.weight for arm in defined.arms]
    split = first_split(row.seed, row.layer_seed, slots, weights, holdout_of(row))
    num_arms = len(defined.arms)
    await arms.pin_arms(conn, row.id, found[:num_arms], found[num_arms] if defined.shadow is not None else None)
    await experiments.start_experiment(conn, row.id, split)


async def _take_name(conn: Connection, services: AdminServices, caller: Actor, row: ExperimentRow) -> None:
    """Make the model string of an experiment stand for the experiment.

    Raises Conflict: when the string is the name of a base model, a route or another experiment, or there are too many
    aliases.
    """
    project_id = row.project_id
    await check_model_free(conn, services, caller.organization_id, project_id, row.model)
    holder = await experiments.model_holder(conn, project_id, row.model, row.id)
    if holder is not None:
        raise Conflict(f"The experiment '{holder}' holds the model string '{row.model}'.", param="model")
    named = [each.name for each in await aliases.list_aliases(conn, project_id)]
    if row.model not in named and len(named) >= MAX_NAMES:
        raise Conflict(
            f"The project already has {MAX_NAMES} aliases, the most there can be. Remove one first.", param="model"
        )
    await arms.point_name_at_experiment(conn, new_id("alias"), project_id, row.model, row.id)


def _key_of(project_id: str, arm: PinnedArm) -> tuple[str | None, str] | None:
    """Return the base and the content key of an arm's adapter; None for a base model."""
    return None if arm.digest is None else (arm.base_digest, content_key(project_id, arm.digest))
