"""Pools and hosts as the planner sees them, and its decisions as rows. One planner works at a time.

The transaction that plans is ended by the server when its agent stops in the midst of it, and with it what it decided:
a planner that wakes up later changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.db.pools.hosts import HostRow, list_hosts
from gateway.db.pools.pools import take_back
from gateway.db.pools.replicas import ReplicaRow, create_replica, drain_replicas
from gateway.db.pools.revisions import RevisionRow, set_revision_state
from gateway.db.pools.served import ServedPool, read_served, switch_revision
from gateway.domain.pools.capacity import Device, Host, Needs, Place
from gateway.domain.pools.plan import Action, Create, Drain, GiveUp, Pool, Replica, Revision, Switch, plan

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_LOCK_KEY = 0x6C6F7270706C616E  # "lorpplan"
_LOCK = "SELECT pg_try_advisory_xact_lock($1)"
_END_WITH_ITS_AGENT = "SET LOCAL idle_in_transaction_session_timeout = '3s'"
_HOLDS = "SELECT EXISTS (SELECT FROM hosts WHERE id = $1 AND generation = $2 AND lease_until > clock_timestamp())"
_DEVICES: dict[str, Device] = {"cpu": "cpu", "cuda": "cuda"}


async def plan_pools(conn: Connection, host_id: str, host_generation: int) -> list[Action]:
    """Plan all pools and write down what was decided; return it, and nothing where another agent plans just now.

    host_id, host_generation: of the agent that plans, which has to hold its lease.
    """
    async with conn.transaction():
        await conn.execute(_END_WITH_ITS_AGENT)
        if not await conn.fetchval(_LOCK, _LOCK_KEY) or not await conn.fetchval(_HOLDS, host_id, host_generation):
            return []
        pools, hosts = await read_world(conn)
        actions = plan(pools, hosts)
        if not actions:
            return []
        await _lock(conn, actions)
        for action in actions:
            await _apply(conn, action)
    return actions


async def read_world(conn: Connection) -> tuple[list[Pool], list[Host]]:
    """Return what `gateway.domain.pools.plan` decides about: all pools, and all hosts."""
    return [pool_of(each) for each in await read_served(conn)], [host_of(each) for each in await list_hosts(conn)]


def pool_of(served: ServedPool) -> Pool:
    """Return a pool as the planner sees it."""
    row = served.row
    return Pool(
        id=row.id,
        num_replicas=row.num_replicas,
        revision=row.revision,
        wanted_revision=row.wanted_revision,
        revisions={number: _revision_of(each) for number, each in served.revisions.items()},
        replicas=[_replica_of(each) for each in served.replicas],
        is_removed=served.is_removed,
    )


def host_of(row: HostRow) -> Host:
    """Return a host as the planner sees it."""
    return Host(row.id, row.name, row.is_alive, row.memory_bytes, row.gpu_bytes)


def needs_of(row: RevisionRow) -> Needs:
    """Return what a replica of a revision asks of a host; nothing is known before the revision was prepared."""
    return Needs(row.num_bytes or 0, _DEVICES.get(row.settings.get("device", ""), "auto"))


def _revision_of(row: RevisionRow) -> Revision:
    return Revision(row.revision, row.state, needs_of(row), row.why)


def _replica_of(row: ReplicaRow) -> Replica:
    place = None if row.host_id is None else Place(row.host_id, row.gpu)
    return Replica(row.id, row.revision, row.state, place, row.num_failures, row.replace, row.why)


_LOCK_POOLS = "SELECT FROM pools WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE"
_LOCK_REVISIONS = """
    SELECT FROM pool_revisions WHERE pool_id = ANY ($1::text[]) ORDER BY pool_id, revision FOR NO KEY UPDATE
"""
_LOCK_REPLICAS = "SELECT FROM replicas WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE"


async def _lock(conn: Connection, actions: Sequence[Action]) -> None:
    """Lock all rows that will be changed before the first change, which locks the counter of changes for everybody.

    Somebody who has one of the rows may wait for the counter: having it, one must not wait for a row.
    """
    pool_ids = sorted({each.pool_id for each in actions if not isinstance(each, Drain)})
    replica_ids = [each.replica_id for each in actions if isinstance(each, Drain)]
    await conn.execute(_LOCK_POOLS, pool_ids)
    await conn.execute(_LOCK_REVISIONS, pool_ids)
    await conn.execute(_LOCK_REPLICAS, replica_ids)


async def _apply(conn: Connection, action: Action) -> None:
    match action:
        case Create(pool_id, revision, place):
            await create_replica(conn, pool_id, revision, host_id=place.host_id, gpu=place.gpu)
        case Drain(replica_id, why):
            await drain_replicas(conn, [replica_id], why)
        case Switch(pool_id, revision, former):
            if await switch_revision(conn, pool_id, revision):
                await set_revision_state(conn, pool_id, revision, "prepared")
                if former is not None:
                    await set_revision_state(conn, pool_id, former, "retired", f"revision {revision} serves")
        case GiveUp(pool_id, revision, back_to, why):
            await set_revision_state(conn, pool_id, revision, "failed", why)
            if back_to is not None:
                await take_back(conn, pool_id, revision, back_to)
