"""Segments are counted like everything else: bounded, in any order, through corrections, and equal to a recount."""

from __future__ import annotations

import datetime
import random

import asyncpg
import pytest

from gateway.db.experiments.segments import load_segment_units, load_segments
from gateway.db.pool import Database
from gateway.domain.experiments.segment_values import MAX_VALUES, OTHER
from gateway.domain.experiments.sums import Unit, sums_of
from gateway.experiments.books import forget_unit
from gateway.experiments.results import read_health, read_results, read_segments
from tests.gateway.experiments.books_rows import (
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    refuse,
    send,
    unit,
    vote,
)
from tests.gateway.experiments.test_books import LONG_AGO, SECOND, check_recount


async def units_of(database: Database, made: RunningExperiment, kind: str) -> dict[tuple[str, int], int]:
    """Return the units of a kind's segments by value and arm."""
    async with database.acquire() as conn:
        found = await load_segment_units(conn, made.id)
    return {(row.value, row.arm): row.units for row in found if row.kind == kind and row.units}


async def test_a_unit_is_in_the_segments_of_its_first_request(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO + SECOND, stream=True, tokens=3, api_key_id="key_b")])
        await keep_books(database)
        assert await units_of(database, made, "stream") == {("true", 0): 1}
        await send(conn, made, [UnitRequest(unit(1), 1, LONG_AGO, tokens=4, api_key_id="key_a")])  # known later
        await refuse(conn, made, UnitRequest(unit(2), 1, LONG_AGO, stream=True))
        await keep_books(database)
        total = await load_segments(conn, made.id)
    assert await units_of(database, made, "stream") == {("false", 1): 1, ("true", 1): 1}
    assert await units_of(database, made, "api_key") == {("key_a", 1): 1, ("key", 1): 1}
    tokens = {place[2]: each for (place, name), each in total.sums.items() if name == "completion_tokens" and each.n}
    expected = sums_of([Unit(7, d=2)])
    assert tokens == {"key_a": expected, "chat.completions": expected, "false": expected, "default": expected} | {
        "gw": expected
    }
    await check_recount(database, made, 2)


@pytest.mark.parametrize("seed", range(3))
async def test_segments_are_bounded_and_equal_a_recount_in_every_integer(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        for _ in range(6):
            sent = [
                UnitRequest(
                    unit(rng.randrange(150)),
                    at=LONG_AGO + datetime.timedelta(seconds=rng.randrange(10_000)),
                    tokens=rng.randrange(30),
                    stream=rng.random() < 0.5,
                    api_key_id=f"key_{rng.randrange(3 * MAX_VALUES)}",
                    gateway=f"gw_{rng.randrange(2)}",
                    finish_reason=rng.choice(["stop", "error", "length"]),
                )
                for _ in range(40)
            ]
            ids = await send(conn, made, sent)
            await vote(conn, made, rng.randrange(9), request_id=rng.choice(ids), at=LONG_AGO)
            await keep_books(database)
        keys = await units_of(database, made, "api_key")
        values = {value for value, _ in keys}
        assert OTHER in values and MAX_VALUES / 2 < len(values) <= MAX_VALUES + 1
        num_units = await conn.fetchval("SELECT count(*) FROM experiment_units WHERE experiment_id = $1", made.id)
        await check_recount(database, made, num_units)
        gone = await conn.fetchval("SELECT digest FROM experiment_units WHERE experiment_id = $1", made.id)
        assert await forget_unit(database, made.project_id, gone) == 1
    await check_recount(database, made, num_units - 1)
    for kind in ("api_key", "endpoint", "stream", "service_tier", "gateway"):
        assert sum((await units_of(database, made, kind)).values()) == num_units - 1


_UNKNOWN = """
    UPDATE experiment_requests
    SET api_key_id = NULL, endpoint = NULL, stream = NULL, service_tier = NULL, gateway = NULL
"""


async def test_requests_from_before_segments_are_in_none(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        await conn.execute(_UNKNOWN)
        await keep_books(database)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO + SECOND)])
    await keep_books(database)
    assert await units_of(database, made, "stream") == {}
    await check_recount(database, made, 1)


@pytest.mark.parametrize("column", ["api_key_id", "endpoint", "stream", "service_tier", "gateway"])
async def test_no_request_can_have_some_of_its_segments_alone(database: Database, column: str) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        with pytest.raises(asyncpg.CheckViolationError):
            await conn.execute(f"UPDATE experiment_requests SET {column} = NULL")
    await keep_books(database)
    await check_recount(database, made, 1)


async def test_an_arm_that_loses_streams_is_named_in_health(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        whole = [UnitRequest(unit(n), n % 2, LONG_AGO, tokens=n) for n in range(300)]
        heavy = [
            UnitRequest(unit(1), 1, LONG_AGO, stream=True)
        ] * 200  # one unit of one arm, whose first request is no stream
        await send(conn, made, [*whole, *heavy])
        await keep_books(database)
        assert (await read_health(conn, made)).segments == ()
        streams = [UnitRequest(unit(1_000 + n), 0, LONG_AGO, stream=True) for n in range(50)]
        await send(conn, made, streams)
        await keep_books(database)
        found = await read_health(conn, made)
        assert [(each.kind, each.value, each.units) for each in found.segments] == [("stream", "true", (50, 0))]
        assert not found.is_srm, "among all units it does not show yet"
        by_stream = await read_segments(conn, made, "stream")
        assert [(each.split.value, each.split.units) for each in by_stream] == [
            ("false", (150, 150)),
            ("true", (50, 0)),
        ]
        (everybody,) = await read_segments(conn, made, "endpoint")
        whole_results = await read_results(conn, made)
        assert everybody.comparisons == whole_results.comparisons
        assert everybody.arms == whole_results.arms


async def test_an_effect_in_one_segment_is_a_discovery_there_alone(database: Database) -> None:
    rng = random.Random(4)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        sent = [
            UnitRequest(
                unit(n), n % 2, LONG_AGO, tokens=rng.randrange(20) + 15 * (n % 2) * (n % 4 > 1), stream=n % 4 > 1
            )
            for n in range(400)
        ]
        await send(conn, made, sent)
        await keep_books(database)
        found = await read_segments(conn, made, "stream")
    kept = {each.split.value: [each.comparisons[at].metric for at in each.discoveries] for each in found}
    assert kept == {"false": [], "true": ["completion_tokens"]}
