"""Exports of experiments: a script of the standard library computes the published numbers again from sums alone."""

from __future__ import annotations

import datetime
import json
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.db.pool import Database
from gateway.domain.experiments.definition import Analysis, Experiment
from gateway.domain.experiments.quantiles import EDGES_MS
from gateway.domain.experiments.results import SumsRow, Tally, TimesRow, UnitsRow, results_of
from gateway.domain.experiments.segment_values import KINDS
from gateway.domain.experiments.sums import Unit, sums_of
from gateway.experiments.results import read_ages, read_look, read_segments
from gateway.exports.experiments.produce import make_export_request, open_experiment_export
from gateway.exports.experiments.recompute import read_export, recompute, recompute_ages, segments_of
from tests.gateway.experiments.books_rows import DEFINITION as ROWS_OF
from tests.gateway.experiments.books_rows import (
    NOW,
    WINDOW_S,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    vote,
)

DEFINITION: dict[str, Any] = {
    "name": "tone",
    "model": "bot",
    "unit": {"from": "user"},
    "arms": [{"name": name, "weight": 1, "target": {"model": "tiny"}} for name in ("control", "warm", "cold")],
    "metrics": {
        "primary": [{"metric": "thumbs_up", "goal": "increase"}],
        "guardrails": [{"metric": "error_rate"}, {"metric": "ttft_ms.p95", "margin": 0.1}, {"metric": "ttft_ms"}],
        "secondary": ["cost_nanos", "length_rate"],
    },
    "analysis": {"tightest_at": 500, "min_days": 0},
}
METRICS = {
    "thumbs_up": {
        "name": "thumbs_up",
        "quantile": None,
        "kind": "mean",
        "is_error": False,
        "better": None,
        "needs_equal_weights": False,
    },
    "error_rate": {
        "name": "error_rate",
        "quantile": None,
        "kind": "mean",
        "is_error": True,
        "better": "decrease",
        "needs_equal_weights": False,
    },
    "ttft_ms.p95": {
        "name": "ttft_ms",
        "quantile": 0.95,
        "kind": "ratio",
        "is_error": False,
        "better": "decrease",
        "needs_equal_weights": True,
    },
    "ttft_ms": {
        "name": "ttft_ms",
        "quantile": None,
        "kind": "ratio",
        "is_error": False,
        "better": "decrease",
        "needs_equal_weights": True,
    },
    "cost_nanos": {
        "name": "cost_nanos",
        "quantile": None,
        "kind": "mean",
        "is_error": False,
        "better": "decrease",
        "needs_equal_weights": False,
    },
    "length_rate": {
        "name": "length_rate",
        "quantile": None,
        "kind": "ratio",
        "is_error": False,
        "better": "decrease",
        "needs_equal_weights": False,
    },
}
SHARES = {1: (0.5, 0.25, 0.25), 2: (1 / 3, 1 / 3, 1 / 3)}


def drawn(chance: random.Random, per_arm: int) -> Tally:
    """Return sums of random units: two days, two epochs, three arms, a covariate for the means."""
    units, sums, times = [], [], []
    for day in (20_000, 20_001):
        for epoch in (1, 2):
            for arm in range(3):
                num = chance.randrange(per_arm)
                units.append(UnitsRow(day, epoch, arm, num, chance.randint(0, num)))
                for metric in ("thumbs_up", "error_rate", "ttft_ms", "cost_nanos", "length_rate"):
                    of_arm = [
                        Unit(chance.randrange(2 + arm), x=chance.randrange(5), d=1 + chance.randrange(3))
                        for _ in range(num)
                    ]
                    sums.append(SumsRow(day, epoch, arm, metric, sums_of(of_arm)))
                counts = [0] * (len(EDGES_MS) + 1)
                for _ in range(num):
                    counts[chance.randrange(300, 400)] += 1
                times.append(TimesRow(day, epoch, arm, "ttft_ms", tuple(counts)))
    return Tally(SHARES, units, sums, times, {"no_unit": 3}, 2)


def exported(tally: Tally) -> dict[str, Any]:
    """Return the parts of an export `analysis` that the script computes from."""
    return {
        "definition": msgspec.to_builtins(msgspec.convert(DEFINITION, Experiment)),
        "metrics": METRICS,
        "shares": {str(epoch): list(each) for epoch, each in tally.shares.items()},
        "units": [[row.day, row.epoch, row.arm, row.units, row.delivered] for row in tally.units],
        "sums": [[row.day, row.epoch, row.arm, row.metric, *msgspec.structs.astuple(row.sums)] for row in tally.sums],
        "times": [
            [row.day, row.epoch, row.arm, row.metric, bucket, num]
            for row in tally.times
            for bucket, num in enumerate(row.counts)
            if num
        ],
        "not_analysed": dict(tally.not_analysed),
    }


def assert_same(found: Any, wanted: Any, path: str = "") -> None:
    """Check that two trees are equal, numbers to 1e-9 of their size."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), path
        for name, each in wanted.items():
            assert_same(found[name], each, f"{path}.{name}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), path
        for at, (mine, its) in enumerate(zip(found, wanted, strict=True)):
            assert_same(mine, its, f"{path}[{at}]")
    elif isinstance(wanted, float) and not isinstance(found, bool):
        same_nan = math.isnan(wanted) and math.isnan(found)
        assert same_nan or math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9), path
    else:
        assert found == wanted, path


@pytest.mark.parametrize("per_arm", [1, 4, 40, 1_000])
@pytest.mark.parametrize("seed", range(5))
def test_the_script_finds_every_number_that_is_published(seed: int, per_arm: int) -> None:
    tally = drawn(random.Random(seed), per_arm)
    published = msgspec.to_builtins(results_of(msgspec.convert(DEFINITION, Experiment), tally, {"thumbs_up": "mean"}))
    del published["may_decide"]  # which depends on the day of asking
    assert_same(recompute(exported(tally)), published)


async def test_the_script_makes_of_an_export_what_the_kept_look_in_it_shows(database: Database) -> None:
    long_ago = NOW - datetime.timedelta(seconds=WINDOW_S, days=2)
    chance = random.Random(1)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        sent = [
            UnitRequest(unit(n), n % 2, long_ago, tokens=chance.randrange(20) + 40 * (n % 2), stream=n % 4 > 1)
            for n in range(80)
        ]
        for number, request_id in enumerate(await send(conn, made, sent)):
            await vote(conn, made, number % 2, request_id=request_id, at=long_ago, source="judge")
            if number % 8 < 3:
                await vote(conn, made, number % 3, request_id=request_id, at=long_ago)
        await keep_books(database)
        look = await read_look(conn, made)
        segments = [each for kind in KINDS for each in await read_segments(conn, made, kind)]
    request = make_export_request(made.project_id, made.id, "analysis", None)
    async with open_experiment_export(database, request) as export:
        assert export is not None
        whole = json.loads(b"".join([chunk async for chunk in export.chunks()]))
    assert len(whole["units"]) and len(whole["sums"]) and len(whole["looks"]) == 1
    published = msgspec.to_builtins(look.results)
    assert [arm["units"] for arm in published["arms"]] == [40, 40] and len(published["judged"]) == 1
    del published["may_decide"]  # which depends on the day of asking
    assert_same(recompute(whole), published)
    found = {(each["split"]["kind"], each["split"]["value"]): each for each in segments_of(whole)}
    assert len(segments) == len(found) == 6 and any(each.discoveries for each in segments)
    for segment in segments:
        assert_same(found[segment.split.kind, segment.split.value], msgspec.to_builtins(segment))
    kept = whole["looks"][0]["results"]
    del kept["may_decide"]
    # JSON has no infinity: the bounds of a look are null where nothing bounds them
    assert_same(msgspec.json.decode(msgspec.json.encode(recompute(whole))), kept)


async def test_the_script_finds_the_effects_by_days_since_exposure(database: Database) -> None:
    chance, day = random.Random(2), datetime.timedelta(days=1)
    week = msgspec.structs.replace(ROWS_OF, analysis=Analysis(outcome_window_seconds=3 * 86_400, tightest_at=60))
    async with database.acquire() as conn:
        made = await make_experiment(conn, week)
        for age in range(3):
            at = NOW - (6 - age) * day
            sent = [
                UnitRequest(unit(n), n % 2, at, tokens=20 + chance.randrange(3) - 5 * (n % 2) * (2 - age))
                for n in range(60)
                if age == 0 or n % 4
            ]
            ids = await send(conn, made, sent)
            await vote(conn, made, age + 1, request_id=ids[age], at=at)
        await keep_books(database)
        published = [msgspec.to_builtins(each) for each in await read_ages(conn, made)]
    async with open_experiment_export(
        database, make_export_request(made.project_id, made.id, "analysis", None)
    ) as export:
        assert export is not None
        whole = json.loads(b"".join([chunk async for chunk in export.chunks()]))
    assert {each["metric"]: each["trend"] for each in published}["completion_tokens"] == "fading"
    assert_same(recompute_ages(whole), published)


def test_the_script_says_in_a_line_that_a_file_is_no_export(tmp_path: Path) -> None:
    missing, rows, other = (str(tmp_path / name) for name in ("missing.json", "rows.csv", "tone.json"))
    Path(rows).write_text("unit_digest,arm\n")
    Path(other).write_text('{"name": "tone"}')
    for arguments, said in (
        ([], "usage: recompute.py ANALYSIS.json"),
        ([missing], f"{missing}: No such file or directory"),
        ([str(tmp_path)], "Is a directory"),
        ([rows], f"{rows}: not the export `analysis` of an experiment"),
        ([other], f"{other}: not the export `analysis` of an experiment"),
    ):
        with pytest.raises(SystemExit) as ended:
            read_export(arguments)
        assert said in str(ended.value.code)
