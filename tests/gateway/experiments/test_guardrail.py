"""Harm is found in the tables at the very look at which the pure rule finds it, soon; without harm no alarm is raised.

`make long-experiments` runs 100 experiments with harm and 100 without it to 2,000 units; commits run 20 and 20 to 600.
"""

from __future__ import annotations

import os
import random

import msgspec

from gateway.db.pool import Database
from gateway.domain.experiments.guardrails import errors_verdict
from gateway.domain.experiments.statistics.counts import EpochCounts
from tests.gateway.experiments.books_rows import (
    DEFINITION,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
)

HEALTHY, HARMED = 0.01, 0.10
IN_TIME = 600
"""The number of units within which harm must be found in nine of ten experiments."""

_STATES = "SELECT id, state FROM experiments"


class Run(msgspec.Struct):
    """One experiment, with the numbers of units after which the tables and the pure rule paused it."""

    made: RunningExperiment
    rng: random.Random
    treated_rate: float
    errors: tuple[int, int] = (0, 0)
    paused_at: int | None = None
    should_pause_at: int | None = None

    def draw(self, first: int, num: int) -> list[UnitRequest]:
        """Return the first requests of some units, and record the rule's verdict after them."""
        sent = []
        for number in range(first, first + num):
            arm = self.rng.randrange(2)
            has_failed = self.rng.random() < (self.treated_rate if arm else HEALTHY)
            sent.append(UnitRequest(unit(number), arm, finish_reason="error" if has_failed else "stop"))
            self.errors = self.errors[0] + (has_failed and not arm), self.errors[1] + (has_failed and arm)
        verdict, _ = errors_verdict([EpochCounts(self.errors, (0.5, 0.5))])
        if verdict == "harmed" and self.should_pause_at is None:
            self.should_pause_at = first + num
        return sent


async def test_harm_is_found_within_600_units_and_nothing_else_is(database: Database, full: bool) -> None:
    num_each, num_units, every = (100, 2_000, 40) if full else (12, 600, 50)
    seed = int(os.environ.get("FIRST_SEED", "1"))
    definition = msgspec.structs.replace(DEFINITION, metrics=msgspec.structs.replace(DEFINITION.metrics, secondary=()))
    async with database.acquire() as conn:
        runs = [
            Run(await make_experiment(conn, definition), random.Random(f"{seed}.{number}.{rate}"), rate)
            for number in range(num_each)
            for rate in (HARMED, HEALTHY)
        ]
        for first in range(0, num_units, every):
            for run in runs:
                if run.paused_at is None:
                    await send(conn, run.made, run.draw(first, every))
            await keep_books(database)
            states = {row["id"]: row["state"] for row in await conn.fetch(_STATES)}
            for run in runs:
                if run.paused_at is None and states[run.made.id] == "paused":
                    run.paused_at = first + every
    assert [run.paused_at for run in runs] == [run.should_pause_at for run in runs]
    harmed = sorted(run.paused_at or num_units for run in runs if run.treated_rate == HARMED)
    in_time = sum(units <= IN_TIME for run in runs if run.treated_rate == HARMED and (units := run.paused_at))
    false = sum(run.paused_at is not None for run in runs if run.treated_rate == HEALTHY)
    print(f"paused within {IN_TIME}: {in_time}/{num_each}, median {harmed[num_each // 2]}, false {false}/{num_each}")
    assert in_time >= 0.9 * num_each
    assert false <= 0.01 * num_each
