"""The parts of an installation are read with their versions, also from a schema that lacks the newest columns."""

from __future__ import annotations

import datetime

import pytest

from engine.protocol import protocol_text
from engine.version import VERSION
from gateway.db.installed_versions import read_installation
from gateway.db.ledger.journals import report_journal
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.db.pools.hosts import claim_host
from gateway.db.pools.replicas import begin_start, create_replica, move_replica, note_software
from gateway.domain.upgrade import Part, Pool, Software
from tests.gateway.bases import BASE_DIGEST

pytestmark = pytest.mark.usefixtures("database")
OURS = Software(VERSION, protocol_text())
HOST = "host-1"


async def install_parts(database: Database) -> str:
    """Create a gateway, a lost journal, a host with an agent, and a pool with one replica; return the replica's id."""
    async with database.transaction() as conn:
        await report_journal(conn, "here", 2, version=VERSION, folder="machine:/data/journal/0")
        await report_journal(conn, "lost", 3, version=VERSION, folder="other:/data/journal/0")
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '1 hour' WHERE id = 'lost'")
        lease = datetime.timedelta(minutes=5)
        generation = await claim_host(conn, HOST, "machine", lease=lease, num_processors=1, memory_bytes=1)
        assert generation == 1
        organization = await conn.fetchval("INSERT INTO organizations (id, name) VALUES ('org', 'org') RETURNING id")
        await conn.execute("INSERT INTO bases (digest, name) VALUES ($1, 'tiny') ON CONFLICT DO NOTHING", BASE_DIGEST)
        await conn.execute(
            "INSERT INTO pools (id, organization_id, name, num_replicas, revision, wanted_revision) "
            "VALUES ('pool', $1, 'tiny', 1, 1, 1)",
            organization,
        )
        await conn.execute("INSERT INTO pool_revisions (pool_id, revision, model) VALUES ('pool', 1, 'tiny')")
        replica = await create_replica(conn, "pool", 1, host_id=HOST)
        assert await begin_start(conn, replica.id, 1, address="ipc:///x") == 1
        await note_software(conn, replica.id, 1, 1, "0.0.9", "3.0")
        assert await move_replica(conn, replica.id, 1, 1, "ready")
    return replica.id


async def test_everything_that_runs_is_seen_with_its_version(database: Database) -> None:
    replica_id = await install_parts(database)
    async with database.acquire() as conn:
        installation = await read_installation(conn)
    assert (installation.changes, installation.refusal) == ([], "")
    assert installation.parts == [
        Part("gateway", "machine:/data/journal/0", OURS),
        Part("agent", "machine", OURS),
        Part("engine", replica_id, Software("0.0.9", "3.0")),
    ]
    assert [(each.id, each.open_requests, each.folder) for each in installation.journals] == [
        ("lost", 3, "other:/data/journal/0")
    ]
    assert installation.pools == [Pool("tiny", num_wanted=1, num_ready=1, num_draining=0, is_changing=False)]
    assert (installation.drained_hosts, installation.untended_hosts) == ([], [])


async def test_moving_pools_and_hosts_are_seen(database: Database) -> None:
    await install_parts(database)
    async with database.transaction() as conn:
        await conn.execute("INSERT INTO pool_revisions (pool_id, revision, model) VALUES ('pool', 2, 'tiny')")
        await conn.execute("UPDATE pools SET wanted_revision = 2, num_replicas = 2")
        await conn.execute("UPDATE replicas SET state = 'draining'")
        await conn.execute("UPDATE hosts SET is_drained = true, lease_until = '-infinity'")
    async with database.acquire() as conn:
        found = await read_installation(conn)
    assert found.pools == [Pool("tiny", num_wanted=2, num_ready=0, num_draining=1, is_changing=True)]
    assert (found.drained_hosts, found.untended_hosts) == (["machine"], ["machine"])


async def test_the_schema_before_the_newest_columns_is_read_as_well(database: Database) -> None:
    """The new version can thus list the parts before `migrate` has run."""
    replica_id = await install_parts(database)
    async with database.acquire() as conn:
        for table in ("hosts", "journals", "replicas"):
            await conn.execute(f"ALTER TABLE {table} DROP COLUMN protocol, DROP COLUMN IF EXISTS version CASCADE")
        await conn.execute("DELETE FROM schema_migrations WHERE name BETWEEN '0068_versions_of_parts' AND '9999'")
        installation = await read_installation(conn)
    assert [change.name for change in installation.changes][:1] == ["0068_versions_of_parts"]
    assert [part.software for part in installation.parts] == [Software(None, None)] * 3
    assert installation.parts[2].name == replica_id


async def test_an_empty_database_lacks_everything(empty_dsn: str) -> None:
    async with await Database.connect(empty_dsn) as database:
        async with database.acquire() as conn:
            installation = await read_installation(conn)
        applied = await migrate(empty_dsn)
    assert [change.name for change in installation.changes] == [*applied, "functions"]
    assert installation.parts == []


async def test_a_database_of_a_later_version_is_refused_in_words(database: Database) -> None:
    async with database.acquire() as conn:
        await conn.execute("INSERT INTO schema_migrations (name, sha256) VALUES ('9999_later', 'x')")
        installation = await read_installation(conn)
    assert "9999_later" in installation.refusal and installation.changes == []
