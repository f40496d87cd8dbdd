"""Effects by days since exposure: a fading effect is shown as fading, the tables equal a recount, decisions wait."""

from __future__ import annotations

import datetime
import random

import msgspec
import pytest

from gateway.db.pool import Database
from gateway.domain.experiments.definition import Analysis
from gateway.experiments.results import read_ages, read_results
from tests.gateway.experiments.books_rows import (
    DEFINITION,
    NOW,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    vote,
    withdraw,
)
from tests.gateway.experiments.test_books import check_recount

NUM_DAYS, NUM_UNITS = 4, 300
DAY = datetime.timedelta(days=1)
FIRST = NOW - 7 * DAY
WEEK = msgspec.structs.replace(
    DEFINITION, analysis=Analysis(outcome_window_seconds=NUM_DAYS * 86_400, min_days=7, tightest_at=200)
)


async def run_experiment(database: Database, effects: list[int]) -> RunningExperiment:
    """Write requests of units on each of four days, and count them; return the experiment.

    effects: by how many tokens the treatment's requests are shorter, by days since exposure.
    """
    rng = random.Random(7)
    async with database.acquire() as conn:
        made = await make_experiment(conn, WEEK)
        for age in range(NUM_DAYS):
            await send(
                conn,
                made,
                [
                    UnitRequest(
                        unit(n), n % 2, FIRST + age * DAY, tokens=60 + rng.randrange(9) - (n % 2) * effects[age]
                    )
                    for n in range(NUM_UNITS)
                    if age == 0 or n % 3  # some do nothing on later days
                ],
            )
    await keep_books(database)
    return made


@pytest.mark.parametrize(
    ("effects", "trend"), [([20, 10, 5, 0], "fading"), ([5, 5, 5, 5], "unclear"), ([0, 5, 15, 20], "growing")]
)
async def test_an_effect_that_fades_by_day_is_shown_as_fading(
    database: Database, effects: list[int], trend: str
) -> None:
    made = await run_experiment(database, effects)
    async with database.acquire() as conn:
        found = {each.metric: each for each in await read_ages(conn, made)}
    tokens = found["completion_tokens"]
    assert [age for age, _ in tokens.days] == list(range(NUM_DAYS))
    for age, compared in tokens.days:
        assert compared.effect.interval.low < -effects[age] < compared.effect.interval.high
    assert tokens.trend == trend
    await check_recount(database, made, NUM_UNITS)


async def test_units_that_did_nothing_on_a_day_count_as_nothing(database: Database) -> None:
    definition = msgspec.structs.replace(
        WEEK, metrics=msgspec.structs.replace(WEEK.metrics, secondary=("prompt_tokens", "completion_tokens"))
    )
    async with database.acquire() as conn:
        made = await make_experiment(conn, definition)
        await send(conn, made, [UnitRequest(unit(n), n % 2, FIRST) for n in range(20)])
        await send(conn, made, [UnitRequest(unit(n), n % 2, FIRST + DAY) for n in range(5)])
        await keep_books(database)
        found = {each.metric: dict(each.days) for each in await read_ages(conn, made)}
    asked = found["prompt_tokens"]
    assert [(asked[age].control.n, asked[age].control.mean) for age in (0, 1, 2)] == [(10, 7), (10, 2.1), (10, 0)]
    ratio = found["completion_tokens"]
    assert (ratio[1].control.n, ratio[1].control.mean) == (3, 5), "of a ratio, those that asked"
    assert ratio.keys() == {0, 1}


async def test_days_since_exposure_follow_votes_and_late_rows(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn, WEEK)
        ids = await send(conn, made, [UnitRequest(unit(n), n % 2, FIRST) for n in range(8)])
        votes = [await vote(conn, made, 5, request_id=each, at=FIRST + 2 * DAY) for each in ids]
        await keep_books(database)
        assert {age for each in await read_ages(conn, made, metric="paid") for age, _ in each.days} == {2}
        for feedback_id in votes:
            await withdraw(conn, made, feedback_id)
        await keep_books(database)
        assert await read_ages(conn, made, metric="paid") == []
        await send(
            conn, made, [UnitRequest(unit(n), n % 2, FIRST - DAY) for n in range(8)]
        )  # earlier ones, written later
        await keep_books(database)
        found = {each.metric: [age for age, _ in each.days] for each in await read_ages(conn, made)}
    assert found["completion_tokens"] == [0, 1]
    await check_recount(database, made, 8)


async def test_a_decision_waits_for_its_days_however_clear_the_effect(database: Database) -> None:
    made = await run_experiment(database, [20] * NUM_DAYS)
    async with database.acquire() as conn:
        for days, may_decide in ((6, False), (7, True)):
            await conn.execute(
                "UPDATE experiments SET started_at = now() - make_interval(days => $2) WHERE id = $1", made.id, days
            )
            assert (await read_results(conn, made)).may_decide is may_decide
