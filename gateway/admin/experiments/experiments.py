"""Experiments over HTTP: made as drafts, listed, changed, and removed while they are drafts."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.experiments import wire
from gateway.admin.experiments.bodies import audited, check_text, definition_of, experiment_wire, with_changes
from gateway.admin.experiments.reshaping import apply_new_split
from gateway.admin.experiments.warnings import find_warnings
from gateway.admin.names import is_base
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.adapters import aliases
from gateway.db.experiments import arms, experiments, holdouts, layers, metrics
from gateway.db.experiments.experiments import ExperimentRow
from gateway.db.organization import audit
from gateway.db.pools.pools import keep_pools
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.experiments import states
from gateway.domain.experiments.assignment import SEED_BYTES
from gateway.domain.experiments.definition import Experiment, check_change, check_definition
from gateway.domain.experiments.states import State
from gateway.domain.tenancy.actor import Actor

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_EXPERIMENTS = 1_000
"""The most experiments of a project that are not archived."""
MAX_EXPERIMENTS_EVER = 10_000
"""The most experiments of a project, archived ones included, which cannot be removed."""
DEFAULT_LAYER = "default"


class ExperimentController(Controller):
    """Endpoints for the definitions of a project's experiments."""

    path = "/projects/{project_id:str}/experiments"

    @get(opt=needs("experiments.read", query=(*LIST_QUERY, "state")))
    async def list_experiments(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[wire.Experiment]:
        """List the experiments of a project, the oldest first; with `state`, those in this state alone."""
        query, state = read_list_query(request.query_params), request.query_params.get("state")
        if state is not None and state not in get_args(State):
            raise wrong_value("state", f"expected one of {', '.join(get_args(State))}")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if query.after and await experiments.find_experiment(conn, project_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await experiments.list_experiments(
                conn, project_id, after=query.after, limit=query.limit + 1, state=state
            )
            pinned = await arms.list_arms(conn, [row.id for row in rows])
        return page([experiment_wire(row, pinned.get(row.id, [])) for row in rows], query.limit)

    @post(status_code=200, opt=needs("experiments.write", body=wire.CreateExperiment))
    async def create_experiment(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.Experiment:
        """Create an experiment as a draft. Nothing is served before its start."""
        body = await read_body(request, wire.CreateExperiment)
        check_text(body)
        wanted = definition_of(body)
        async with services.database.transaction() as conn:
            await keep_pools(conn)
            await active_project(conn, caller.organization_id, project_id)
            await check_model_free(conn, services, caller.organization_id, project_id, wanted.model)
            await _check(conn, project_id, wanted)
            await _check_room(conn, project_id)
            seed = secrets.token_bytes(SEED_BYTES)
            made = await experiments.create_experiment(conn, project_id, wanted, seed)
            if made is None:
                raise _name_taken(wanted.name)
            row = await existing_experiment(conn, project_id, made)
            shown = await shown_experiment(conn, row)
            await record(conn, caller, "experiment.created", project_id, made, after=shown)
            return await with_warnings(conn, caller.organization_id, row, shown)

    @get("/{experiment_id:str}", opt=needs("experiments.read"))
    async def get_experiment(
        self, project_id: FromPath[str], experiment_id: FromPath[str], services: Services, caller: Caller
    ) -> wire.Experiment:
        """Return an experiment."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            return await with_warnings(conn, caller.organization_id, row, await shown_experiment(conn, row))

    @post("/{experiment_id:str}", status_code=200, opt=needs("experiments.write", body=wire.ModifyExperiment))
    async def modify_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.Experiment:
        """Change an experiment. Every field of a draft may change.

        After the start, coverage may grow, weights change for units that were not exposed yet, an arm end, guardrails
        be added, and the shadow arm get another share.
        """
        body = await read_body(request, wire.ModifyExperiment)
        check_text(body)
        async with services.database.transaction() as conn:
            await keep_pools(conn)
            await active_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id, lock=True)
            states.state_after(row.state, "change")
            if body.version is not UNSET and body.version != row.version:
                raise Conflict(
                    f"The experiment is at version {row.version} by now: read it again, then change it.",
                    param="version",
                )
            wanted = with_changes(row.definition, body)
            before = await shown_experiment(conn, row)
            if wanted == row.definition:
                return await with_warnings(conn, caller.organization_id, row, before)
            if wanted.model != row.model and row.state == "draft":
                await check_model_free(conn, services, caller.organization_id, project_id, wanted.model)
            await _change(conn, row, wanted)
            row = await existing_experiment(conn, project_id, experiment_id)
            shown = await shown_experiment(conn, row)
            await record(conn, caller, "experiment.changed", project_id, experiment_id, before=before, after=shown)
            return await with_warnings(conn, caller.organization_id, row, shown)

    @delete("/{experiment_id:str}", status_code=200, opt=needs("experiments.write"))
    async def delete_experiment(
        self, project_id: FromPath[str], experiment_id: FromPath[str], services: Services, caller: Caller
    ) -> wire.DeletedExperiment:
        """Delete a draft. An experiment that has started is archived instead, since its results are kept."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            row = await existing_experiment(conn, project_id, experiment_id, lock=True)
            states.state_after(row.state, "delete")
            before = await shown_experiment(conn, row)
            await experiments.delete_draft(conn, experiment_id)
            await record(conn, caller, "experiment.deleted", project_id, experiment_id, before=before)
        return wire.DeletedExperiment(experiment_id)


async def existing_experiment(
    conn: Connection, project_id: str, experiment_id: str, *, lock: bool = False
) -> ExperimentRow:
    """Return an experiment of the project. lock: True: nobody else changes it until the transaction ends.

    Raises NotFound: when the project has no experiment with this id, whether or not another project has.
    """
    find = experiments.lock_experiment if lock else experiments.find_experiment
    row = await find(conn, project_id, experiment_id)
    if row is None:
        raise NotFound(f"The project has no experiment with the id '{experiment_id}'.", param="experiment_id")
    return row


async def shown_experiment(conn: Connection, row: ExperimentRow) -> wire.Experiment:
    """Return an experiment as replies show it."""
    return experiment_wire(row, (await arms.list_arms(conn, [row.id])).get(row.id, []))


async def with_warnings(
    conn: Connection, organization_id: str, row: ExperimentRow, shown: wire.Experiment
) -> wire.Experiment:
    """Return an experiment as replies about it alone show it: with warnings."""
    return msgspec.structs.replace(shown, warnings=await find_warnings(conn, organization_id, row))


async def check_known(conn: Connection, project_id: str, experiment: Experiment) -> None:
    """Check the rules of a definition, with the project's own metrics as the feedback that it may name.

    Raises InvalidRequest: for the first field that is wrong.
    """
    own = [each.name for each in await metrics.list_metrics(conn, project_id)]
    check_definition(experiment, own)


async def check_model_free(
    conn: Connection, services: AdminServices, organization_id: str, project_id: str, model: str
) -> None:
    """Check that an experiment may have a model string. An alias's name is allowed: the alias becomes the experiment.

    Drafts are checked as well, and routes take no draft's model string, so that a draft can be started.

    Raises Conflict: when the string is the name of a base model or of a route.
    """
    if await is_base(conn, services, model, organization_id, project_id):
        raise Conflict(f"A base model has the name '{model}'.", param="model")
    held = await aliases.find_alias(conn, project_id, model)
    if held is not None and held.target_kind == "route":
        raise Conflict(f"A route has the name '{model}'.", param="model")


async def record(
    conn: Connection,
    caller: Actor,
    event: str,
    project_id: str,
    experiment_id: str,
    *,
    before: wire.Experiment | None = None,
    after: wire.Experiment | None = None,
) -> None:
    """Write a change of an experiment to the audit log.

    event: the name of the change. before, after: the experiment as it was and as it is; None where it does not exist.
    """
    shown = {name: audited(each) for name, each in (("before", before), ("after", after)) if each is not None}
    await audit.record(conn, audit_author(caller), event, experiment_id, project_id=project_id, **shown)


async def _check(conn: Connection, project_id: str, wanted: Experiment) -> None:
    """Check the definition of a draft, and make the default layer if it is named first."""
    await check_known(conn, project_id, wanted)
    for at, arm in enumerate(wanted.arms):
        if arm.ended:
            raise wrong_value(f"arms[{at}].ended", "an arm can end only after the start")
    if wanted.layer == DEFAULT_LAYER:
        await layers.create_layer(conn, project_id, DEFAULT_LAYER, secrets.token_bytes(SEED_BYTES))
    elif await layers.find_layer(conn, project_id, wanted.layer) is None:
        raise wrong_value("layer", f"the project has no layer named '{wanted.layer}'")
    if wanted.holdout is not None and await holdouts.find_holdout(conn, project_id, wanted.holdout) is None:
        raise wrong_value("holdout", f"the project has no holdout named '{wanted.holdout}'")


async def _check_room(conn: Connection, project_id: str) -> None:
    current, ever = await experiments.count_experiments(conn, project_id)
    if current >= MAX_EXPERIMENTS:
        raise InvalidRequest(
            f"The project already has {MAX_EXPERIMENTS} experiments that are not archived, the most there can be. "
            "Archive or delete one first."
        )
    if ever >= MAX_EXPERIMENTS_EVER:
        raise InvalidRequest(f"The project already had {MAX_EXPERIMENTS_EVER} experiments, the most there can be.")


async def _change(conn: Connection, row: ExperimentRow, wanted: Experiment) -> None:
    """Change the definition of a locked experiment, and its split if the change concerns the split."""
    if row.state == "draft":
        await _check(conn, row.project_id, wanted)
    else:
        await check_known(conn, row.project_id, wanted)
        check_change(row.definition, wanted)
    if wanted.name != row.name and await experiments.has_other(conn, row.project_id, wanted.name, row.id):
        raise _name_taken(wanted.name)
    if row.state != "draft":
        await apply_new_split(conn, row, wanted)
    await experiments.replace_definition(conn, row.id, wanted)


def _name_taken(name: str) -> Conflict:
    return Conflict(f"The project already has an experiment named '{name}'.", param="name")
