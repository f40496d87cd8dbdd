"""Units and sums follow events in any order, through kills, and equal a recount of all rows in every integer."""

from __future__ import annotations

import datetime
import random

import pytest

from gateway.db.experiments.sums.total import Total
from gateway.db.experiments.sums.whole import load_total
from gateway.db.pool import Database
from gateway.domain.experiments.feedback.votes import MAX_NUMBER, MILLION
from gateway.domain.experiments.sums import Sums, Unit, sums_of
from gateway.domain.experiments.units import DAY_US
from gateway.experiments.books import count_events
from tests.gateway.experiments.books_rows import (
    NOW,
    WINDOW_S,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    refuse,
    send,
    unit,
    verified,
    vote,
    vote_for_each,
    withdraw,
)

LONG_AGO = NOW - datetime.timedelta(seconds=WINDOW_S, days=2)
SECOND = datetime.timedelta(seconds=1)


async def total_of(database: Database, made: RunningExperiment) -> Total:
    async with database.acquire() as conn:
        return await load_total(conn, made.id)


async def sums(database: Database, made: RunningExperiment, metric: str, arm: int = 0) -> Sums:
    total = await total_of(database, made)
    found = [each for (_, key, name), each in total.sums.items() if name == metric and key[2] == arm]
    return sum(found, start=Sums())


async def check_recount(database: Database, made: RunningExperiment, num_units: int) -> None:
    """Check that a recount of all units equals the tables."""
    verification = await verified(database, made)
    assert verification.differences == ()
    assert (verification.num_units, verification.num_recounted) == (num_units, num_units)


async def test_a_units_requests_are_in_the_sums_once_its_window_has_ended(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(
            conn,
            made,
            [UnitRequest(unit(1), at=LONG_AGO, tokens=4), UnitRequest(unit(1), at=LONG_AGO + SECOND, tokens=6)],
        )
        await send(conn, made, [UnitRequest(unit(2), at=LONG_AGO, tokens=9), UnitRequest(unit(3), tokens=100)])
    await keep_books(database)
    assert await sums(database, made, "completion_tokens") == sums_of([Unit(10, d=2), Unit(9, d=1)])
    assert await sums(database, made, "queue_ms") == sums_of([Unit(3_000, d=2), Unit(1_500, d=1)])
    assert await sums(database, made, "error_rate") == sums_of([Unit(0)] * 3)
    days = {key[0]: numbers for (_, key), numbers in (await total_of(database, made)).units.items()}
    first = int(LONG_AGO.timestamp() * 1e6) // DAY_US
    assert days == {first: (2, 2, 3), int(NOW.timestamp() * 1e6) // DAY_US: (1, 1, 1)}
    await check_recount(database, made, 3)


async def test_a_request_that_an_engine_refused_counts_as_a_refusal_and_not_as_an_error(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        refused = UnitRequest(unit(1), at=LONG_AGO, finish_reason="refused", tokens=0)
        await send(conn, made, [refused, UnitRequest(unit(2), at=LONG_AGO)])
    await keep_books(database)
    assert await sums(database, made, "error_rate") == sums_of([Unit(0), Unit(0)])
    assert await sums(database, made, "refusal_rate") == sums_of([Unit(1), Unit(0)])
    await check_recount(database, made, 2)


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_events_gives_the_same_sums(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        late = LONG_AGO - datetime.timedelta(hours=5)

        async def requests() -> None:
            await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO, request_id="req_a", tokens=3)])

        async def earlier() -> None:  # in another epoch and arm: the unit's first exposure, whenever it is known
            await send(conn, made, [UnitRequest(unit(1), 1, late, 1, "req_b", tokens=11, is_delivered=False)])

        async def failed() -> None:
            await send(
                conn, made, [UnitRequest(unit(2), 1, LONG_AGO, request_id="req_c", finish_reason="error", tokens=1)]
            )

        async def corrected() -> None:
            await send(conn, made, [UnitRequest(unit(2), 1, LONG_AGO, request_id="req_c", tokens=8, ttft_ms=31.0)])

        async def prompts() -> None:
            await send(conn, made, [UnitRequest(unit(3), at=LONG_AGO, request_id="req_d.1", tokens=2)])

        async def first_prompt() -> None:
            await send(conn, made, [UnitRequest(unit(3), at=LONG_AGO, request_id="req_d", tokens=5)])

        async def voted() -> None:
            await vote(conn, made, 7, request_id="req_a", at=LONG_AGO + SECOND)

        async def of_the_unit() -> None:
            await vote(conn, made, 5, digest=unit(2), metric="thumbs_up", at=LONG_AGO + SECOND)

        async def refused() -> None:
            await refuse(conn, made, UnitRequest(unit(3), at=LONG_AGO + SECOND), num=4)

        steps = [requests, earlier, failed, corrected, prompts, first_prompt, voted, of_the_unit, refused]
        rng.shuffle(steps)
        for step in steps:
            await step()
            if rng.random() < 0.6:
                await keep_books(database)
    await keep_books(database)
    await check_recount(database, made, 3)
    assert await sums(database, made, "completion_tokens", 1) == sums_of([Unit(14, d=2), Unit(8, d=1)])
    assert await sums(database, made, "completion_tokens", 0) == sums_of([Unit(7, d=1)])
    assert await sums(database, made, "error_rate", 1) == sums_of([Unit(0), Unit(0)])
    assert await sums(database, made, "refusal_rate", 0) == sums_of([Unit(1)])
    assert await sums(database, made, "paid", 1) == sums_of([Unit(7)])
    assert await sums(database, made, "thumbs_up", 1) == sums_of([Unit(5, d=1)])


async def test_events_after_the_end_of_a_window_change_closed_sums(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        (request_id,) = await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        await keep_books(database)
        assert await sums(database, made, "answer_rate") == sums_of([Unit(0)])
        await vote(conn, made, 3, request_id=request_id, at=LONG_AGO + SECOND)
        await vote(conn, made, 100, request_id=request_id, metric="thumbs_up")  # cast after the window
    await keep_books(database)
    assert await sums(database, made, "answer_rate") == sums_of([Unit(1)])
    assert await sums(database, made, "paid") == sums_of([Unit(3)])
    assert await sums(database, made, "thumbs_up") == Sums()
    await check_recount(database, made, 1)


async def test_a_vote_that_is_replaced_or_withdrawn_leaves_nothing_of_itself(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        (request_id,) = await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        for value in (1, 0, 5):
            feedback_id = await vote(conn, made, value, request_id=request_id, at=LONG_AGO)
            await keep_books(database)
            assert await sums(database, made, "paid") == sums_of([Unit(value)])
        for _ in range(3):  # an event of nothing new adds nothing
            await vote(conn, made, 5, request_id=request_id, at=LONG_AGO)
        await keep_books(database)
        assert await sums(database, made, "paid") == sums_of([Unit(5)])
        await withdraw(conn, made, feedback_id)
        await keep_books(database)
        assert await sums(database, made, "paid") == Sums()
        assert await conn.fetchval("SELECT count(*) FROM feedback") == 0
    await check_recount(database, made, 1)


async def test_an_attempt_that_another_one_took_the_place_of_counts_for_nothing(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        sent = UnitRequest(unit(1), at=LONG_AGO, request_id="req_again", tokens=2, finish_reason="error")
        await send(conn, made, [sent])
        await keep_books(database)
        assert await sums(database, made, "error_rate") == sums_of([Unit(1)])
        lost = UnitRequest(unit(1), at=LONG_AGO, request_id="req_again", finish_reason="superseded", tokens=0)
        await send(conn, made, [lost])
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO, request_id="req_again", attempt=1, tokens=6)])
    await keep_books(database)
    assert await sums(database, made, "error_rate") == sums_of([Unit(0)])
    assert await sums(database, made, "completion_tokens") == sums_of([Unit(6, d=1)])
    await check_recount(database, made, 1)


async def test_events_of_a_killed_transaction_are_counted_later(database: Database) -> None:
    rng = random.Random(3)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        sent = [
            UnitRequest(unit(rng.randrange(40)), 0, LONG_AGO + rng.randrange(3_600) * SECOND, tokens=rng.randrange(50))
            for _ in range(300)
        ]
        await send(conn, made, sent)
    waiting = 300
    while waiting:
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as conn:
                await count_events(conn, 20)
                _ = 1 / 0
        async with database.transaction() as conn:
            await count_events(conn, 20)
        async with database.acquire() as conn:
            waiting = await conn.fetchval("SELECT count(*) FROM experiment_events")
    await keep_books(database)
    total = sum(each.tokens for each in sent)
    assert (await sums(database, made, "completion_tokens")).y == total
    await check_recount(database, made, len({each.unit for each in sent}))


async def test_one_gateway_at_a_time_counts(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1))])
    async with database.transaction() as first:
        assert (counted := await count_events(first)) is not None and counted.num == 1
        async with database.transaction() as second:
            assert await count_events(second) is None


async def test_a_unit_that_a_gateway_noted_gets_the_arm_of_its_first_request(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        note = "INSERT INTO experiment_units (experiment_id, digest, epoch, arm) VALUES ($1, $2, 1, 0)"
        await conn.execute(note, made.id, unit(1))
        await keep_books(database)
        assert (await total_of(database, made)).units == {}
        await send(conn, made, [UnitRequest(unit(1), 1)])
        await keep_books(database)
        row = await conn.fetchrow("SELECT arm, num_requests, is_closed FROM experiment_units")
    assert row is not None and tuple(row) == (1, 1, False)
    await check_recount(database, made, 1)


async def test_the_first_events_of_a_unit_are_all_counted_however_they_are_split(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await vote(conn, made, 3, digest=unit(1), at=LONG_AGO + SECOND)  # before anything is known of the unit
        await send(
            conn, made, [UnitRequest(unit(2), at=LONG_AGO, request_id="req_two.1", tokens=10)]
        )  # a prompt of many
        await keep_books(database)
        sent = [
            UnitRequest(unit(n), at=LONG_AGO, request_id=each)
            for n, each in ((1, ""), (2, "req_two"), (3, ""), (3, ""))
        ]
        ids = await send(conn, made, [*sent, UnitRequest(unit(4), at=LONG_AGO, finish_reason="error")])
        await vote(conn, made, 4, request_id=ids[2], at=LONG_AGO + SECOND)
        await refuse(conn, made, UnitRequest(unit(4), at=LONG_AGO + SECOND), 2)
        await keep_books(database)
    assert await sums(database, made, "paid") == sums_of([Unit(3), Unit(4)])
    assert await sums(database, made, "completion_tokens") == sums_of(
        [Unit(5, d=1), Unit(15, d=1), Unit(10, d=2), Unit(5, d=1)]
    )
    assert await sums(database, made, "refusal_rate") == sums_of([Unit(0), Unit(0), Unit(0), Unit(1)])
    await check_recount(database, made, 4)


@pytest.mark.parametrize("most", [1, 2, 1_000])
async def test_new_units_begin_as_a_recount_begins_them(database: Database, most: int) -> None:
    """Batches of events end between the requests of a unit, and between its requests and its votes."""
    rng = random.Random(most)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        for _ in range(3):
            ids = await send(conn, made, [UnitRequest(unit(rng.randrange(9)), at=LONG_AGO, tokens=n) for n in range(8)])
            await vote(conn, made, 2, request_id=rng.choice(ids), at=LONG_AGO)
            await vote(conn, made, 5, digest=unit(rng.randrange(9)), at=LONG_AGO)
            while True:
                async with database.transaction() as counting:
                    counted = await count_events(counting, most)
                if counted is None or not counted.num:
                    break
        num = await conn.fetchval("SELECT count(*) FROM experiment_units")
    await keep_books(database)
    await check_recount(database, made, num)


async def test_votes_of_any_number_and_size_are_counted_exactly(database: Database) -> None:
    largest, num = round(MAX_NUMBER) * MILLION, 10_000  # together beyond 64 bits
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        ids = await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO) for _ in range(num)])
        await keep_books(database)
        for at in range(0, num, 1_000):
            await vote_for_each(conn, made, ids[at : at + 1_000], largest, at=LONG_AGO)
            await keep_books(database)
        assert await sums(database, made, "paid") == sums_of([Unit(num * largest)])
        await vote(conn, made, 5, digest=unit(1), at=LONG_AGO)
    await keep_books(database)
    assert await sums(database, made, "paid") == sums_of([Unit(num * largest + 5)])
    await check_recount(database, made, 1)


async def test_sums_of_all_days_have_the_rows_of_one_day_and_equal_a_recount(database: Database) -> None:
    async with database.acquire() as conn:
        made = []
        for num_days in (1, 20):
            one = await make_experiment(conn, days_ago=40)
            days = (LONG_AGO - datetime.timedelta(days=n % num_days) for n in range(40))
            await send(conn, one, [UnitRequest(unit(n), n % 2, at, ttft_ms=20.0) for n, at in enumerate(days)])
            made.append(one)
        await keep_books(database)
        counts = [await conn.fetchrow(_NUM_TOTALS, one.id) for one in made]
        assert counts[0] == counts[1] and counts[0][0] > 0
        for one in made:
            await check_recount(database, one, 40)
        await conn.execute("UPDATE experiment_totals SET yy = yy + 1 WHERE metric = 'cost_nanos' AND arm = 1")
        await conn.execute("UPDATE experiment_time_totals SET num_units = num_units - 1 WHERE metric = 'ttft_ms'")
    assert len((await verified(database, made[1])).differences) == 3


_NUM_TOTALS = """
    SELECT (SELECT count(*) FROM experiment_totals WHERE experiment_id = $1),
           (SELECT count(*) FROM experiment_time_totals WHERE experiment_id = $1)
"""
