"""The role that gateways use adds to the audit log, the ledger and the price book, and changes none of their rows."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from gateway.db.billing.prices import InForce, add_version, list_versions, withdraw_version
from gateway.db.migrate import MigrationRefused, migrate
from gateway.db.organization.audit import Author, record
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.db.roles import RUNTIME_ROLE, Dsns, runtime_role
from tests.installation.databases import Databases, execute, of_gateways

ADDED_TO = (
    "audit_log",
    "ledger",
    "price_versions",
    "prices",
    "price_discounts",
    "period_names",
    "period_stripe_customers",
    "credit_draws",
    "invoices",
)

_TRIGGERS = """
    SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE p.proname IN ('refuse_change', 'refuse_audit_change', 'keep_prices', 'guard_ledger') AND NOT c.relispartition
"""
_CHANGEABLE = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
        AND (has_table_privilege($1, c.oid, 'UPDATE') OR has_table_privilege($1, c.oid, 'DELETE')
             OR has_any_column_privilege($1, c.oid, 'UPDATE'))
"""


@pytest.fixture(scope="module")
def shared(databases: Databases) -> Iterator[str]:
    """Give the owner's DSN of a database whose rows no test here can change."""
    with databases.one("roles") as dsn:
        yield dsn


@pytest.mark.parametrize("table", ADDED_TO)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET {} = {}",
        "DELETE FROM {}",
        "TRUNCATE {}",
        "ALTER TABLE {} DISABLE TRIGGER ALL",
        "DROP TABLE {}",
        "BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
        "CREATE TRIGGER mine BEFORE INSERT ON {} EXECUTE FUNCTION refuse_change()",
    ],
)
async def test_the_database_refuses_gateways_every_change_of_append_only_tables(
    shared: str, table: str, statement: str
) -> None:
    column = {"audit_log": "sequence", "ledger": "attempt"}.get(table, "organization_id")
    if table == "credit_draws":
        column = "period"
    conn = await asyncpg.connect(of_gateways(shared))
    try:
        assert await conn.fetchval("SELECT current_user") == RUNTIME_ROLE
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement.format(table, column, column))
    finally:
        await conn.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SET session_replication_role = replica",
        "CREATE TABLE public.mine (n integer)",
        "CREATE FUNCTION public.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "COPY installation TO PROGRAM 'true'",
        "CREATE ROLE mine",
        "ALTER FUNCTION refuse_change() OWNER TO CURRENT_USER",
        "UPDATE schema_migrations SET sha256 = ''",
    ],
)
async def test_gateways_cannot_get_around_the_refusals(shared: str, statement: str) -> None:
    conn = await asyncpg.connect(of_gateways(shared))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement)
    finally:
        await conn.close()


async def test_every_table_with_a_trigger_against_changes_is_append_only_as_are_its_partitions(shared: str) -> None:
    conn = await asyncpg.connect(shared)
    try:
        assert {row["relname"] for row in await conn.fetch(_TRIGGERS)} == set(ADDED_TO)
        changeable = {row["relname"] for row in await conn.fetch(_CHANGEABLE, RUNTIME_ROLE)}
    finally:
        await conn.close()
    assert changeable.isdisjoint((*ADDED_TO, "schema_migrations"))
    assert not any(name.startswith("ledger_") for name in changeable)
    assert {"projects", "audit_heads", "limits", "rollup_queue"} <= changeable


async def test_a_right_that_was_given_by_hand_is_taken_back_by_the_next_migration(dsn: str) -> None:
    await execute(dsn, f"GRANT ALL ON ledger, audit_log TO {RUNTIME_ROLE}")
    await migrate(dsn, runtime=RUNTIME_ROLE)
    conn = await asyncpg.connect(of_gateways(dsn))
    try:
        for statement in ("DELETE FROM ledger", "UPDATE audit_log SET sequence = sequence"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.execute(statement)
    finally:
        await conn.close()


async def test_a_role_that_may_change_such_rows_is_refused_as_the_role_of_gateways(dsn: str) -> None:
    owner = await runtime_role(Dsns("postgresql://another", dsn))
    assert owner is not None and await runtime_role(Dsns(dsn, dsn)) is None
    with pytest.raises(MigrationRefused, match=f"role {owner} of DATABASE_URL is a superuser"):
        await migrate(dsn, runtime=owner)


async def test_gateways_make_partitions_write_audit_events_and_prices_and_withdraw_only_prices_to_come(
    dsn: str,
) -> None:
    async with await Database.connect(of_gateways(dsn), max_size=1) as database, database.acquire() as conn:
        await conn.execute("SELECT ensure_ledger_day('2001-02-03')")
        organization = await ensure_organization(conn, "default")
        author = Author(
            organization_id=organization.id, kind="system", id="test", email=None, address="", request_id=""
        )
        async with conn.transaction():
            await record(conn, author, "prices.set", "price_1", after={})
        prices = {"currency": "usd", "entries": [], "discounts": {}}
        async with conn.transaction():
            in_force = await add_version(conn, organization.id, **prices, effective_at=None)
        now = await conn.fetchval("SELECT date_trunc('second', clock_timestamp() + interval '1 day')")
        async with conn.transaction():
            to_come = await add_version(conn, organization.id, **prices, effective_at=now)
        async with conn.transaction():
            assert await withdraw_version(conn, organization.id, to_come.id) is not None
        with pytest.raises(InForce):
            async with conn.transaction():
                await withdraw_version(conn, organization.id, in_force.id)
        with pytest.raises(asyncpg.RaiseError, match="are never changed"):
            await conn.execute("SELECT withdraw_prices($1, 1)", organization.id)
        assert [stored.id for stored in await list_versions(conn, organization.id)] == [in_force.id]
    conn = await asyncpg.connect(dsn)
    try:
        owners = "SELECT count(DISTINCT relowner) FROM pg_class WHERE relname IN ('ledger', 'ledger_20010203')"
        assert await conn.fetchval(owners) == 1
    finally:
        await conn.close()
