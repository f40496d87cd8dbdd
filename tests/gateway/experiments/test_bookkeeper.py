"""The bookkeeper opens enrolment with new weights, tells how far it is behind, and takes over from another one."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.db.changes import Change, ChangeFeed
from gateway.db.experiments.events import count_waiting
from gateway.db.experiments.live import exposed_digests
from gateway.db.experiments.units import UnitsTooLarge, rows_of_units
from gateway.db.pool import Database
from gateway.domain.experiments.allocation import bucket_counts, bucket_table, rebalanced_table
from gateway.domain.experiments.assignment import NUM_BUCKETS
from gateway.domain.experiments.exposure import Exposure
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.experiments.notes import Notes
from gateway.experiments.results import read_health
from gateway.observability.experiment_metrics import ExperimentMetrics
from tests.gateway.experiments.books_rows import (
    UnitRequest,
    keep_books,
    make_experiment,
    refuse,
    send,
    unit,
    vote,
)
from tests.gateway.experiments.test_books import LONG_AGO, check_recount
from tests.patience import PATIENCE_S, least

_CLOSE = """
    UPDATE experiments SET enrolling = false, next_weights = '{3,1}', closed_at = clock_timestamp() - $2::interval
    WHERE id = $1
"""
_ROW = "SELECT enrolling, next_weights, closed_at, exposed_at, tables, slots FROM experiments WHERE id = $1"


async def test_new_weights_come_once_enrolment_was_closed_for_long_enough(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=1))
        await keep_books(database)
        row = await conn.fetchrow(_ROW, made.id)
        assert row is not None and (row["enrolling"], len(row["tables"])) == (False, 1)
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=6))
        await keep_books(database)
        row = await conn.fetchrow(_ROW, made.id)
    assert row is not None
    assert (row["enrolling"], row["next_weights"], row["closed_at"]) == (True, None, None)
    assert row["tables"] == [bucket_table((1, 1)), rebalanced_table(bucket_table((1, 1)), (3, 1))]
    assert [row["tables"][1].count(arm) for arm in (0, 1)] == bucket_counts((3, 1))
    assert row["slots"] == bytes([2]) * NUM_BUCKETS
    assert row["exposed_at"] is not None


_SILENT_SINCE = "UPDATE experiment_gateways SET noted_until = now() - $1::interval"


async def test_new_weights_wait_for_what_a_gateway_has_noted(database: Database) -> None:
    notes = Notes(database, Counter("lost", "", registry=CollectorRegistry()))
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await notes.flush()
        notes.note_exposure(Exposure(made.id, "tone", 1, 1, "warm", 1, "split", unit(1)))
        before = datetime.datetime.now(datetime.UTC)
        await conn.execute(_SILENT_SINCE, datetime.timedelta(minutes=1))
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=6))
        await keep_books(database)
        assert not await conn.fetchval("SELECT enrolling FROM experiments WHERE id = $1", made.id)
        await notes.flush()
        noted_at = await conn.fetchval("SELECT noted_at FROM experiment_units WHERE experiment_id = $1", made.id)
        assert noted_at < before, "the time of the exposure, and not of its note"
        await keep_books(database)
        assert await conn.fetchval("SELECT enrolling FROM experiments WHERE id = $1", made.id)
        assert await exposed_digests(conn, made.id) == (unit(1)[:8], bytes([1]))


async def test_a_gateway_without_notes_says_so_and_one_that_is_gone_is_not_waited_for(database: Database) -> None:
    notes = Notes(database, Counter("lost", "", registry=CollectorRegistry()))
    async with database.acquire() as conn:
        made, other = await make_experiment(conn), await make_experiment(conn)
        await notes.flush()
        await conn.execute(_SILENT_SINCE, datetime.timedelta(minutes=1))
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=6))
        await conn.execute(_CLOSE, other.id, datetime.timedelta(minutes=11))
        await keep_books(database)
        enrolling = "SELECT enrolling FROM experiments WHERE id = $1"
        assert [await conn.fetchval(enrolling, each.id) for each in (made, other)] == [False, True]
        await notes.flush()
        await keep_books(database)
        assert await conn.fetchval(enrolling, made.id)


@pytest.mark.parametrize("by_ledger", [False, True])
async def test_a_unit_that_is_written_after_new_weights_is_told_to_all_gateways(
    database: Database, by_ledger: bool
) -> None:
    notes = Notes(database, Counter("lost", "", registry=CollectorRegistry()))
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=6))
        await keep_books(database)
        listed_at = await conn.fetchval("SELECT exposed_at FROM experiments WHERE id = $1", made.id)
        notes.note_exposure(Exposure(made.id, "tone", 2, 0, "control", 2, "split", unit(2)))
        await notes.flush()
        assert await conn.fetchval("SELECT exposed_at FROM experiments WHERE id = $1", made.id) == listed_at
        if by_ledger:
            await send(conn, made, [UnitRequest(unit(1), 1, epoch=1)])
            await keep_books(database)
        else:
            notes.note_exposure(Exposure(made.id, "tone", 1, 1, "warm", 1, "split", unit(1)))
            await notes.flush()
        assert await conn.fetchval("SELECT exposed_at FROM experiments WHERE id = $1", made.id) > listed_at
        assert await exposed_digests(conn, made.id) == (unit(1)[:8], bytes([1]))


_EARLIER = "UPDATE experiment_units SET noted_at = noted_at - interval '5 minutes'"


@pytest.mark.parametrize("by_ledger", [False, True])
async def test_a_gateway_that_had_not_heard_of_new_weights_takes_no_unit_away_from_them(
    database: Database, by_ledger: bool
) -> None:
    notes, cut_off = (Notes(database, Counter("lost", "", registry=CollectorRegistry())) for _ in range(2))
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await conn.execute(_CLOSE, made.id, datetime.timedelta(minutes=11))
        await keep_books(database)
        notes.note_exposure(Exposure(made.id, "tone", 2, 0, "control", 2, "split", unit(1)))
        await notes.flush()
        await conn.execute(_EARLIER)
        if by_ledger:
            await send(conn, made, [UnitRequest(unit(1), 1, datetime.datetime.now(datetime.UTC), epoch=1)])
            await keep_books(database)
        else:
            cut_off.note_exposure(Exposure(made.id, "tone", 1, 1, "warm", 1, "split", unit(1)))
            await cut_off.flush()
        row = await conn.fetchrow("SELECT epoch, arm FROM experiment_units WHERE experiment_id = $1", made.id)
        assert (row["epoch"], row["arm"]) == (2, 0)
        assert await exposed_digests(conn, made.id) == (b"", b"")


async def test_units_of_several_epochs_are_judged_by_their_own_shares(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(60)])
        await conn.execute(_CLOSE, made.id, datetime.timedelta(seconds=6))
        await keep_books(database)
        second = [UnitRequest(unit(n), int(n % 4 == 3), LONG_AGO, epoch=2) for n in range(100, 160)]
        await send(conn, made, second)
        await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO, epoch=1, tokens=9) for n in range(5)])
        await keep_books(database)
        health = await read_health(conn, made)
    assert [each.units for each in health.epochs] == [(30, 30), (45, 15)]
    assert [each.shares for each in health.epochs] == [(0.5, 0.5), (0.75, 0.25)]
    assert not health.is_srm
    assert [arm.expected_units for arm in health.arms] == [75, 45]
    await check_recount(database, made, 120)


async def test_health_names_busy_units_and_what_is_not_analysed(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        sent = [UnitRequest(unit(n), n % 2, LONG_AGO, is_delivered=n != 1) for n in range(200)]
        ids = await send(conn, made, [*sent, *(UnitRequest(unit(7), 1, LONG_AGO) for _ in range(29))])
        await vote(conn, made, 1, request_id=ids[0], at=LONG_AGO)
        await refuse(conn, made, UnitRequest(unit(8), 0, LONG_AGO))
        reasons = "INSERT INTO experiment_reasons (experiment_id, day, reason, num_requests) VALUES ($1, $2, $3, $4)"
        for days, num in ((0, 4), (1, 3)):
            await conn.execute(reasons, made.id, (LONG_AGO - datetime.timedelta(days=days)).date(), "no_unit", num)
        await keep_books(database)
        health = await read_health(conn, made)
    assert (health.num_units, health.num_requests) == (200, 229)
    assert [(each.digest, each.num_requests) for each in health.busy_units] == [(unit(7), 30)]
    assert health.not_analysed == {"no_unit": 7}
    assert [(arm.units, arm.delivered) for arm in health.arms] == [(100, 100), (100, 99)]
    assert health.answer_rate == 1 / 200
    assert (health.days, health.days_left, health.waiting.num) == (10, 0, 0)


LIMIT_S = 2.0


async def test_two_gateways_hear_of_harm_within_two_seconds_of_its_row(database: Database, dsn: str) -> None:
    async def seconds() -> float:
        async with database.acquire() as conn:
            made = await make_experiment(conn, project="acme")
            harmless = [UnitRequest(unit(n), n % 2, finish_reason="error" if n < 8 else "stop") for n in range(100)]
            await send(conn, made, harmless)
        heard = [asyncio.Event() for _ in range(2)]
        async with AsyncExitStack() as stack:
            for event in heard:
                gateway = await stack.enter_async_context(await Database.connect(dsn))
                feed, bookkeeper = ChangeFeed(gateway), ExperimentBookkeeper(gateway)

                def changed(change: Change | None, event: asyncio.Event = event) -> None:
                    if change is not None and (change.table, change.id) == ("experiments", made.id):
                        event.set()

                feed.subscribe(changed)
                await feed.start()
                stack.push_async_callback(feed.stop)
                bookkeeper.start()
                stack.push_async_callback(bookkeeper.stop)
            async with database.acquire() as conn, asyncio.timeout(PATIENCE_S):
                while (await count_waiting(conn)).num:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await send(conn, made, [UnitRequest(unit(n), 1, finish_reason="error") for n in range(100, 125)])
                began_s = asyncio.get_running_loop().time()
                await asyncio.gather(*(event.wait() for event in heard))
                took_s = asyncio.get_running_loop().time() - began_s
                assert await conn.fetchval("SELECT state FROM experiments WHERE id = $1", made.id) == "paused"
        return took_s

    assert await least(seconds, LIMIT_S) < LIMIT_S


_HUGE = """
    INSERT INTO experiment_events (
        experiment_id, kind, request_id, attempt, revision, finish_reason, prompt_tokens, completion_tokens, cost_nanos,
        queue_ms, prefill_ms, decode_ms, created_at)
    VALUES ($1, 'usage', $2, 0, 0, 'stop', $3, 1, 1, 0, 0, 0, $4)
"""


async def test_an_event_that_cannot_be_counted_is_left_out_and_holds_up_nobody(database: Database) -> None:
    registry = CollectorRegistry()
    bookkeeper = ExperimentBookkeeper(database, ExperimentMetrics(registry))
    async with database.acquire() as conn:
        made, other = await make_experiment(conn), await make_experiment(conn, project="globex")
        (request_id, _) = await send(conn, made, [UnitRequest(unit(n), at=LONG_AGO) for n in (1, 2)])
        await bookkeeper.work()
        for _ in range(2):  # the tokens of two such requests are more than a state holds
            await conn.execute(_HUGE, made.id, request_id, 2**63 - 1, LONG_AGO)
        await send(conn, other, [UnitRequest(unit(n), at=LONG_AGO) for n in range(30)])
        await send(conn, made, [UnitRequest(unit(3), at=LONG_AGO)])
        await bookkeeper.work()
        assert (await count_waiting(conn)).num == 0
    assert registry.get_sample_value("lorikeet_experiment_events_dropped_total") == 1
    await check_recount(database, other, 30)


_REFUSE = """
    CREATE FUNCTION refuse_unit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'string buffer exceeds maximum allowed length' USING ERRCODE = 'program_limit_exceeded';
    END
    $$;
    CREATE TRIGGER refuse_unit BEFORE INSERT ON experiment_units FOR EACH ROW
        WHEN (NEW.digest = decode(repeat('00', 15) || '01', 'hex')) EXECUTE FUNCTION refuse_unit();
"""


async def test_a_unit_that_is_too_large_for_the_database_holds_up_nobody(database: Database) -> None:
    registry = CollectorRegistry()
    async with database.acquire() as conn:
        await conn.execute(_REFUSE)
        made, other = await make_experiment(conn), await make_experiment(conn, project="globex")
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        await send(conn, other, [UnitRequest(unit(n), at=LONG_AGO) for n in range(2, 9)])
        await ExperimentBookkeeper(database, ExperimentMetrics(registry)).work()
        assert (await count_waiting(conn)).num == 0
    assert registry.get_sample_value("lorikeet_experiment_events_dropped_total") == 1
    await check_recount(database, other, 7)


async def test_units_with_more_requests_than_one_transaction_recounts_are_refused_at_once(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO) for _ in range(3)])
        ids = [(made.id, unit(1))]
        with pytest.raises(UnitsTooLarge, match="3 requests"):
            await rows_of_units(conn, ids, take_events=True, most=2)
        (rows,) = await rows_of_units(conn, ids, take_events=True, most=3)
    assert len(rows.requests) == 3


async def test_waiting_events_are_shown_and_counted_by_any_bookkeeper(database: Database) -> None:
    registry = CollectorRegistry()
    bookkeepers = [ExperimentBookkeeper(database, ExperimentMetrics(registry)), ExperimentBookkeeper(database)]
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(50)])
        before = await count_waiting(conn)
        assert before.num == 50 and before.lag_s > 0
        for bookkeeper in bookkeepers:
            bookkeeper.start()
        await bookkeepers[0].stop()
        async with asyncio.timeout(PATIENCE_S):
            while (await count_waiting(conn)).num:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await bookkeepers[1].stop()
    await bookkeepers[0].work()
    assert registry.get_sample_value("lorikeet_experiment_events_waiting") == 0
    assert registry.get_sample_value("lorikeet_experiment_lag_seconds") == 0
    await check_recount(database, made, 50)
