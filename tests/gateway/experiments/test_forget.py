"""A forgotten unit leaves no digest and nothing in sums; old units are forgotten by themselves."""

from __future__ import annotations

import asyncio
import datetime

import msgspec

from gateway.db.experiments.events import REQUEST_RETENTION
from gateway.db.pool import Database
from gateway.domain.experiments.sums import Unit, sums_of
from gateway.experiments.books import count_events, forget_unit
from gateway.exports.experiments.produce import make_export_request, open_experiment_export
from tests.gateway.experiments.books_rows import (
    NOW,
    WINDOW_S,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    verified,
    vote,
)
from tests.gateway.experiments.test_books import LONG_AGO, check_recount, sums
from tests.patience import PATIENCE_S

_TABLES_WITH_DIGESTS = """
    SELECT (SELECT count(*) FROM experiment_units WHERE digest = $1)
         + (SELECT count(*) FROM experiment_requests WHERE digest = $1)
         + (SELECT count(*) FROM feedback WHERE digest = $1)
         + (SELECT count(*) FROM feedback_counted WHERE digest = $1)
"""
_WAITERS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def test_a_forgotten_unit_leaves_no_digest_and_no_part_of_a_sum(database: Database) -> None:
    async with database.acquire() as conn:
        made, other = await make_experiment(conn), await make_experiment(conn)
        stranger = await make_experiment(conn, project="globex")
        for each in (made, other, stranger):
            ids = await send(conn, each, [UnitRequest(unit(n), at=LONG_AGO, tokens=n) for n in (1, 2)])
            await vote(conn, each, 5, request_id=ids[0], at=LONG_AGO)
            await vote(conn, each, 9, request_id=ids[1], at=LONG_AGO)
        await vote(conn, made, 1, digest=unit(1), metric="thumbs_up", at=LONG_AGO)
        await keep_books(database)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO, tokens=100)])  # waits when the unit is forgotten
        assert await forget_unit(database, made.project_id, unit(1)) == 2
        await keep_books(database)
        left = await conn.fetchval(_TABLES_WITH_DIGESTS, unit(1))
        assert left == 3, "the unit, the request and the counted vote of the other project"
        assert await conn.fetchval("SELECT count(*) FROM feedback WHERE project_id = $1", made.project_id) == 2
    for each in (made, other):
        assert await sums(database, each, "completion_tokens") == sums_of([Unit(2, d=1)])
        assert await sums(database, each, "paid") == sums_of([Unit(9)])
        await check_recount(database, each, 1)
    await check_recount(database, stranger, 2)
    assert await forget_unit(database, made.project_id, unit(1)) == 0


async def test_forgetting_waits_for_the_batch_that_is_counted(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO, tokens=4)])
    async with database.transaction() as conn:
        await count_events(conn)
        forgetting = asyncio.create_task(forget_unit(database, made.project_id, unit(1)))
        async with asyncio.timeout(PATIENCE_S), database.acquire() as other:
            while not await other.fetchval(_WAITERS):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not forgetting.done()
    assert await forgetting == 1
    assert await sums(database, made, "error_rate") == sums_of([])


async def test_requests_of_long_ago_go_and_their_units_stay(database: Database) -> None:
    ages_ago = NOW - datetime.timedelta(seconds=WINDOW_S, days=1) - REQUEST_RETENTION
    async with database.acquire() as conn:
        made = await make_experiment(conn, days_ago=200)
        ids = await send(
            conn, made, [UnitRequest(unit(1), at=ages_ago, tokens=3), UnitRequest(unit(2), at=LONG_AGO, tokens=8)]
        )
        await keep_books(database)
        await keep_books(database)  # each bookkeeper tidies once at its start
        rows = await conn.fetch("SELECT request_id FROM experiment_requests")
        assert [row["request_id"] for row in rows] == [ids[1]]
        corrected = UnitRequest(unit(1), at=NOW, tokens=3, attempt=1)  # a recount would find the old request gone
        await send(conn, made, [corrected])
        await keep_books(database)
    assert await sums(database, made, "completion_tokens") == sums_of([Unit(3, d=1), Unit(8, d=1)])
    verification = await verified(database, made)
    assert (verification.differences, verification.num_units, verification.num_recounted) == ((), 2, 1)


async def test_a_vote_about_a_request_of_long_ago_is_exported_as_it_is_counted(database: Database) -> None:
    ages_ago = NOW - datetime.timedelta(seconds=WINDOW_S, days=1) - REQUEST_RETENTION
    async with database.acquire() as conn:
        made = await make_experiment(conn, days_ago=200)
        (request_id,) = await send(conn, made, [UnitRequest(unit(1), at=ages_ago)])
        await vote(conn, made, 7_000_000, request_id=request_id, at=ages_ago)
        await keep_books(database)
        await keep_books(database)  # each bookkeeper tidies once at its start
        assert await conn.fetchval("SELECT count(*) FROM experiment_requests") == 0
    assert await sums(database, made, "paid") == sums_of([Unit(7_000_000)])
    request = make_export_request(made.project_id, made.id, "feedback", "jsonl")
    async with open_experiment_export(database, request) as export:
        assert export is not None
        rows = b"".join([chunk async for chunk in export.chunks()]).splitlines()
    (row,) = map(msgspec.json.decode, rows)
    assert (row["value"], row["unit_digest"], row["is_in_window"]) == (7.0, unit(1).hex(), True)
