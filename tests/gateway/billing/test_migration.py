"""A database of the version before becomes one of this version with every row where it belongs, while gateways run."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg

from gateway.db.ledger.usage import list_usage_events
from gateway.db.migrate import MIGRATIONS, migrate
from gateway.db.pool import Database
from tests.gateway.billing.books import Books
from tests.gateway.billing.test_ledger import OLD_STATEMENT

OLD_LIMIT = """
    INSERT INTO limits (id, organization_id, project_id, unit, period, max, hard, alert_percents)
    VALUES ('lim', 'org', 'proj', 'tokens', 'day', 1000, true, '{}')
"""


async def test_rows_move_and_gateways_of_before_go_on_writing(empty_dsn: str, tmp_path: Path) -> None:
    old = tmp_path / "migrations"
    old.mkdir()
    for path in sorted(MIGRATIONS.glob("000[123]_*.sql")):
        shutil.copy(path, old)
    await migrate(empty_dsn, old)
    conn = await asyncpg.connect(empty_dsn)
    async with await Database.connect(empty_dsn) as database:
        books = Books(database, "org", "proj")
        await conn.execute("INSERT INTO organizations (id, name) VALUES ('org', 'default')")
        await conn.execute("INSERT INTO projects (id, organization_id, name) VALUES ('proj', 'org', 'acme')")
        await conn.execute(OLD_LIMIT)
        # A statement that was prepared before and goes on being used.
        write = await conn.prepare(OLD_STATEMENT)

        async def write_as_before(*request_ids: str) -> None:
            events = [books.event(request_id, adapter_id="adpt_x") for request_id in request_ids]
            fields = [field for field in events[0].__struct_fields__ if field != "service_tier"]
            await write.fetch(*[[getattr(event, field) for event in events] for field in fields])

        await write_as_before("req_1", "req_2")

        async def keep_writing() -> None:
            for number in range(30):
                await write_as_before(f"req_during_{number}")

        writing = asyncio.create_task(keep_writing())
        await migrate(empty_dsn)
        await writing
        await write_as_before("req_1", "req_3")
        async with database.acquire() as other:
            moved = await list_usage_events(other, "proj", 100)
        assert len(moved) == 33
        assert await books.value("SELECT count(*) FROM usage_events") == 0
        assert await books.fetch("SELECT DISTINCT adapter_class, cost_nanos, revision FROM ledger") == [
            ("default", 0, 0)
        ]
        assert await books.value("SELECT settled FROM limit_accounts WHERE limit_id = 'lim'") == 33 * 15
        await books.roll_up()
        assert await books.value("SELECT sum(num_requests)::bigint FROM usage_rollups WHERE width = 'day'") == 33
    await conn.close()
