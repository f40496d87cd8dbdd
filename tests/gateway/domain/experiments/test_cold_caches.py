"""An arm of less weight finds its prompts cached less often, which makes it slower without any effect, so that
cache-dependent times are compared between arms of equal weight alone."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import numpy as np
import pytest

from gateway.domain.experiments import quantiles
from gateway.domain.experiments.definition import Guardrail
from gateway.domain.experiments.results import SumsRow, Tally, TimesRow, UnitsRow, results_of
from gateway.domain.experiments.sums import Sums
from tests.gateway.domain.experiments.looks import arm_sums_at_looks, first_beyond, t_log_e, t_values
from tests.gateway.domain.experiments.test_definition import GOOD

EVERY = 20
CACHED_PROMPTS = 40
"""The number of system prompts that fit an engine's small cache, from both arms and other tenants."""
STRANGERS = 12
"""The number of requests of other tenants, each with its own prompt, between two of the experiment."""
HIT_MS, MISS_MS, NOISE_MS = 30.0, 90.0, 20.0
MOST_FALSE = 0.08
"""The largest share of experiments with equal arms that may raise a false alarm.

The share is more than 5 %, since a hit of one unit makes a hit of the next likelier, and dependent times vary more than
independent ones. 6.5 % were seen in 1,000 runs.
"""


def times_to_first_token(rng: np.random.Generator, treated: np.ndarray) -> np.ndarray:
    """Return the milliseconds to first token of one request per unit, with an LRU cache of prompts."""
    cache: OrderedDict[int, None] = OrderedDict()
    stranger, times = 2, np.empty(len(treated))
    for at, arm in enumerate(treated):
        for _ in range(rng.poisson(STRANGERS)):
            cache[stranger] = None
            stranger += 1
        while len(cache) > CACHED_PROMPTS:
            cache.popitem(last=False)
        times[at] = (HIT_MS if int(arm) in cache else MISS_MS) + NOISE_MS * rng.standard_exponential()
        cache[int(arm)] = None
        cache.move_to_end(int(arm))
    return times


@pytest.mark.parametrize(("share", "is_fair"), [(0.5, True), (0.1, False)], ids=["equal", "90:10"])
def test_a_small_arm_of_the_same_adapter_looks_slower_and_an_equal_one_does_not(
    share: float, is_fair: bool, full: bool
) -> None:
    num_runs, num_units = (1_000, 4_000) if full else (100, 1_000)
    rng = np.random.default_rng(25)
    found = 0
    for _ in range(num_runs):
        treated = rng.random(num_units) < share
        times = times_to_first_token(rng, treated)
        control, treatment = arm_sums_at_looks(times[None], treated[None], EVERY)
        log_e = t_log_e(t_values(control, treatment), control.n + treatment.n, 500)
        found += bool(first_beyond(log_e, 0.05)[0] < log_e.shape[1])
    print(f"A/A of times to the first token, {share:.0%} treated: {found / num_runs:.1%} false")
    assert found <= MOST_FALSE * num_runs if is_fair else found >= 0.5 * num_runs


SLOW = (Sums(500, 45_000, 4_300_000, d=500, dd=500, yd=45_000), Sums(500, 45_400, 4_340_000, d=500, dd=500, yd=45_400))
COLD = Sums(100, 19_000, 3_700_000, d=100, dd=100, yd=19_000)
LEVEL = {1: (0.9, 0.1), 2: (0.5, 0.5)}


def counts_by_bucket(milliseconds: float, count: int) -> tuple[int, ...]:
    counts = [0] * (len(quantiles.EDGES_MS) + 1)
    counts[quantiles.bucket_of(milliseconds)] = count
    return tuple(counts)


@pytest.mark.parametrize("metric", ["ttft_ms", "engine_ms"])
def test_times_that_a_cache_changes_are_compared_under_equal_weights_alone(metric: str) -> None:
    listed = Guardrail(metric, "pause"), Guardrail(f"{metric}.p50", "pause"), Guardrail("queue_ms", "pause")
    experiment = msgspec.structs.replace(GOOD, metrics=msgspec.structs.replace(GOOD.metrics, guardrails=listed))
    rows = [(1, 0, SLOW[0], 90), (1, 1, COLD, 190), (2, 0, SLOW[0], 90), (2, 1, SLOW[1], 90)]
    tally = Tally(
        LEVEL,
        [UnitsRow(1, epoch, arm, sums.n, sums.n) for epoch, arm, sums, _ in rows],
        [SumsRow(1, epoch, arm, name, sums) for epoch, arm, sums, _ in rows for name in (metric, "queue_ms")],
        [TimesRow(1, epoch, arm, metric, counts_by_bucket(ms, 2_000)) for epoch, arm, _, ms in rows],
    )
    shown = results_of(experiment, tally)
    assert [each.verdict for each in shown.guardrails] == ["unclear", "unclear", "harmed"]
    (compared,) = (each for each in shown.comparisons if each.metric == metric)
    assert (compared.control.n, compared.treatment.n, compared.answered) == (500, 500, (1, 1))
    ramp = msgspec.structs.replace(tally, shares={1: (0.9, 0.1), 2: (0.8, 0.2)})
    unequal = results_of(experiment, ramp)
    assert [each.verdict for each in unequal.guardrails] == ["unclear", "unclear", "harmed"]
    assert {each.metric for each in unequal.comparisons if each.role == "guardrail"} == {"queue_ms"}
