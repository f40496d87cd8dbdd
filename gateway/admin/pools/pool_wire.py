"""Pools, revisions and replicas as the admin API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from gateway.admin.common import seconds, seconds_or_none
from gateway.db.pools.pools import Grant
from gateway.db.pools.replicas import ReplicaRow
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.condition import PoolState, ReplicaStanding, condition_of
from gateway.domain.pools.states import Access, ReplicaState, RevisionState


class PoolGrant(msgspec.Struct, frozen=True):
    """project_id None: all projects of the organization."""

    organization_id: str
    project_id: str | None


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """model, settings, replica_bytes: of the wanted revision; replica_bytes: the memory that one replica takes by the
    estimate, None until the model is prepared. revision: the one that serves, None before the first is ready. why: a
    sentence about the state. num_replicas: how many shall run; num_ready: how many take requests, with those that
    somebody else runs. created_at: Unix seconds.
    """

    id: str
    name: str
    model: str
    settings: dict[str, str]
    num_replicas: int
    num_ready: int
    access: Access
    grants: list[PoolGrant]
    revision: int | None
    wanted_revision: int
    state: PoolState
    why: str
    replica_bytes: int | None
    created_at: int
    object: Literal["organization.pool"] = "organization.pool"


class PoolRevision(msgspec.Struct, frozen=True, kw_only=True):
    """base_digest, replica_bytes: None until the model is prepared. why: why it failed, or how far it is. Times in Unix
    seconds; changed_at: when its state began."""

    revision: int
    model: str
    settings: dict[str, str]
    base_digest: str | None
    replica_bytes: int | None
    state: RevisionState
    why: str
    created_at: int
    changed_at: int


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """host_id, host: where an agent runs it; None where somebody else does. address: where gateways connect to, None
    before its first start. gpu: the index of its accelerator, None where it computes on processors. generation: the
    number of its latest start. why: why it is in this state, or how far it is. Times in Unix seconds; since: when the
    state began, retry_at: when it is started again after a failure. num_failures: in a row. replace: whether another
    one shall take its place.
    """

    id: str
    pool_id: str
    pool: str
    revision: int
    host_id: str | None
    host: str | None
    address: str | None
    gpu: int | None
    state: ReplicaState
    generation: int
    why: str
    since: int
    num_failures: int
    retry_at: int | None
    replace: bool
    object: Literal["organization.replica"] = "organization.replica"


class PoolDetail(Pool, frozen=True, kw_only=True):
    """num_adapters: adapters of all tenants that belong to the base that serves. revisions: the latest, newest first.
    replicas: those that have not been stopped."""

    num_adapters: int
    revisions: list[PoolRevision]
    replicas: list[Replica]


class DeletedPool(msgspec.Struct, frozen=True):
    id: str
    deleted: Literal[True] = True
    object: Literal["organization.pool.deleted"] = "organization.pool.deleted"


def pool_wire(pool: ServedPool) -> Pool:
    return Pool(**_fields(pool))


def detail_wire(
    pool: ServedPool, revisions: list[RevisionRow], num_adapters: int, hosts: Mapping[str, str]
) -> PoolDetail:
    """hosts: their names by id."""
    return PoolDetail(
        **_fields(pool),
        num_adapters=num_adapters,
        revisions=[_revision_wire(each) for each in revisions],
        replicas=[replica_wire(each, pool.row.name, hosts) for each in pool.replicas],
    )


def replica_wire(row: ReplicaRow, pool: str, hosts: Mapping[str, str]) -> Replica:
    """pool: the name of its pool. hosts: their names by id."""
    return Replica(
        id=row.id,
        pool_id=row.pool_id,
        pool=pool,
        revision=row.revision,
        host_id=row.host_id,
        host=hosts.get(row.host_id or ""),
        address=row.address,
        gpu=row.gpu,
        state=row.state,
        generation=row.generation,
        why=row.why,
        since=seconds(row.since),
        num_failures=row.num_failures,
        retry_at=seconds_or_none(row.retry_at),
        replace=row.replace,
    )


def terms(pool: ServedPool) -> dict[str, Any]:
    """Return what operators decide about a pool, for the audit log."""
    shown = _fields(pool)
    for name in ("id", "created_at", "num_ready", "state", "why", "replica_bytes"):
        del shown[name]
    return shown


def grant_wire(grant: Grant) -> PoolGrant:
    return PoolGrant(grant.organization_id, grant.project_id)


def _fields(pool: ServedPool) -> dict[str, Any]:
    row, wanted = pool.row, pool.revisions[pool.row.wanted_revision]
    condition = condition_of(
        num_replicas=row.num_replicas,
        revision=row.revision,
        wanted_revision=row.wanted_revision,
        wanted_state=wanted.state,
        wanted_why=wanted.why,
        replicas=[
            ReplicaStanding(each.revision, each.state, each.why, each.num_failures, each.host_id is not None)
            for each in pool.replicas
        ],
    )
    return {
        "id": row.id,
        "name": row.name,
        "model": wanted.model,
        "settings": wanted.settings,
        "num_replicas": row.num_replicas,
        "num_ready": condition.num_ready,
        "access": row.access,
        "grants": [grant_wire(each) for each in pool.grants],
        "revision": row.revision,
        "wanted_revision": row.wanted_revision,
        "state": condition.state,
        "why": condition.why,
        "replica_bytes": wanted.num_bytes,
        "created_at": seconds(row.created_at),
    }


def _revision_wire(row: RevisionRow) -> PoolRevision:
    return PoolRevision(
        revision=row.revision,
        model=row.model,
        settings=row.settings,
        base_digest=row.base_digest,
        replica_bytes=row.num_bytes,
        state=row.state,
        why=row.why,
        created_at=seconds(row.created_at),
        changed_at=seconds(row.changed_at),
    )
