"""Reads pools and hosts as the planner needs them, and writes its decisions as rows.

One planner works at a time. When its agent stops in the midst of the transaction that plans, the server ends the
transaction, and with it its decisions: a planner that wakes up later changes nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from gateway.db.adapters.bases import live_contents, lock_adapters, move_adapters
from gateway.db.pools.host_failures import HostFailure, list_failures
from gateway.db.pools.hosts import HostRow, list_hosts
from gateway.db.pools.pools import lock_pools, want_earlier_revision
from gateway.db.pools.replicas import ReplicaRow, create_replica, drain_replicas, lose_replica
from gateway.db.pools.revisions import RevisionRow, set_revision_state
from gateway.db.pools.served import ServedPool, pools_serving, read_served, switch_revision
from gateway.domain.pools.capacity import Device, Host, Needs, Place
from gateway.domain.pools.plan import (
    MAX_PREPARATIONS,
    Action,
    Create,
    Drain,
    GiveUp,
    MarkLost,
    Pool,
    Replica,
    Revision,
    SwitchRevision,
    plan,
)

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_LOCK_KEY = 0x6C6F7270706C616E  # "lorpplan"
_LOCK = "SELECT pg_try_advisory_xact_lock($1)"
_END_WITH_ITS_AGENT = "SET LOCAL idle_in_transaction_session_timeout = '3s'"
_HOLDS = "SELECT EXISTS (SELECT FROM hosts WHERE id = $1 AND generation = $2 AND lease_until > clock_timestamp())"
_NOTHING: Mapping[str, Set[str]] = MappingProxyType({})
_DEVICES: dict[str, Device] = {"cpu": "cpu", "cuda": "cuda"}


async def plan_pools(
    conn: Connection, host_id: str, host_generation: int, fitting: Mapping[str, Set[str]] = _NOTHING
) -> list[Action]:
    """Plan all pools, store the actions and return them; return [] where another agent plans just now.

    host_id, host_generation: those of the agent that plans, which has to hold its lease.
    fitting: by the id of a pool, the digests of adapters' contents that fit its wanted base: these adapters go with the
    pool when it is switched.
    """
    async with conn.transaction():
        if not await may_plan(conn, host_id, host_generation):
            return []
        pools, hosts = await read_pools_and_hosts(conn)
        actions = plan(pools, hosts)
        if not actions:
            return []
        moves = [move for each in actions if isinstance(each, SwitchRevision) for move in _moves(each, pools)]
        if moves:
            await lock_pools(conn)  # no other pool of the former base goes meanwhile
        await _lock(conn, actions)
        for move in moves:
            await lock_adapters(conn, move.former_digest)
        for action in actions:
            await _apply_action(conn, action)
        for move in moves:
            await _move(conn, move, fitting.get(move.pool_id, frozenset()))
    return actions


async def may_plan(conn: Connection, host_id: str, host_generation: int) -> bool:
    """Lock out other planners until the transaction ends.

    Return False if another planner is at work, or the caller has lost its host's lease.

    host_generation: the generation of the caller's lease of its host.
    """
    await conn.execute(_END_WITH_ITS_AGENT)
    is_alone = await conn.fetchval(_LOCK, _LOCK_KEY)
    return bool(is_alone and await conn.fetchval(_HOLDS, host_id, host_generation))


class _Move(msgspec.Struct, frozen=True):
    """The change of a pool from one base to another."""

    pool_id: str
    former_digest: str
    digest: str


def _moves(switch: SwitchRevision, pools: Sequence[Pool]) -> list[_Move]:
    """Return the change of base that a switch of a pool's revision makes; an empty list if the base stays the same."""
    pool = next(each for each in pools if each.id == switch.pool_id)
    former, wanted = (pool.revisions.get(number or 0) for number in (switch.former, switch.revision))
    if former is None or wanted is None or not former.base_digest or not wanted.base_digest:
        return []
    is_same = former.base_digest == wanted.base_digest
    return [] if is_same else [_Move(pool.id, former.base_digest, wanted.base_digest)]


async def _move(conn: Connection, move: _Move, fitting: Set[str]) -> None:
    """Move the adapters of a pool's former base to its new base, unless another pool serves the former base.

    fitting: the digests of contents that fit the new base. An adapter of which any version does not fit stays.
    """
    serving = await pools_serving(conn, move.digest)
    if not serving or await pools_serving(conn, move.former_digest):
        return
    contents: dict[str, set[str]] = {}
    for each in await live_contents(conn, move.former_digest):
        contents.setdefault(each.adapter_id, set()).add(each.digest)
    await move_adapters(conn, [id for id, digests in contents.items() if digests <= fitting], move.digest)


async def read_pools_and_hosts(conn: Connection) -> tuple[list[Pool], list[Host]]:
    """Return all pools and hosts, as `gateway.domain.pools.plan` takes them."""
    hosts = [host_of(each) for each in await list_hosts(conn)]
    by_id = {each.id: each for each in hosts}
    failures = await list_failures(conn)
    return [pool_of(each, by_id, failures) for each in await read_served(conn)], hosts


def pool_of(served: ServedPool, hosts: Mapping[str, Host], failures: Sequence[HostFailure] = ()) -> Pool:
    """Return a pool as the planner sees it.

    Replicas go from hosts that are drained, and from hosts and nodes that lack a label which the pool asks for, or have
    one that it excludes. hosts: the hosts by id. failures: hosts at which no replica starts, and why.
    """
    row = served.row
    asked = Needs(0, labels=row.placement, excluded=row.exclusion)
    left = {
        each.id
        for each in served.replicas
        if (host := hosts.get(each.host_id or "")) is not None and host.is_left_by(each.address or "", asked)
    }

    def revision_of(each: RevisionRow) -> Revision:
        of = [failed for failed in failures if (failed.pool_id, failed.revision) == (row.id, each.revision)]
        needs = msgspec.structs.replace(
            needs_of(each),
            labels=row.placement,
            excluded=row.exclusion,
            avoided={failed.host_id: failed.why for failed in of},
            hopeful=frozenset(failed.host_id for failed in of if failed.num_failures < MAX_PREPARATIONS),
        )
        return Revision(each.revision, each.state, needs, each.why, each.base_digest or "")

    return Pool(
        id=row.id,
        num_replicas=row.num_replicas,
        revision=row.revision,
        wanted_revision=row.wanted_revision,
        revisions={number: revision_of(each) for number, each in served.revisions.items()},
        replicas=[_replica_of(each, left) for each in served.replicas],
        is_removed=served.is_removed,
    )


def host_of(row: HostRow) -> Host:
    """Return a host as the planner sees it."""
    return Host(
        row.id,
        row.name,
        row.is_alive,
        row.memory_bytes,
        row.gpu_bytes,
        row.away_s,
        frozenset(row.programs),
        is_drained=row.is_drained,
        labels=row.labels,
        is_cluster=row.placement != "local",
        nodes=row.nodes,
    )


def needs_of(row: RevisionRow) -> Needs:
    """Return the needs of a replica of a revision; its memory is not known before the revision was prepared."""
    device = _DEVICES.get(row.settings.get("device", ""), "auto")
    num_threads = int(row.settings.get("num_threads", 0))
    return Needs(row.num_bytes or 0, device, "" if row.is_ours else row.driver, num_threads=num_threads)


def _replica_of(row: ReplicaRow, left: Set[str]) -> Replica:
    place = None if row.host_id is None else Place(row.host_id, row.gpu)
    is_evicted = row.id in left
    now = datetime.datetime.now(datetime.UTC)
    return Replica(
        row.id,
        row.revision,
        row.state,
        place,
        row.num_failures,
        row.replace or is_evicted,
        row.why,
        is_evicted,
        full_s=0.0 if row.full_since is None else (now - row.full_since).total_seconds(),
    )


_LOCK_POOLS = "SELECT FROM pools WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE"
_LOCK_REVISIONS = """
    SELECT FROM pool_revisions WHERE pool_id = ANY ($1::text[]) ORDER BY pool_id, revision FOR NO KEY UPDATE
"""
_LOCK_REPLICAS = "SELECT FROM replicas WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE"


async def _lock(conn: Connection, actions: Sequence[Action]) -> None:
    """Lock all rows that will be changed before the first change, which locks the counter of changes for everybody.

    Another transaction may hold one of the rows while it waits for the counter; so a transaction that has the counter
    must not wait for a row.
    """
    pool_ids = sorted({each.pool_id for each in actions if not isinstance(each, Drain | MarkLost)})
    replica_ids = [each.replica_id for each in actions if isinstance(each, Drain | MarkLost)]
    await conn.execute(_LOCK_POOLS, pool_ids)
    await conn.execute(_LOCK_REVISIONS, pool_ids)
    await conn.execute(_LOCK_REPLICAS, replica_ids)


async def _apply_action(conn: Connection, action: Action) -> None:
    match action:
        case Create(pool_id, revision, place):
            await create_replica(conn, pool_id, revision, host_id=place.host_id, gpu=place.gpu)
        case Drain(replica_id, why):
            await drain_replicas(conn, [replica_id], why)
        case MarkLost(replica_id, why):
            await lose_replica(conn, replica_id, why)
        case SwitchRevision(pool_id, revision, former):
            if await switch_revision(conn, pool_id, revision):
                await set_revision_state(conn, pool_id, revision, "prepared")
                if former is not None:
                    await set_revision_state(conn, pool_id, former, "retired", f"revision {revision} serves")
        case GiveUp(pool_id, revision, back_to, why):
            await set_revision_state(conn, pool_id, revision, "failed", why)
            if back_to is not None:
                await want_earlier_revision(conn, pool_id, revision, back_to)
