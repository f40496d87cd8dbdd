"""Results of an experiment are computed from its sums: which effects are shown, and when no decision is allowed."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import pytest

from gateway.domain.experiments import guardrails, quantiles
from gateway.domain.experiments.definition import Guardrail
from gateway.domain.experiments.effects import Interval, Kind
from gateway.domain.experiments.results import Results, SumsRow, Tally, TimesRow, UnitsRow, daily_results, results_of
from gateway.domain.experiments.statistics.counts import EpochCounts
from gateway.domain.experiments.sums import Sums
from tests.gateway.domain.experiments.test_definition import ARMS, GOOD, METRICS

OWN: dict[str, Kind] = {"thumbs_up": "mean"}
HALVES = {1: (0.5, 0.5)}


def successes(n: int, y: int) -> Sums:
    return Sums(n, y, y)


def tally(
    votes: tuple[Sums, Sums],
    *,
    units: tuple[int, int] = (5_000, 5_000),
    errors: tuple[int, int] = (50, 50),
    days: int = 8,
) -> Tally:
    return Tally(
        HALVES,
        [UnitsRow(1, 1, arm, each, each) for arm, each in enumerate(units)],
        [
            *(SumsRow(1, 1, arm, "thumbs_up", each) for arm, each in enumerate(votes)),
            *(SumsRow(1, 1, arm, "error_rate", successes(units[arm], each)) for arm, each in enumerate(errors)),
        ],
        days=days,
    )


def results_from(given: Tally) -> Results:
    return results_of(GOOD, given, OWN)


def test_a_better_arm_is_shown_with_its_interval() -> None:
    shown = results_from(tally((successes(2_000, 800), successes(2_000, 1_000))))
    votes = shown.comparisons[0]
    assert (votes.metric, votes.role, votes.arm, votes.is_better) == ("thumbs_up", "primary", 1, True)
    assert votes.effect.effect == pytest.approx(0.1)
    assert 0 < votes.effect.interval.low < 0.1 < votes.effect.interval.high
    assert votes.relative is not None and votes.relative.low < 0.25 < votes.relative.high
    assert votes.answered == (0.4, 0.4)
    assert shown.may_decide and not shown.is_srm
    assert [(arm.name, arm.units, arm.compliance) for arm in shown.arms] == [("control", 5_000, 1), ("warm", 5_000, 1)]


def test_nothing_is_decided_before_its_days_nor_with_a_wrong_sample_ratio() -> None:
    votes = successes(2_000, 800), successes(2_000, 1_000)
    assert not results_from(tally(votes, days=6)).may_decide
    lost = results_from(tally(votes, units=(5_000, 4_500)))
    assert lost.is_srm and not lost.may_decide


def test_results_without_events_are_empty() -> None:
    empty = results_from(Tally({}))
    assert (empty.comparisons, empty.srm_log_e, empty.is_srm, empty.may_decide) == ((), 0, False, False)
    assert [arm.compliance for arm in empty.arms] == [None, None]
    started = results_from(Tally(HALVES, [UnitsRow(1, 1, 0, 1, 1)], [SumsRow(1, 1, 0, "thumbs_up", Sums(1, 1, 1))]))
    assert started.comparisons == ()
    msgspec.json.encode(results_from(tally((successes(9, 1), successes(9, 2)))))


def test_a_treatment_that_is_not_delivered_is_seen() -> None:
    given = tally((successes(2_000, 800), successes(2_000, 800)))
    given = msgspec.structs.replace(given, units=[UnitsRow(1, 1, 0, 5_000, 5_000), UnitsRow(1, 1, 1, 5_000, 0)])
    assert [arm.compliance for arm in results_from(given).arms] == [1, 0]


def test_a_different_answer_rate_is_shown_beside_the_effect() -> None:
    """People like both arms alike, but those who dislike the treatment vote more often, so that it looks worse."""
    shown = results_from(tally((successes(500, 300), successes(620, 300))))
    assert shown.comparisons[0].effect.effect < -0.1
    assert shown.comparisons[0].answered == (0.1, 0.124)


def test_effects_and_sample_ratios_are_computed_within_epochs() -> None:
    rows = ((1, 9_000, 2_700, 1_000, 300), (2, 5_000, 1_000, 5_000, 1_000))
    given = Tally(
        {1: (0.9, 0.1), 2: (0.5, 0.5)},
        [UnitsRow(1, epoch, arm, (a, b)[arm], 0) for epoch, a, _, b, _ in rows for arm in (0, 1)],
        [
            SumsRow(1, epoch, arm, "thumbs_up", (successes(a, y), successes(b, z))[arm])
            for epoch, a, y, b, z in rows
            for arm in (0, 1)
        ],
    )
    shown = results_from(given)
    assert shown.comparisons[0].effect.effect == pytest.approx(0, abs=1e-12)
    assert not shown.is_srm
    assert results_from(msgspec.structs.replace(given, shares={1: (0.5, 0.5), 2: (0.5, 0.5)})).is_srm


def test_the_timeline_ends_with_today_and_rows_add_up_in_any_order() -> None:
    rng = random.Random(1)
    rows = [
        SumsRow(day, 1, arm, "thumbs_up", successes(200, rng.randrange(60, 100))) for day in range(8) for arm in (0, 1)
    ]
    units = [UnitsRow(day, 1, arm, 200, 200) for day in range(8) for arm in (0, 1)]
    given = Tally(HALVES, units, rows, days=8)
    days = daily_results(GOOD, given, OWN)
    assert [day for day, _ in days] == list(range(8))
    assert days[-1][1] == results_from(given)
    assert days[2][1] == results_from(msgspec.structs.replace(given, units=units[:6], sums=rows[:6]))
    widths = [each.comparisons[0].effect.interval for _, each in days]
    assert all(a.high - a.low > b.high - b.low for a, b in pairwise(widths))
    rng.shuffle(rows)
    assert results_from(given) == days[-1][1]


def test_quantiles_are_compared_over_epochs_of_equal_shares() -> None:
    def row(epoch: int, arm: int, milliseconds: float, count: int) -> TimesRow:
        tallied = [0] * (len(quantiles.EDGES_MS) + 1)
        tallied[quantiles.bucket_of(milliseconds)] = count
        return TimesRow(1, epoch, arm, "ttft_ms", tuple(tallied))

    times = [row(2, 0, 100, 2_000), row(2, 1, 150, 2_000), row(1, 0, 9_000, 90_000), row(1, 1, 9_000, 10_000)]
    given = Tally({1: (0.9, 0.1), 2: (0.5, 0.5)}, times=times)
    shown = results_from(given)
    (found,) = shown.quantiles
    assert (found.metric, found.role) == ("ttft_ms.p95", "guardrail")
    ended = results_from(msgspec.structs.replace(given, shares={**given.shares, 3: (1.0, 0.0)}))
    assert ended.quantiles == shown.quantiles
    assert found.control.high < 103 and 45 < found.difference.low <= 50 <= found.difference.high < 55
    assert [each.verdict for each in shown.guardrails if each.metric == "ttft_ms.p95"] == ["harmed"]


def test_harm_pauses_only_if_the_guardrail_is_set_to_pause() -> None:
    votes = successes(200, 100), successes(200, 100)
    shown = results_from(tally(votes, units=(500, 500), errors=(5, 50)))
    harm = [each for each in shown.guardrails if each.verdict == "harmed"]
    assert [(each.metric, each.arm) for each in harm] == [("error_rate", 1)]
    assert guardrails.has_to_pause(METRICS.guardrails, shown.guardrails) == harm
    assert guardrails.has_to_pause([Guardrail("error_rate", "alert")], shown.guardrails) == []
    better = results_from(tally(votes, units=(500, 500), errors=(50, 5)))
    assert guardrails.has_to_pause(METRICS.guardrails, better.guardrails) == []


def test_refusals_fire_their_own_guardrail_while_the_sample_ratio_holds() -> None:
    metrics = msgspec.structs.replace(METRICS, guardrails=(Guardrail("refusal_rate", "pause"),))
    given = tally((successes(400, 200), successes(400, 200)), units=(1_000, 1_000))
    refused = [SumsRow(1, 1, arm, "refusal_rate", successes(1_000, count)) for arm, count in ((0, 3), (1, 60))]
    given = msgspec.structs.replace(given, sums=[*given.sums, *refused])
    shown = results_of(msgspec.structs.replace(GOOD, metrics=metrics), given, OWN)
    assert not shown.is_srm
    assert [each.metric for each in guardrails.has_to_pause(metrics.guardrails, shown.guardrails)] == ["refusal_rate"]


@pytest.mark.parametrize(
    ("interval", "goal", "verdict"),
    [
        (Interval(0.11, 0.3), "decrease", "harmed"),
        (Interval(0.05, 0.3), "decrease", "unclear"),
        (Interval(-0.2, 0.05), "decrease", "safe"),
        (Interval(-0.3, -0.11), "increase", "harmed"),
        (Interval(-0.05, 0.3), "increase", "safe"),
        (Interval(-math.inf, math.inf), "increase", "unclear"),
        (None, "increase", "unclear"),
    ],
)
def test_a_guardrail_judges_an_interval_by_its_margin(
    interval: Interval | None, goal: guardrails.Goal, verdict: str
) -> None:
    assert guardrails.interval_verdict(interval, goal, 0.1) == verdict


def test_shares_of_two_of_three_arms_are_those_of_the_pair() -> None:
    epochs = {1: EpochCounts((8, 1, 1), (0.8, 0.1, 0.1)), 2: EpochCounts((5, 0, 5), (0.5, 0, 0.5))}
    assert guardrails.counts_of_pair(epochs, 0, 1) == [
        EpochCounts((8, 1), (pytest.approx(8 / 9), pytest.approx(1 / 9)))
    ]
    assert len(guardrails.counts_of_pair(epochs, 0, 2)) == 2


def test_secondary_metrics_are_filtered_together_and_primary_ones_share_their_level() -> None:
    rng = random.Random(4)
    names = ("cost_nanos", "prompt_tokens", "answer_rate")
    metrics = msgspec.structs.replace(METRICS, secondary=names, guardrails=())
    arms = (*ARMS, msgspec.structs.replace(ARMS[1], name="hot"))
    sums = [SumsRow(1, 1, arm, name, successes(1_000, rng.randrange(480, 520))) for name in names for arm in range(3)]
    sums += [SumsRow(1, 1, arm, "thumbs_up", successes(1_000, 500)) for arm in range(3)]
    sums += [SumsRow(1, 1, 2, "cost_nanos", successes(1_000, 900))]
    given = Tally({1: (1 / 3, 1 / 3, 1 / 3)}, sums=sums)
    shown = results_of(msgspec.structs.replace(GOOD, metrics=metrics, arms=arms), given, OWN)
    assert [(each.metric, each.arm) for each in (shown.comparisons[at] for at in shown.discoveries)] == [
        ("cost_nanos", 2)
    ]
    assert {each.alpha for each in shown.comparisons if each.role == "primary"} == {0.025}
    assert all(each.answered is None for each in shown.comparisons)
