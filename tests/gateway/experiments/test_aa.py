"""Experiments without effects, of five shapes of outcome, through the real tables: sums equal the outcomes' in every
integer."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from gateway.db.experiments.sums.reading import load_sums
from gateway.db.pool import Database
from gateway.domain.experiments.sums import NO_UNITS, Unit, sums_of
from gateway.experiments.results import read_results
from tests.gateway.domain.experiments.looks import SHAPES
from tests.gateway.experiments.books_rows import UnitRequest, keep_books, make_experiment, send, unit, vote_once_each
from tests.gateway.experiments.test_books import LONG_AGO, check_recount

MICRO = 1_000_000


@pytest.mark.parametrize("shape", SHAPES)
async def test_sums_of_the_tables_equal_the_sums_of_the_outcomes(database: Database, shape: str, full: bool) -> None:
    num_experiments, num_units, num_looks = (20, 2_000, 10) if full else (1, 200, 4)
    num_proven = 0
    for seed in range(num_experiments):
        rng = np.random.default_rng(seed)
        outcomes = [round(value) for value in SHAPES[shape](rng, (1, num_units))[0] * MICRO]
        arms = [int(arm) for arm in rng.integers(0, 2, num_units)]
        proven = False
        async with database.acquire() as conn:
            made = await make_experiment(conn)
            for look in range(num_looks):
                part = range(look * num_units // num_looks, (look + 1) * num_units // num_looks)
                at = LONG_AGO + datetime.timedelta(seconds=look)
                ids = await send(conn, made, [UnitRequest(unit(n), arms[n], at, tokens=abs(outcomes[n])) for n in part])
                await vote_once_each(conn, made, ids, [outcomes[number] for number in part], at)
                await keep_books(database)
                results = await read_results(conn, made)
                proven |= any(each.is_better is not None for each in results.comparisons if each.role == "primary")
                pure = [[Unit(outcomes[n]) for n in range(part.stop) if arms[n] == arm] for arm in (0, 1)]
                tokens = [[Unit(abs(each.y), d=1) for each in each_arm] for each_arm in pure]
                rows = await load_sums(conn, made.id, ["paid", "completion_tokens"], by_day=False)
                found = {(row.metric, row.arm): row.sums for row in rows}
                for arm in (0, 1):
                    assert found.get(("paid", arm), NO_UNITS) == sums_of(pure[arm])
                    assert found.get(("completion_tokens", arm), NO_UNITS) == sums_of(tokens[arm])
                assert [arm.units for arm in results.arms] == [len(each) for each in pure]
        await check_recount(database, made, num_units)
        num_proven += proven
    assert num_proven <= max(1, num_experiments // 5), "an A/A experiment is rarely proven"
