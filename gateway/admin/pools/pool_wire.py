"""Pools, revisions and replicas as the admin API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.admin.common import seconds_or_none, unix_seconds
from gateway.backends.base import Health
from gateway.db.pools.pools import Grant
from gateway.db.pools.replicas import ReplicaRow
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.scaling_rows import ScalingChange, ScalingRow
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.capacity import StartCheck
from gateway.domain.pools.condition import PoolState, ReplicaStanding, condition_of
from gateway.domain.pools.drivers import Driver
from gateway.domain.pools.plan import Rollout
from gateway.domain.pools.states import Access, ReplicaState, RevisionState
from gateway.domain.routing.breaker import BreakerState


class PoolGrant(msgspec.Struct, frozen=True):
    """An organization, or one project of it, that may use a pool whose access is "listed"."""

    organization_id: str
    project_id: str | None
    """Id of one project; null stands for all projects of the organization."""


class PoolScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds between which the number of a pool's replicas follows its load, and how the number changes."""

    min_replicas: int
    max_replicas: int
    down_after_seconds: int
    """Seconds for which a replica must not have been needed before it stops."""
    why: str
    """Reason for the last change of the number; empty before the first."""
    changed_at: int | None
    """Unix seconds of the last change of the number; null before the first."""
    outlook: str | None
    """The load now, and what follows from it; null in lists, and before the pool has served."""
    start_seconds: float | None
    """Seconds that the first replica took to become ready the last time that the pool had none; null before that."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A base model under a name, with the engines that serve it."""

    id: str
    name: str
    """The name by which requests ask for the base model."""
    model: str
    """The base model of the wanted revision, as the operator named it; empty where only a server of another maker knows
    the model."""
    engine: Driver
    """The servers behind the wanted revision: `lorikeet`, or the driver for servers of another maker."""
    settings: dict[str, str]
    """Settings of the wanted revision: engines' settings that differ from the hosts' own, or the driver's settings."""
    is_managed: bool
    """True if agents start and end the replicas of the wanted revision; false for servers of another maker that run
    already."""
    urls: list[str]
    """Addresses of the servers of another maker; empty where agents start the engines."""
    num_replicas: int
    """Number of engines that shall run, without engines that somebody else runs."""
    scaling: PoolScaling | None
    """Bounds between which the number of replicas follows the load; null where the number stays as it is set."""
    num_wanted: int
    """Number of replicas that are wanted, including servers and engines that somebody else runs."""
    num_ready: int
    """Number of replicas that take requests. A server or engine that somebody else runs counts where it answers the
    gateway that was asked."""
    placement: dict[str, str]
    """Labels that a host must have for replicas to start there."""
    exclusion: dict[str, list[str]]
    """Values that labels of a host must not have for replicas to start there, by the names of the labels."""
    access: Access
    """Projects that may use the pool: `all` projects of the installation, or the ones that are `listed` in `grants`."""
    grants: list[PoolGrant]
    revision: int | None
    """The number of the revision that serves; null before the first one is ready."""
    wanted_revision: int
    """The number of the revision that is to serve; another one than `revision` while a change is under way."""
    state: PoolState
    why: str
    """A sentence about the state: how far a change is, or what is wrong."""
    replica_bytes: int | None
    """The memory that one replica of the wanted revision takes by the estimate; null until its model is prepared."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.pool"] = "organization.pool"


class PoolRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A base model with engine settings that a pool serves or served. Model and settings of a revision never change."""

    revision: int
    model: str
    engine: Driver
    settings: dict[str, str]
    base_digest: str | None
    """The digest of the base model, to which adapters belong; null until the model is prepared."""
    replica_bytes: int | None
    """The memory that one replica takes by the estimate; null until the model is prepared."""
    state: RevisionState
    why: str
    """Reason of the failure, or how far the preparation is."""
    created_at: int
    """Unix seconds."""
    changed_at: int
    """Unix seconds at which the state began."""


class ReplicaServer(msgspec.Struct, frozen=True):
    """A server of another maker, as the gateway that answers sees it."""

    breaker: BreakerState
    """The circuit breaker: `open` where no request is sent for a while, since the server failed; `half-open` where the
    next request is a trial."""
    open_for_seconds: float
    """Seconds until the next request is sent as a trial; 0 where the breaker is not open."""
    num_unbelieved: int
    """Number of the last 50 usages that the server reported and that cannot be true. At ten, the server gets no
    requests for a minute."""
    distrusted_for_seconds: float
    """Seconds for which the server gets no requests, since too many of its usages cannot be true; 0 where it is
    trusted."""
    version: str | None
    """The version that the server says it has; null where it says none."""
    is_tried_version: bool
    """False if the driver was not tried with the version: the server is asked by a generic protocol then."""
    has_adapters: bool
    """True if adapters of tenants answer at the server. If the server's version is untried, an adapter
    answers only after a probe has shown that it does."""
    separates_caches: bool
    """True if the prompts of each tenant have a cache of their own at the server. False if tenants share one, or
    if this is not known."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """An engine process of a pool's revision."""

    id: str
    pool_id: str
    pool: str
    """The name of the pool."""
    revision: int
    host_id: str | None
    """The host whose agent runs the engine; null for an engine that somebody else runs."""
    host: str | None
    """The name of the host."""
    address: str | None
    """The endpoint that gateways connect to; null before the first start."""
    gpu: int | None
    """The index of the accelerator on the host; null for an engine that computes on processors."""
    state: ReplicaState
    """The state. A server or engine that somebody else runs is `loading` where it does not answer the gateway that was
    asked."""
    generation: int
    """The number of the latest start; 0 before the first."""
    why: str
    """Reason for the state, or how far the start is."""
    since: int
    """Unix seconds at which the state began."""
    num_failures: int
    """Number of failures in a row."""
    retry_at: int | None
    """Unix seconds of the next start after a failure."""
    replace: bool
    """True if another replica shall take the place of this one."""
    server: ReplicaServer | None
    """The server of another maker; null for an engine, and before the server was asked."""
    object: Literal["organization.replica"] = "organization.replica"


class PoolHost(msgspec.Struct, frozen=True):
    """A host, and whether one more replica of a pool could start there now."""

    host_id: str
    host: str
    """The name of the host."""
    fits: bool
    why: str
    """The memory that is free on the host, or what is in the way of a replica."""


class PoolScalingChange(msgspec.Struct, frozen=True):
    """A change of the number of a pool's replicas."""

    id: str
    """Id of the entry in the audit log."""
    at: int
    """Unix seconds."""
    before: int
    """Number of replicas before the change."""
    after: int
    """Number of replicas after the change."""
    by: Literal["autoscaler", "operator"]
    why: str
    """Reason of the autoscaler; empty for a change by an operator."""
    object: Literal["organization.pool.scaling"] = "organization.pool.scaling"


class PoolDetail(Pool, frozen=True, kw_only=True):
    """A pool with the revisions and replicas of the pool."""

    rollout: Rollout | None
    """The way in which the change under way replaces replicas: `side by side`, or `one after the other` where both
    revisions do not fit on the hosts. Null where no change is under way, and until the model is prepared."""
    num_adapters: int
    """Adapters of all tenants that belong to the base that serves."""
    revisions: list[PoolRevision]
    """The latest revisions, newest first."""
    key_hint: str | None
    """The last four characters of the key that the servers ask for; null where the pool has none."""
    replicas: list[Replica]
    """Replicas that have not been stopped, oldest first."""
    hosts: list[PoolHost]
    """All hosts, each with whether one more replica could start there; empty until the model is prepared, and where
    agents start no servers of the pool."""


class PoolKey(msgspec.Struct, frozen=True):
    """The facts that are shown about the key that the servers of a pool ask for."""

    pool_id: str
    hint: str
    """The last four characters of the key."""
    created_at: int
    """Unix seconds at which the key was set."""
    object: Literal["organization.pool.key"] = "organization.pool.key"


class DeletedPoolKey(msgspec.Struct, frozen=True):
    """A pool whose key was removed."""

    pool_id: str
    deleted: Literal[True] = True
    object: Literal["organization.pool.key.deleted"] = "organization.pool.key.deleted"


class DeletedPool(msgspec.Struct, frozen=True):
    """A pool that was removed."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.pool.deleted"] = "organization.pool.deleted"


Healths = Mapping[str, Health]
"""The healths of replicas by their ids, as this gateway observes them."""


def pool_wire(pool: ServedPool, shortage: str, healths: Healths) -> Pool:
    """Return a pool as lists show it.

    shortage: a sentence that says why wanted replicas find no room on the hosts; "": they find room.
    """
    return Pool(**_fields(pool, shortage, healths))


def detail_wire(
    pool: ServedPool,
    revisions: list[RevisionRow],
    *,
    rollout: Rollout | None,
    shortage: str,
    num_adapters: int,
    hosts: Mapping[str, str],
    standings: Sequence[StartCheck],
    healths: Healths,
    key_hint: str | None,
    outlook: str | None,
) -> PoolDetail:
    """Return a pool with its revisions and replicas.

    rollout: the way in which a wanted revision will replace replicas; None where nothing is replaced. shortage: a
    sentence that says why wanted replicas find no room on the hosts; "": they find room. hosts: the names of hosts by
    id. key_hint: the last characters of the servers' key; None without a key. outlook: a sentence on what the automatic
    number of replicas does next; None where the number does not follow the load.
    """
    return PoolDetail(
        **_fields(pool, shortage, healths, outlook),
        rollout=rollout,
        num_adapters=num_adapters,
        key_hint=key_hint,
        revisions=[_revision_wire(each) for each in revisions],
        replicas=[replica_wire(each, pool.row.name, hosts, healths) for each in pool.replicas],
        hosts=[PoolHost(each.host_id, hosts[each.host_id], each.fits, each.why) for each in standings],
    )


def replica_wire(row: ReplicaRow, pool: str, hosts: Mapping[str, str], healths: Healths) -> Replica:
    """Return a replica as replies show it.

    pool: the name of its pool. hosts: the names of hosts by id.
    """
    state, why = _standing(row, healths)
    return Replica(
        id=row.id,
        pool_id=row.pool_id,
        pool=pool,
        revision=row.revision,
        host_id=row.host_id,
        host=hosts.get(row.host_id or ""),
        address=row.address,
        gpu=row.gpu,
        state=state,
        generation=row.generation,
        why=why,
        since=unix_seconds(row.since),
        num_failures=row.num_failures,
        retry_at=seconds_or_none(row.retry_at),
        replace=row.replace,
        server=_server(healths.get(row.id)),
    )


def _server(health: Health | None) -> ReplicaServer | None:
    if health is None or health.server is None:
        return None
    trust = health.server
    return ReplicaServer(
        trust.breaker,
        round(trust.open_for_s, 1),
        trust.num_false_usages,
        round(trust.distrusted_for_s, 1),
        version=trust.version or None,
        is_tried_version=trust.is_tried,
        has_adapters=trust.has_adapters,
        separates_caches=trust.separates_caches,
    )


def scaling_change_wire(row: ScalingChange) -> PoolScalingChange:
    """Return a change of the number of a pool's replicas. A change without a reason was made by an operator."""
    by: Literal["autoscaler", "operator"] = "operator" if row.why is None else "autoscaler"
    return PoolScalingChange(row.id, unix_seconds(row.at), row.before, row.after, by, row.why or "")


def pool_terms(pool: ServedPool) -> dict[str, Any]:
    """Return the fields of a pool that operators set, for the audit log."""
    shown = _fields(pool)
    for name in ("id", "created_at", "num_ready", "num_wanted", "state", "why", "replica_bytes"):
        del shown[name]
    bounds = pool.scaling.bounds if pool.scaling is not None else None
    return shown | {"scaling": None if bounds is None else msgspec.structs.asdict(bounds)}


def grant_wire(grant: Grant) -> PoolGrant:
    """Return a grant of a pool as the admin API shows it."""
    return PoolGrant(grant.organization_id, grant.project_id)


def _standing(row: ReplicaRow, healths: Healths) -> tuple[ReplicaState, str]:
    """Return the state of a replica and the reason for it.

    If no agent runs the replica, both are what this gateway observes.
    """
    if row.host_id is not None or row.state != "ready":
        return row.state, row.why
    health = healths.get(row.id)
    if health is None:
        return "loading", "this gateway has not asked the server yet"
    return ("ready", health.reason or row.why) if health.ready else ("loading", health.reason or health.detail)


def _fields(
    pool: ServedPool, shortage: str = "", healths: Healths | None = None, outlook: str | None = None
) -> dict[str, Any]:
    row, wanted = pool.row, pool.revisions[pool.row.wanted_revision]
    condition = condition_of(
        num_replicas=row.num_replicas,
        revision=row.revision,
        wanted_revision=row.wanted_revision,
        wanted_state=wanted.state,
        wanted_why=wanted.why,
        replicas=[
            ReplicaStanding(each.revision, *_standing(each, healths or {}), each.num_failures, each.host_id is not None)
            for each in pool.replicas
        ],
        shortage=shortage,
    )
    why = condition.why
    if condition.state == "stopped" and not wanted.is_managed:
        why = "No server is wanted: name the addresses of its servers again ('urls'), and the pool serves."
    if condition.state == "stopped" and pool.scaling is not None:
        why = "No request came of late: the next one has a replica start."
    return {
        "id": row.id,
        "name": row.name,
        "model": wanted.model,
        "engine": wanted.driver,
        "is_managed": wanted.is_managed,
        "urls": sorted(
            each.address
            for each in pool.replicas
            if not wanted.is_managed and each.revision == wanted.revision and each.address is not None
        ),
        "settings": wanted.settings,
        "num_replicas": row.num_replicas,
        "scaling": _scaling_wire(pool.scaling, outlook),
        "num_wanted": condition.num_wanted,
        "num_ready": condition.num_ready,
        "placement": row.placement,
        "exclusion": row.exclusion,
        "access": row.access,
        "grants": [grant_wire(each) for each in pool.grants],
        "revision": row.revision,
        "wanted_revision": row.wanted_revision,
        "state": condition.state,
        "why": why,
        "replica_bytes": wanted.num_bytes,
        "created_at": unix_seconds(row.created_at),
    }


def _scaling_wire(row: ScalingRow | None, outlook: str | None) -> PoolScaling | None:
    if row is None:
        return None
    return PoolScaling(
        min_replicas=row.min_replicas,
        max_replicas=row.max_replicas,
        down_after_seconds=row.down_after_s,
        why=row.why,
        changed_at=seconds_or_none(row.decided_at),
        outlook=outlook,
        start_seconds=None if row.start_s is None else round(row.start_s, 1),
    )


def _revision_wire(row: RevisionRow) -> PoolRevision:
    return PoolRevision(
        revision=row.revision,
        model=row.model,
        engine=row.driver,
        settings=row.settings,
        base_digest=row.base_digest,
        replica_bytes=row.num_bytes,
        state=row.state,
        why=row.why,
        created_at=unix_seconds(row.created_at),
        changed_at=unix_seconds(row.changed_at),
    )
