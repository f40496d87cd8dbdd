"""Resolves the targets of an experiment's arms at its start: from model strings to pools and versions of adapters.

Adapters are the project's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments import arms
from gateway.db.experiments.arms import PinnedArm, UsablePool
from gateway.domain.adapters.defaults import NO_DEFAULTS, Defaults
from gateway.domain.errors import Conflict, shortened
from gateway.domain.experiments.definition import Experiment, Target
from gateway.domain.experiments.treatment import Treatment
from gateway.domain.routing.model_string import read_model

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class BadTarget(Exception):
    """The error for a model string that no arm can serve; the message says why, for people."""


async def resolve_arms(
    conn: Connection, organization_id: str, project_id: str, experiment: Experiment
) -> list[PinnedArm]:
    """Return the present targets of an experiment's arms, in their order, the shadow arm last.

    Versions stay ready until the transaction ends; the caller keeps the pools (`keep_pools`).

    Raises Conflict: when an arm cannot be served; the message names the first one.
    """
    found: list[PinnedArm] = []
    each_arm = await resolve_each(conn, organization_id, project_id, experiment, lock=True)
    for each, (place, name, target) in zip(each_arm, experiment.targets, strict=True):
        if isinstance(each, BadTarget):
            raise not_ready_error(place, name, target.model, str(each))
        found.append(each)
    return found


async def resolve_each(
    conn: Connection, organization_id: str, project_id: str, experiment: Experiment, *, lock: bool = False
) -> list[PinnedArm | BadTarget]:
    """Return the present target of each arm, or the reason why it cannot be served, the shadow arm last.

    lock: True: versions stay ready until the transaction ends.
    """
    pools = await arms.usable_pools(conn, organization_id, project_id)
    found: list[PinnedArm | BadTarget] = []
    for _, _, target in experiment.targets:
        try:
            found.append(await _resolve(conn, project_id, target, pools, lock=lock))
        except BadTarget as error:
            found.append(error)
    return found


def not_ready_error(place: str, name: str, model: str, reason: str) -> Conflict:
    """Return the error for an arm whose target cannot be served.

    place: the path of the target in the definition. name: the arm's name.
    """
    return Conflict(
        f"The arm '{name}' cannot be served by `{shortened(model)}`: {reason}.",
        param=f"{place}.model",
        code="arm_not_ready",
    )


async def _resolve(
    conn: Connection, project_id: str, target: Target, pools: Sequence[UsablePool], *, lock: bool
) -> PinnedArm:
    """Return the target that a model string names.

    pools: the pools that the project may use. lock: True: the adapter stays as it is until the transaction ends.

    Raises BadTarget: when it cannot be served.
    """
    by_name = {pool.name: pool for pool in pools}
    if target.model in by_name:
        return _pinned_arm(by_name[target.model], None, _treatment(None, target))
    wanted = read_model(target.model, by_name)
    if wanted is None:
        raise BadTarget("the project has no such model")
    if not wanted.is_alias:
        assert wanted.base is not None
        own = await _own_version(conn, project_id, wanted.name, wanted.version, lock=lock)
        if by_name[wanted.base].base_digest != own.base_digest:
            raise BadTarget("the adapter was made for another base model")
        return _pinned_arm(by_name[wanted.base], own, _treatment(None, target))
    alias = await arms.find_alias_target(conn, project_id, wanted.name)
    if alias is None:
        raise BadTarget("the project has no such model")
    if alias.target_kind == "experiment":
        raise BadTarget(f"it is the experiment '{alias.experiment}'")
    if alias.target_kind == "route":
        raise BadTarget("it is a route")
    if alias.adapter is None:
        pool = next((each for each in pools if each.id == alias.pool_id), None)
        if pool is None:
            raise BadTarget("its base model is not there any more")
        return _pinned_arm(pool, None, _treatment(alias.treatment, target))
    own = await _own_version(conn, project_id, alias.adapter, alias.version, lock=lock)
    serving = [each for each in pools if each.base_digest == own.base_digest]
    pool = next((each for each in serving if each.id == alias.pool_id), next(iter(serving), None))
    if pool is None:
        raise BadTarget("no pool that the project may use serves its base model")
    return _pinned_arm(pool, own, _treatment(alias.treatment, target))


async def _own_version(
    conn: Connection, project_id: str, name: str, version: int | None, *, lock: bool
) -> arms.OwnVersion:
    """Return a version of the project's own adapter.

    version: None: the current one. lock: True: the adapter stays as it is until the transaction ends.

    Raises BadTarget: when the project has no such version, it is not ready, or the adapter belongs to another project.
    """
    found = await arms.find_own_version(conn, project_id, name, version)
    if found is not None and (not lock or await arms.keep_version_ready(conn, found)):
        return found
    if await arms.is_shared(conn, project_id, name):
        raise BadTarget(
            f"the adapter '{name}' belongs to another project, which may change it while the experiment runs"
        )
    what = f"the adapter '{name}'" if version is None else f"version {version} of the adapter '{name}'"
    raise BadTarget(f"{what} is not there or not ready")


def _pinned_arm(pool: UsablePool, own: arms.OwnVersion | None, treatment: Treatment | None) -> PinnedArm:
    if own is None:
        return PinnedArm(pool_id=pool.id, pool=pool.name, treatment=treatment)
    return PinnedArm(
        pool_id=pool.id,
        pool=pool.name,
        adapter_id=own.adapter_id,
        adapter=own.adapter,
        version=own.version,
        digest=own.digest,
        base_digest=own.base_digest,
        treatment=treatment,
    )


def _treatment(of_alias: Treatment | None, target: Target) -> Treatment | None:
    """Return an arm's changes to requests: its own values, then those of the alias that its model string names.

    of_alias: the changes of the alias; None where the model string names no alias.
    """
    if of_alias is None:
        return Treatment(target.defaults, target.mode) if target.defaults != NO_DEFAULTS else None
    merged = msgspec.to_builtins(of_alias.defaults) | msgspec.to_builtins(target.defaults)
    mode = of_alias.mode if target.defaults == NO_DEFAULTS else target.mode
    return Treatment(msgspec.convert(merged, Defaults), mode)
