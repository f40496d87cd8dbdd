"""`lorikeet reconcile` reports lost usage, and its exit code tells whether there was any."""

from __future__ import annotations

from gateway.db.ledger.journals import report_journal
from gateway.db.pool import Database
from tests.gateway.cli.conftest import Cli


async def test_requests_lost_with_a_gateway_are_listed_and_fail_the_command(lorikeet: Cli, database: Database) -> None:
    async with database.acquire() as conn:
        await report_journal(conn, "living", 7)
        assert (await lorikeet("reconcile"))[0] == 0
        await report_journal(conn, "gone", 2)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes' WHERE id = 'gone'")
    code, out, _ = await lorikeet("reconcile")
    assert (code, "lost: 2 requests" in out, "journal gone" in out) == (1, True, True)
    assert (await lorikeet("reconcile", "--write-off", "gone"))[0] != 0
    assert await lorikeet("reconcile", "--write-off", "gone", "--reason", "burned") == (0, "wrote off 2 requests\n", "")
    assert (await lorikeet("reconcile"))[0] == 0
