"""Units' outcomes before their first exposure are taken from the project's earlier experiments, exactly, in any
order."""

from __future__ import annotations

import datetime
import random

import msgspec

from gateway.db.experiments.sums.reading import load_sums
from gateway.db.pool import Database
from gateway.domain.experiments.definition import Analysis, Metrics, Primary, UnitSource
from gateway.domain.experiments.sums import Sums, Unit, sums_of
from gateway.experiments.books import forget_unit
from gateway.experiments.results import read_results
from tests.gateway.experiments.books_rows import (
    DEFINITION,
    NOW,
    WINDOW_S,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    vote,
)
from tests.gateway.experiments.test_books import check_recount

WINDOW = datetime.timedelta(seconds=WINDOW_S)
EARLIER, LATER = NOW - 6 * WINDOW, NOW - 3 * WINDOW
ASKED = msgspec.structs.replace(DEFINITION, metrics=Metrics((Primary("paid", "increase"),), (), ("prompt_tokens",)))


async def sums_in(database: Database, made: RunningExperiment, metric: str) -> Sums:
    async with database.acquire() as conn:
        rows = await load_sums(conn, made.id, [metric], by_day=False)
    return sum((row.sums for row in rows), start=Sums())


async def test_outcomes_of_an_earlier_experiment_are_the_covariate(database: Database) -> None:
    async with database.acquire() as conn:
        before, made = await make_experiment(conn, ASKED), await make_experiment(conn, ASKED)
        session = msgspec.structs.replace(ASKED, unit=UnitSource("prompt_cache_key"))
        other_source = await make_experiment(conn, session)
        elsewhere = await make_experiment(conn, ASKED, project="globex")
        for one in (other_source, elsewhere):
            await send(conn, one, [UnitRequest(unit(1), at=EARLIER) for _ in range(9)])
        await send(
            conn,
            before,
            [UnitRequest(unit(1), at=EARLIER), UnitRequest(unit(1), at=EARLIER), UnitRequest(unit(2), at=EARLIER)],
        )
        await send(conn, before, [UnitRequest(unit(3), at=LATER - WINDOW / 2)])  # the unit's window had not ended
        await send(conn, made, [UnitRequest(unit(n), at=LATER) for n in (1, 2, 3, 4)])
    await keep_books(database)
    assert await sums_in(database, made, "prompt_tokens") == sums_of([Unit(7, 14), Unit(7, 7), Unit(7), Unit(7)])
    assert (await sums_in(database, before, "prompt_tokens")).x == 0
    for one, num in ((before, 3), (made, 4)):
        await check_recount(database, one, num)


async def test_what_is_known_late_of_an_earlier_experiment_moves_the_covariate(database: Database) -> None:
    async with database.acquire() as conn:
        before, made = await make_experiment(conn, ASKED), await make_experiment(conn, ASKED)
        await send(conn, made, [UnitRequest(unit(1), at=LATER), UnitRequest(unit(2), at=LATER)])
        await keep_books(database)
        assert (await sums_in(database, made, "prompt_tokens")).x == 0
        (request_id, _) = await send(conn, before, [UnitRequest(unit(n), at=EARLIER) for n in (1, 2)])
        await keep_books(database)
        assert await sums_in(database, made, "prompt_tokens") == sums_of([Unit(7, 7), Unit(7, 7)])
        await vote(conn, before, 40, request_id=request_id, at=EARLIER)
        await vote(conn, made, 3, digest=unit(1), at=LATER)
        await keep_books(database)
        assert await sums_in(database, made, "paid") == sums_of([Unit(3, 40)])
        await send(conn, before, [UnitRequest(unit(1), at=EARLIER + WINDOW / 3)])
        await keep_books(database)
        assert await sums_in(database, made, "prompt_tokens") == sums_of([Unit(7, 14), Unit(7, 7)])
        await check_recount(database, made, 2)
        await forget_unit(database, made.project_id, unit(1))
    assert await sums_in(database, made, "prompt_tokens") == sums_of([Unit(7, 7)])
    for one in (before, made):
        await check_recount(database, one, 1)


async def test_outcomes_from_before_narrow_the_intervals_of_units_that_behave_alike(database: Database) -> None:
    """With a correlation of .9, adjusted means have intervals less than two thirds as wide, as with over twice the
    units."""
    rng, num = random.Random(5), 400
    usual = [rng.gauss(0, 90) for _ in range(num)]
    definition = msgspec.structs.replace(ASKED, analysis=Analysis(outcome_window_seconds=WINDOW_S, tightest_at=num))
    widths = []
    for project, knows in (("acme", True), ("globex", False)):
        async with database.acquire() as conn:
            if knows:
                before = await make_experiment(conn, definition, project=project)
                ids = await send(conn, before, [UnitRequest(unit(n), at=EARLIER) for n in range(num)])
                for n, request_id in enumerate(ids):
                    await vote(conn, before, round(1_000 + usual[n]), request_id=request_id, at=EARLIER)
            made = await make_experiment(conn, definition, project=project)
            ids = await send(conn, made, [UnitRequest(unit(n), n % 2, LATER) for n in range(num)])
            noise = random.Random(6)
            for n, request_id in enumerate(ids):
                value = 1_000 + usual[n] + noise.gauss(0, 40) + 25 * (n % 2)
                await vote(conn, made, round(value), request_id=request_id, at=LATER)
        await keep_books(database)
        await check_recount(database, made, num)
        async with database.acquire() as conn:
            (found,) = [each for each in (await read_results(conn, made)).comparisons if each.metric == "paid"]
        assert found.effect.interval.low < 25 < found.effect.interval.high
        widths.append(found.effect.interval.high - found.effect.interval.low)
        assert found.is_better is (True if knows else None)
    assert widths[0] < widths[1] * 2 / 3
