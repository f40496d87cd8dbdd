"""A judge's votes beside people's, through the tables: the judge's bias makes no effect, and no other metric has its
votes."""

from __future__ import annotations

import datetime
import random

import msgspec
import pytest

from gateway.db.experiments.past import load_past_votes
from gateway.db.pool import Database
from gateway.db.schema_files import read_migrations
from gateway.domain.experiments.definition import Metrics, Primary
from gateway.domain.experiments.feedback.judged import MILLION, JudgedComparison
from gateway.domain.experiments.statistics.judges import prediction_powered
from gateway.domain.experiments.sums import Unit, sums_of
from gateway.experiments.books import forget_unit
from gateway.experiments.results import read_results
from tests.gateway.experiments.books_rows import (
    DEFINITION,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    verified,
    vote,
    vote_once_each,
    withdraw,
)
from tests.gateway.experiments.test_books import LONG_AGO, SECOND, check_recount, sums

NUM_UNITS, NUM_LABELLED = 1_200, 120
JUDGED = msgspec.structs.replace(
    DEFINITION,
    metrics=Metrics((Primary("paid", "increase"),), secondary=("answer_rate", "thumbs_up")),
    analysis=msgspec.structs.replace(DEFINITION.analysis, tightest_at=NUM_UNITS),
)


async def judged(database: Database, made: RunningExperiment) -> JudgedComparison:
    """Return the comparison by the only metric that people and a judge voted on."""
    async with database.acquire() as conn:
        (found,) = (await read_results(conn, made)).judged
    return found


async def test_a_judge_that_is_kinder_to_an_arm_makes_no_effect_through_the_tables(database: Database) -> None:
    """People like half of either arm; the judge likes 20 points more of the second arm, and votes about every unit."""
    chance = random.Random(11)
    labels = [int(chance.random() < 0.5) for _ in range(NUM_UNITS)]
    scores = [1 if not label and n % 2 and chance.random() < 0.4 else label for n, label in enumerate(labels)]
    labelled = sorted(chance.sample(range(NUM_UNITS), NUM_LABELLED))
    async with database.acquire() as conn:
        made = await make_experiment(conn, JUDGED)
        ids = await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(NUM_UNITS)])
        in_millionths = [each * MILLION for each in scores]
        await vote_once_each(conn, made, ids, in_millionths, LONG_AGO, "judge")
        of_people = [labels[n] * MILLION for n in labelled]
        await vote_once_each(conn, made, [ids[n] for n in labelled], of_people, LONG_AGO, "human")
        await keep_books(database)
        results = await read_results(conn, made)
    (found,) = results.judged
    assert (found.metric, found.role, found.arm, found.alpha) == ("paid", "primary", 1, 0.05)
    for arm, mean in enumerate((found.found.control, found.found.treatment)):
        both = [Unit(labels[n], scores[n]) for n in labelled if n % 2 == arm]
        others = [Unit(score) for n, score in enumerate(scores) if n not in labelled and n % 2 == arm]
        own = prediction_powered(sums_of(both), sums_of(others))
        assert (mean.mean, mean.variance) == pytest.approx((own.mean * MILLION, own.variance * MILLION**2))
        assert (found.found.num_labelled[arm], found.found.num_judged[arm]) == (len(both), len(others))
    effect = found.found.effect
    assert found.found.by_judge > 0.15 * MILLION, "the judge has its bias"
    assert effect.interval.low < 0 < effect.interval.high
    assert not effect.interval.low < found.found.by_judge < effect.interval.high, "which labels take out"
    assert effect.se < 0.9 * found.found.by_people.se, "and the judge is of use"
    shown = {each.metric: each for each in results.comparisons}
    assert shown["paid"].effect.n == NUM_LABELLED, "by people alone"
    assert shown["answer_rate"].control.mean == pytest.approx(len([n for n in labelled if not n % 2]) / NUM_UNITS * 2)
    await check_recount(database, made, NUM_UNITS)


async def test_a_judges_votes_come_go_and_change_in_any_order(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn, JUDGED)
        ids = await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(16)])
        for n, each in enumerate(ids):
            by_judge = await vote(conn, made, n, request_id=each, at=LONG_AGO, source="judge")
            if n % 3 == 0:
                await keep_books(database)
            if n % 4 < 2:
                await vote(conn, made, 2 * n, request_id=each, at=LONG_AGO, source="human")
        await vote(conn, made, 99, request_id=ids[-1], at=LONG_AGO + SECOND, source="judge")
        await keep_books(database)
        await check_recount(database, made, 16)
        found = (await judged(database, made)).found
        assert (found.num_labelled, found.num_judged) == ((4, 4), (4, 4))
        assert await sums(database, made, "paid") == sums_of(Unit(2 * n) for n in (0, 4, 8, 12))
        await withdraw(conn, made, by_judge)
        await keep_books(database)
        assert (await judged(database, made)).found.num_judged == (4, 3)
    assert await forget_unit(database, made.project_id, unit(0)) == 1
    assert (await judged(database, made)).found.num_labelled == (3, 4)
    await check_recount(database, made, 15)


async def test_a_judges_votes_tell_nothing_of_how_people_vote_beforehand(database: Database) -> None:
    since = LONG_AGO - datetime.timedelta(days=1)
    async with database.transaction() as conn:
        made = await make_experiment(conn, JUDGED)
        ids = await send(conn, made, [UnitRequest(unit(n), at=LONG_AGO) for n in range(2)])
        await vote(conn, made, 5, request_id=ids[0], at=LONG_AGO, source="judge")
        assert [each async for each in load_past_votes(conn, made.project_id, "paid", since, by_unit=True)] == []
        await vote(conn, made, 7, request_id=ids[1], at=LONG_AGO, source="user")
        ((found,),) = [each async for each in load_past_votes(conn, made.project_id, "paid", since, by_unit=True)]
    assert found.total == 7


_AS_BEFORE = """
    UPDATE feedback SET source = 'judge';
    ALTER TABLE experiment_requests DROP CONSTRAINT experiment_requests_check;
    UPDATE experiment_requests SET gateway = NULL WHERE digest = '\\x00000000000000000000000000000000'
"""


async def test_votes_counted_before_judges_were_separated_are_recounted(database: Database) -> None:
    """An older version has counted a judge's vote like a person's; a request has only some of its segments."""
    (migration,) = [each for each in read_migrations() if each.name.startswith("0037")]
    async with database.acquire() as conn:
        made = await make_experiment(conn, JUDGED)
        ids = await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(4)])
        await vote_once_each(conn, made, ids[:2], [5, 6], LONG_AGO)
        await keep_books(database)
        assert await sums(database, made, "paid") == sums_of([Unit(5)])
        await conn.execute(_AS_BEFORE)
        await conn.execute(migration.sql)
        assert await conn.fetchval("SELECT count(*) FROM experiment_events") == 2
        unknown = await conn.fetch("SELECT request_id FROM experiment_requests WHERE num_nulls(stream, gateway) > 0")
        assert [row["request_id"] for row in unknown] == [ids[0]]
    await keep_books(database)
    assert await sums(database, made, "paid") == sums_of([])
    assert (await verified(database, made)).differences == ()
