"""Hosts: machines on which an agent starts engines. One agent at a time holds the lease of a host.

The lease ends by PostgreSQL's clock. Taking it increments the host's generation, by which every later statement of the
agent before is recognized and ignored.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.protocol import protocol_text
from engine.version import VERSION
from gateway.db.pools.host_failures import clear_failures
from gateway.domain.pools.capacity import Node, Placement

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class HostRow(msgspec.Struct, frozen=True):
    """A host, with the state of its agent's lease."""

    id: str
    name: str
    generation: int
    """The number of the agent's lease among the leases of the host."""
    lease_until: datetime.datetime
    """The time at which the agent's lease ends unless it is renewed."""
    num_processors: int
    memory_bytes: int
    gpu_bytes: list[int]
    """The memory of each accelerator, in the order of their indices."""
    is_alive: bool
    """True if an agent holds the lease now."""
    away_s: float
    """Seconds since the lease ended; 0 while it lasts, infinite where it was given back with no engine left."""
    programs: list[str]
    """The drivers whose servers the host's agent can start."""
    labels: dict[str, str]
    """The labels that operators gave the host."""
    is_drained: bool
    """True if replicas leave the host, and none starts on it."""
    placement: Placement
    """The chooser of the machines for the host's engines: `local`, the host itself, or `ray`, for a whole cluster."""
    is_joined: bool
    """True if the host's engines and the gateways have keys for TCP."""
    version: str | None
    """The version of Lorikeet of the agent that claimed the host last; None before the first."""
    nodes: list[Node]
    """The machines of a cluster, as its agent reported them last; none for a host that runs engines itself."""


_CLAIM = """
    INSERT INTO hosts AS h (id, name, generation, lease_until, num_processors, memory_bytes, gpu_bytes, programs,
                       version, placement, protocol)
    VALUES ($1, $2, 1, clock_timestamp() + $3::interval, $4, $5, $6, $8, $9, $10, $11)
    ON CONFLICT (id) DO UPDATE SET
        name = CASE WHEN h.public_keys = '{}' THEN excluded.name ELSE h.name END, generation = h.generation + 1,
        lease_until = excluded.lease_until, num_processors = excluded.num_processors,
        memory_bytes = excluded.memory_bytes, gpu_bytes = excluded.gpu_bytes, programs = excluded.programs,
        version = excluded.version, placement = excluded.placement, protocol = excluded.protocol
    WHERE (h.lease_until <= clock_timestamp() OR $7) AND h.removed_at IS NULL
        AND (h.placement = $10 OR NOT EXISTS (SELECT FROM replicas r WHERE r.host_id = h.id AND r.state <> 'stopped'))
    RETURNING generation
"""


async def claim_host(
    conn: Connection,
    host_id: str,
    name: str,
    *,
    lease: datetime.timedelta,
    num_processors: int,
    memory_bytes: int,
    gpu_bytes: Sequence[int] = (),
    force: bool = False,
    programs: Sequence[str] = (),
    placement: Placement = "local",
) -> int | None:
    """Take the lease of a host, new or known; return the host's generation.

    Return None where another agent holds the lease, or the host has replicas that run under another placement
    (`runs_elsewhere`).

    force: True: take the lease even from another agent, which the caller knows to be dead.
    programs, placement: as for `HostRow`.
    """
    generation: int | None = await conn.fetchval(
        _CLAIM,
        host_id,
        name,
        lease,
        num_processors,
        memory_bytes,
        list(gpu_bytes),
        force,
        list(programs),
        VERSION,
        placement,
        protocol_text(),
    )
    return generation


_RUNS_ELSEWHERE = """
    SELECT EXISTS (SELECT FROM hosts h JOIN replicas r ON r.host_id = h.id
                   WHERE h.id = $1 AND h.placement <> $2 AND r.state <> 'stopped')
"""


async def runs_elsewhere(conn: Connection, host_id: str, placement: Placement) -> bool:
    """Tell whether a host has replicas that run under another placement.

    An agent with this placement would not see the engines of such replicas.
    """
    return bool(await conn.fetchval(_RUNS_ELSEWHERE, host_id, placement))


_RENEW = """
    UPDATE hosts SET lease_until = clock_timestamp() + $3::interval
    WHERE id = $1 AND generation = $2 AND removed_at IS NULL
"""


async def renew_host(conn: Connection, host_id: str, generation: int, lease: datetime.timedelta) -> bool:
    """Renew the lease; return False if another agent has taken it."""
    return await conn.execute(_RENEW, host_id, generation, lease) == "UPDATE 1"


_RELEASE = """
    UPDATE hosts SET lease_until = CASE WHEN $3 THEN clock_timestamp() ELSE '-infinity' END
    WHERE id = $1 AND generation = $2
"""


async def release_host(conn: Connection, host_id: str, generation: int, *, leaves_engines: bool = True) -> None:
    """Give the lease back, so that the next agent need not wait for its end. leaves_engines: True: engines go on."""
    await conn.execute(_RELEASE, host_id, generation, leaves_engines)


_LIST = """
    SELECT id, name, generation, lease_until, num_processors, memory_bytes, gpu_bytes,
           lease_until > clock_timestamp() AS is_alive,
           CASE WHEN lease_until = '-infinity' THEN 'infinity'::float8
               ELSE greatest(0, extract(epoch FROM clock_timestamp() - lease_until)) END::float8 AS away_s,
           programs, labels, is_drained, placement, public_keys <> '{}' AS is_joined, version, nodes
    FROM hosts WHERE removed_at IS NULL ORDER BY created_at, id
"""
_LABELS, _NODES = msgspec.json.Decoder(dict[str, str]), msgspec.json.Decoder(list[Node])


async def list_hosts(conn: Connection) -> list[HostRow]:
    """Return all hosts of the installation, oldest first."""
    return [
        HostRow(**dict(row) | {"labels": _LABELS.decode(row["labels"]), "nodes": _NODES.decode(row["nodes"])})
        for row in await conn.fetch(_LIST)
    ]


_TELL_NODES = "UPDATE hosts SET nodes = $3::jsonb WHERE id = $1 AND generation = $2 AND nodes <> $3::jsonb"


async def store_nodes(conn: Connection, host_id: str, generation: int, nodes: Sequence[Node]) -> None:
    """Store the machines of a cluster, unless another agent has its host.

    generation: the generation of the agent's lease.
    """
    await conn.execute(_TELL_NODES, host_id, generation, msgspec.json.encode(nodes).decode())


_IS_REMOVED = "SELECT EXISTS (SELECT FROM hosts WHERE id = $1 AND removed_at IS NOT NULL)"


async def is_removed(conn: Connection, host_id: str) -> bool:
    """Tell whether an operator has removed the host."""
    removed: bool = await conn.fetchval(_IS_REMOVED, host_id)
    return removed


_ANNOUNCE = """
    INSERT INTO hosts AS h (id, name, lease_until, public_keys) VALUES ($1, $2, '-infinity', ARRAY[$3::text])
    ON CONFLICT (id) DO UPDATE SET public_keys = excluded.public_keys
    WHERE h.public_keys <> excluded.public_keys AND h.removed_at IS NULL
"""


async def announce_key(conn: Connection, host_id: str, name: str, public_key: str) -> None:
    """Publish a host's public key, so that engines take connections of its holder; a former key is revoked.

    A removed host stays removed.
    """
    await conn.execute(_ANNOUNCE, host_id, name, public_key)


_KEYS = "SELECT unnest(public_keys) AS key FROM hosts WHERE removed_at IS NULL"


async def list_keys(conn: Connection) -> list[str]:
    """Return the public keys of all hosts."""
    return [row["key"] for row in await conn.fetch(_KEYS)]


_DRAIN = "UPDATE hosts SET is_drained = $2 WHERE id = $1 AND removed_at IS NULL AND is_drained <> $2"


async def drain_host(conn: Connection, host_id: str, *, is_drained: bool) -> None:
    """Drain a host, so that its replicas leave and none start on it; or use it again."""
    await conn.execute(_DRAIN, host_id, is_drained)


_LABEL = "UPDATE hosts SET labels = $2::jsonb WHERE id = $1 AND removed_at IS NULL"


async def label_host(conn: Connection, host_id: str, labels: Mapping[str, str]) -> None:
    """Replace the labels that operators give a host."""
    await conn.execute(_LABEL, host_id, msgspec.json.encode(labels).decode())


_REMOVE = """
    UPDATE hosts SET removed_at = clock_timestamp(), lease_until = '-infinity', generation = generation + 1,
        public_keys = '{}' WHERE id = $1 AND removed_at IS NULL
"""


async def remove_host(conn: Connection, host_id: str) -> None:
    """Remove a host: revoke its keys, and end its agent."""
    await conn.execute(_REMOVE, host_id)
    await clear_failures(conn, host_id)
