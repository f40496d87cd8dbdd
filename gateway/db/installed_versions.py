"""The parts of an installation with their versions, for an upgrade.

Read by a newer version too, before it has brought the schema up to date: columns that are not there yet are read as
NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.ledger.journals import LIVING_FOR, LOST_AFTER
from gateway.db.migrate import missing_scripts
from gateway.db.schema_files import BASELINE, MigrationRefused
from gateway.domain.upgrade import Change, InstallationState, Journal, Kind, Part, Pool, Software, taken_away

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record

    from gateway.db.pool import Connection

_GATEWAYS = """
    SELECT coalesce(to_jsonb(j) ->> 'folder', id) AS name, to_jsonb(j) ->> 'version' AS version,
        to_jsonb(j) ->> 'protocol' AS protocol
    FROM journals j WHERE heard_at > clock_timestamp() - $1::interval ORDER BY name, id
"""
_LOST = """
    SELECT id, open_requests, to_jsonb(j) ->> 'folder' AS folder FROM journals j
    WHERE open_requests > 0 AND heard_at < clock_timestamp() - $1::interval ORDER BY heard_at, id
"""
_AGENTS = """
    SELECT name, to_jsonb(h) ->> 'version' AS version, to_jsonb(h) ->> 'protocol' AS protocol FROM hosts h
    WHERE lease_until > clock_timestamp() ORDER BY name, id
"""
_ENGINES = """
    SELECT r.id AS name, to_jsonb(r) ->> 'version' AS version, to_jsonb(r) ->> 'protocol' AS protocol
    FROM replicas r JOIN pool_revisions v USING (pool_id, revision)
    WHERE r.state = 'ready' AND r.host_id IS NOT NULL
        AND coalesce(to_jsonb(v) ->> 'driver', 'lorikeet') = 'lorikeet'
    ORDER BY r.created_at, r.id
"""
_POOLS = """
    SELECT p.name, p.num_replicas AS num_wanted, coalesce(p.revision <> p.wanted_revision, false) AS is_changing,
        count(r.id) FILTER (WHERE r.state = 'ready') AS num_ready,
        count(r.id) FILTER (WHERE r.state = 'draining') AS num_draining
    FROM pools p LEFT JOIN replicas r ON r.pool_id = p.id
    WHERE p.removed_at IS NULL GROUP BY p.id ORDER BY p.name
"""
_DRAINED = """
    SELECT name FROM hosts h WHERE (to_jsonb(h) ->> 'is_drained')::boolean AND to_jsonb(h) ->> 'removed_at' IS NULL
    ORDER BY name, id
"""
_UNTENDED = """
    SELECT name FROM hosts h WHERE lease_until <= clock_timestamp()
        AND EXISTS (SELECT FROM replicas r WHERE r.host_id = h.id AND r.state <> 'stopped')
    ORDER BY name, id
"""


async def read_installation(conn: Connection) -> InstallationState:
    """Return the running parts, the work in progress, and the scripts that the schema lacks, all at one moment."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        try:
            missing, refusal = await missing_scripts(conn), ""
        except MigrationRefused as error:
            missing, refusal = [], str(error)
        changes = [Change(script.name, _taken_away(script.name, script.sql)) for script in missing]
        if any(change.name == BASELINE for change in changes):
            return InstallationState(changes=changes)  # an empty database, or one from before pools
        gateways = await conn.fetch(_GATEWAYS, LIVING_FOR)
        return InstallationState(
            changes=changes,
            refusal=refusal,
            parts=[
                *_parts("gateway", gateways),
                *_parts("agent", await conn.fetch(_AGENTS)),
                *_parts("engine", await conn.fetch(_ENGINES)),
            ],
            journals=[Journal(**row) for row in await conn.fetch(_LOST, LOST_AFTER)],
            pools=[Pool(**row) for row in await conn.fetch(_POOLS)],
            drained_hosts=[row["name"] for row in await conn.fetch(_DRAINED)],
            untended_hosts=[row["name"] for row in await conn.fetch(_UNTENDED)],
        )


def _taken_away(name: str, sql: str) -> list[str]:
    """Return the tables and columns that a script drops, none for scripts of functions.

    Functions are replaced whole, and older gateways call the new ones.
    """
    return [] if name == "functions" else taken_away(sql)


def _parts(kind: Kind, rows: Sequence[Record]) -> list[Part]:
    return [Part(kind, row["name"], Software(row["version"], row["protocol"])) for row in rows]
