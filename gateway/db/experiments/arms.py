"""The targets of experiments' arms: fixed when an experiment starts, and kept available until it is decided.

While held, no version or pool that an arm needs can be removed, nor the alias that names the experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.experiments.definition import SHADOW_ARM
from gateway.domain.experiments.treatment import Treatment

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_TREATMENT = msgspec.json.Decoder(Treatment)


class PinnedArm(msgspec.Struct, frozen=True, kw_only=True):
    """The target of one arm."""

    pool_id: str
    pool: str
    """The name of the pool."""
    adapter_id: str | None = None
    """The id of the adapter; None: the arm serves the base model of the pool."""
    adapter: str | None = None
    """The name of the adapter."""
    version: int | None = None
    digest: str | None = None
    """The digest of the version's content."""
    base_digest: str | None = None
    """The digest of the base that the adapter was made for."""
    treatment: Treatment | None = None
    """The changes of the arm to requests; None: no changes."""


_INSERT = """
    INSERT INTO experiment_arms (experiment_id, arm, pool_id, adapter_id, version, treatment)
    VALUES ($1, $2, $3, $4, $5, $6)
"""


async def pin_arms(
    conn: Connection, experiment_id: str, arms: Sequence[PinnedArm], shadow: PinnedArm | None = None
) -> None:
    """Store the targets of an experiment's arms, in order, and of its shadow arm if it has one.

    The stored targets never change.
    """
    numbered = [*enumerate(arms), *([] if shadow is None else [(SHADOW_ARM, shadow)])]
    rows = [(experiment_id, at, arm.pool_id, arm.adapter_id, arm.version, _json(arm.treatment)) for at, arm in numbered]
    await conn.executemany(_INSERT, rows)


_LIST = """
    SELECT r.experiment_id, r.pool_id, p.name AS pool, r.adapter_id, a.name AS adapter, r.version, v.digest,
           a.base_digest, r.treatment
    FROM experiment_arms r JOIN pools p ON p.id = r.pool_id
        LEFT JOIN adapters a ON a.id = r.adapter_id
        LEFT JOIN adapter_versions v ON (v.adapter_id, v.version) = (r.adapter_id, r.version)
    WHERE r.experiment_id = ANY ($1::text[]) ORDER BY r.experiment_id, r.arm
"""


async def list_arms(conn: Connection, experiment_ids: Sequence[str]) -> dict[str, list[PinnedArm]]:
    """Return the targets of experiments' arms, by the experiment's id and in the arms' order, the shadow arm last.

    Drafts have none.
    """
    found: dict[str, list[PinnedArm]] = {}
    for row in await conn.fetch(_LIST, list(experiment_ids)):
        fields = dict(row)
        treatment = fields.pop("treatment")
        arm = PinnedArm(**{k: v for k, v in fields.items() if k != "experiment_id"}, treatment=_treatment(treatment))
        found.setdefault(row["experiment_id"], []).append(arm)
    return found


class OwnVersion(msgspec.Struct, frozen=True):
    """A version of an adapter of the project that can be served."""

    adapter_id: str
    adapter: str
    version: int
    digest: str
    base_digest: str | None


_OWN = """
    SELECT a.id AS adapter_id, a.name AS adapter, v.version, v.digest, a.base_digest
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = coalesce($3, a.current_version)
    WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at IS NULL AND v.state = 'ready'
"""


async def find_own_version(conn: Connection, project_id: str, adapter: str, version: int | None) -> OwnVersion | None:
    """Return a version of an adapter that the project owns and that is ready. version: None is the current one."""
    row = await conn.fetchrow(_OWN, project_id, adapter, version)
    return OwnVersion(**row) if row else None


_KEEP = """
    SELECT true FROM adapter_versions WHERE adapter_id = $1 AND version = $2 AND state = 'ready' FOR SHARE
"""


async def keep_version_ready(conn: Connection, own: OwnVersion) -> bool:
    """Keep a version ready until the caller's transaction ends; return False where it is not ready any more."""
    return bool(await conn.fetchval(_KEEP, own.adapter_id, own.version))


_IS_SHARED = "SELECT EXISTS (SELECT FROM adapter_shares WHERE project_id = $1 AND name = $2)"


async def is_shared(conn: Connection, project_id: str, adapter: str) -> bool:
    """Tell whether another project shares an adapter of this name with the project."""
    return bool(await conn.fetchval(_IS_SHARED, project_id, adapter))


class UsablePool(msgspec.Struct, frozen=True):
    """A pool whose base the project may use."""

    id: str
    name: str
    base_digest: str | None


# The pools stay while the caller keeps them (`keep_pools`).
_USABLE = """
    SELECT p.id, p.name, v.base_digest
    FROM pools p JOIN pool_revisions v ON (v.pool_id, v.revision) = (p.id, p.revision)
    WHERE p.removed_at IS NULL AND (p.access = 'all' OR EXISTS
        (SELECT FROM pool_grants g WHERE g.pool_id = p.id AND g.organization_id = $1
                                         AND coalesce(g.project_id, $2) = $2))
    ORDER BY p.created_at, p.id
"""


async def usable_pools(conn: Connection, organization_id: str, project_id: str) -> list[UsablePool]:
    """Return the pools that serve and that the project may use, the oldest first."""
    return [UsablePool(**row) for row in await conn.fetch(_USABLE, organization_id, project_id)]


class AliasTarget(msgspec.Struct, frozen=True):
    """The target of a project's alias."""

    target_kind: str
    adapter: str | None
    version: int | None
    pool_id: str | None
    experiment: str | None
    """The name of the experiment."""
    treatment: Treatment | None


_ALIAS = """
    SELECT m.target_kind, a.name AS adapter, m.version, m.pool_id, e.name AS experiment, m.treatment
    FROM model_aliases m LEFT JOIN adapters a ON a.id = m.adapter_id LEFT JOIN experiments e ON e.id = m.experiment_id
    WHERE m.project_id = $1 AND m.name = $2
"""


async def find_alias_target(conn: Connection, project_id: str, name: str) -> AliasTarget | None:
    """Return the target of a project's alias; None where there is no such alias."""
    row = await conn.fetchrow(_ALIAS, project_id, name)
    if row is None:
        return None
    fields = dict(row)
    return AliasTarget(**fields | {"treatment": _treatment(fields["treatment"])})


_HOLD_NAME = """
    INSERT INTO model_aliases (id, project_id, name, target_kind, experiment_id) VALUES ($1, $2, $3, 'experiment', $4)
    ON CONFLICT (project_id, name) DO UPDATE SET target_kind = 'experiment', experiment_id = excluded.experiment_id,
        adapter_id = NULL, version = NULL, pool_id = NULL, treatment = NULL, moved_at = now()
"""


async def point_name_at_experiment(
    conn: Connection, alias_id: str, project_id: str, name: str, experiment_id: str
) -> None:
    """Let a model string stand for an experiment instead of its former target. alias_id: the id for a new alias."""
    await conn.execute(_HOLD_NAME, alias_id, project_id, name, experiment_id)


_PROMOTE = """
    UPDATE model_aliases SET target_kind = CASE WHEN $4::text IS NULL THEN 'pool' ELSE 'version' END,
        pool_id = $3, adapter_id = $4, version = $5, experiment_id = NULL,
        treatment = $6, moved_at = now()
    WHERE project_id = $1 AND name = $2
"""


async def promote_arm(conn: Connection, project_id: str, model: str, arm: PinnedArm) -> None:
    """Let the model string of an experiment stand for the target of one of its arms."""
    await conn.execute(_PROMOTE, project_id, model, arm.pool_id, arm.adapter_id, arm.version, _json(arm.treatment))


_OF_ADAPTER = """
    SELECT DISTINCT e.name FROM experiment_arms r JOIN experiments e ON e.id = r.experiment_id
    WHERE r.adapter_id = $1 AND ($2::integer IS NULL OR r.version = $2) AND e.state IN ('running', 'paused', 'stopped')
    ORDER BY e.name
"""


async def experiments_of_adapter(conn: Connection, adapter_id: str, version: int | None = None) -> list[str]:
    """Return the names of experiments that need a version of an adapter, or any version of it, in an arm."""
    return [row["name"] for row in await conn.fetch(_OF_ADAPTER, adapter_id, version)]


_OF_POOL = """
    SELECT e.name, p.organization_id FROM experiments e JOIN projects p ON p.id = e.project_id
    WHERE e.state IN ('running', 'paused', 'stopped') AND p.archived_at IS NULL
      AND EXISTS (SELECT FROM experiment_arms r WHERE r.experiment_id = e.id AND r.pool_id = $1)
    ORDER BY e.name
"""


async def experiments_of_pool(conn: Connection, pool_id: str) -> list[tuple[str, str]]:
    """Return the name of each experiment that needs a pool in an arm, and the id of its organization."""
    return [(row["name"], row["organization_id"]) for row in await conn.fetch(_OF_POOL, pool_id)]


def _json(treatment: Treatment | None) -> str | None:
    return None if treatment is None else msgspec.json.encode(treatment).decode()


def _treatment(text: str | None) -> Treatment | None:
    return None if text is None else _TREATMENT.decode(text)
