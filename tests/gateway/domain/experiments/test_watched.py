"""Experiments without an effect raise no false alarm however often they are watched; effects are found soon.

`make long-experiments` runs 2,000 of each shape to 20,000 units and prints the figures; commits run 200 to 2,000.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.domain.experiments import effects, sizes
from gateway.domain.experiments.statistics import counts, many
from gateway.domain.experiments.statistics.judges import prediction_powered
from gateway.domain.experiments.sums import Sums, Unit, sums_of
from tests.gateway.domain.experiments.looks import (
    SHAPES,
    Arm,
    Counts,
    arm_sums_at_looks,
    first_beyond,
    normal_log_e,
    t_log_e,
    t_values,
)

EVERY = 20
CHUNK = 50


def sums_at(arm: Arm, run: int, look: int) -> Sums:
    n, *rest = (float(getattr(arm, name)[run, look]) for name in ("n", "y", "yy", "x", "xx", "xy"))
    return Sums(round(n), *rest)


def check_against_package(control: Arm, treatment: Arm, log_e: np.ndarray, tightest_at: int, adjusted: bool) -> None:
    """Assert that `gateway.domain.experiments` computes the results of these arrays from the same sums.

    adjusted: as for `t_values`.
    """
    for look in range(10, log_e.shape[1], max(1, log_e.shape[1] // 12)):
        means = effects.compare_arms([(sums_at(control, 0, look), sums_at(treatment, 0, look))], adjusted=adjusted)
        assert means is not None
        own = effects.effect_of(*means, alpha=0.05, tightest_at=tightest_at)
        assert own.log_e == pytest.approx(log_e[0, look], abs=1e-6) or (own.se == own.log_e == 0 > log_e[0, look])
        assert (own.log_e >= -math.log(0.05)) == (not own.interval.low <= 0 <= own.interval.high)


def print_figures(name: str, **figures: float) -> None:
    print(f"{name:44} " + "  ".join(f"{what} {value:.4g}" for what, value in figures.items()), flush=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_watching_makes_no_false_alarms(shape: str, full: bool) -> None:
    num_runs, num_units, tightest_at = (2_000, 20_000, 5_000) if full else (200, 2_000, 500)
    rng = np.random.default_rng(list(SHAPES).index(shape))
    found, naive = 0, 0
    for _ in range(num_runs // CHUNK):
        y = SHAPES[shape](rng, (CHUNK, num_units))
        control, treatment = arm_sums_at_looks(y, rng.random(y.shape) < 0.5, EVERY)
        t = t_values(control, treatment)
        log_e = t_log_e(t, control.n + treatment.n, tightest_at)
        check_against_package(control, treatment, log_e, tightest_at, False)
        found += int((first_beyond(log_e, 0.05) < t.shape[1]).sum())
        naive += int(((np.abs(t) > 1.959964) & (np.minimum(control.n, treatment.n) >= 100)).any(axis=1).sum())
    print_figures(f"A/A, {shape}", false=found / num_runs, naive=naive / num_runs)
    assert found <= 0.05 * num_runs
    assert naive >= (0.4 if full else 0.15) * num_runs


@pytest.mark.parametrize("shape", ["normal", "p .5"])
def test_the_first_units_make_no_false_alarms(shape: str, full: bool) -> None:
    """No alarm is raised from two units an arm on, where the asymptotic form would call at least a tenth of experiments
    significant."""
    num_runs = 2_000 if full else 400
    rng = np.random.default_rng(11)
    y = SHAPES[shape](rng, (num_runs, 1_000))
    control, treatment = arm_sums_at_looks(y, rng.random(y.shape) < 0.5, 1)
    t, n = t_values(control, treatment), control.n + treatment.n
    found = (first_beyond(t_log_e(t, n, 100), 0.05) < t.shape[1]).mean()
    asymptotic = (first_beyond(normal_log_e(t, n, 100), 0.05) < t.shape[1]).mean()
    print_figures(f"A/A from two units an arm, {shape}", false=found, asymptotic=asymptotic)
    assert found <= 0.06
    assert asymptotic >= 0.08


def test_samples_out_of_ratio_are_found_and_no_others(full: bool) -> None:
    num_runs, num_looks, every = (2_000, 1_000, 100) if full else (200, 200, 100)
    rng = np.random.default_rng(3)
    tables = [Counts(k, num_looks * every) for k in counts.SRM_CONCENTRATIONS]
    firsts = {}
    for share in (0.5, 0.52):
        chunks = []
        for _ in range(num_runs // CHUNK):
            a = rng.binomial(every, share, (CHUNK, num_looks)).cumsum(axis=1)
            b = np.arange(every, every * num_looks + 1, every) - a
            logs = np.array([each.log_e(a, b) for each in tables])
            log_e = logs.max(axis=0) + np.log(np.exp(logs - logs.max(axis=0)).mean(axis=0))
            own = counts.srm_log_e([counts.EpochCounts((int(a[0, -1]), int(b[0, -1])), (0.5, 0.5))])
            assert own == pytest.approx(log_e[0, -1], abs=1e-6)
            chunks.append(first_beyond(log_e, counts.SRM_ALPHA))
        firsts[share] = np.concatenate(chunks)
    false, median = (firsts[0.5] < num_looks).mean(), (np.median(firsts[0.52]) + 1) * every
    print_figures("SRM, watched", false=false, median_units_of_52_48=median)
    assert false <= 0.01
    assert median <= (8_000 if full else 9_500)


def test_effects_are_found_with_little_more_than_the_fixed_size(full: bool) -> None:
    num_runs, effect = (10_000 if full else 400), 0.125
    fixed = 2 * sizes.units_per_arm(1.0, 1.0, effect)
    num_units = math.ceil(1.65 * fixed / EVERY) * EVERY
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(num_runs // CHUNK):
        treated = rng.random((CHUNK, num_units)) < 0.5
        control, treatment = arm_sums_at_looks(rng.standard_normal(treated.shape) + effect * treated, treated, EVERY)
        log_e = t_log_e(t_values(control, treatment), control.n + treatment.n, round(fixed))
        check_against_package(control, treatment, log_e, round(fixed), False)
        found += int((first_beyond(log_e, 0.05) < log_e.shape[1]).sum())
    print_figures("found by 1.65 of the fixed size for 80 %", power=found / num_runs)
    assert found / num_runs >= (0.8 if full else 0.74)


def test_a_covariate_shortens_the_wait_and_makes_no_false_alarms(full: bool) -> None:
    num_runs, num_units = (1_000, 20_000) if full else (400, 8_000)
    rng = np.random.default_rng(6)
    waits: dict[bool, list[np.ndarray]] = {True: [], False: []}
    false = 0
    for _ in range(num_runs // CHUNK):
        x = rng.standard_normal((CHUNK, num_units))
        noise = rng.standard_normal(x.shape) * math.sqrt(1 - 0.49)
        treated = rng.random(x.shape) < 0.5
        for adjusted in (True, False):
            control, treatment = arm_sums_at_looks(0.7 * x + noise + 0.1 * treated, treated, EVERY, x)
            log_e = t_log_e(t_values(control, treatment, adjusted=adjusted), control.n + treatment.n, 5_000)
            check_against_package(control, treatment, log_e, 5_000, adjusted)
            waits[adjusted].append(first_beyond(log_e, 0.05))
        control, treatment = arm_sums_at_looks(0.7 * x + noise, treated, EVERY, x)
        null = t_log_e(t_values(control, treatment, adjusted=True), control.n + treatment.n, 5_000)
        false += int((first_beyond(null, 0.05) < null.shape[1]).sum())
    plain, cuped = (float(np.median(np.concatenate(waits[adjusted]))) * EVERY for adjusted in (False, True))
    print_figures("CUPED at correlation .7", plain_units=plain, units=cuped, part=cuped / plain, false=false / num_runs)
    assert cuped <= (0.6 if full else 0.65) * plain
    assert false <= 0.05 * num_runs


def test_errors_of_one_arm_are_found_and_no_others(full: bool) -> None:
    num_runs = 2_000 if full else 200
    rng = np.random.default_rng(8)
    table = Counts(counts.ERROR_CONCENTRATION, 3_000)

    def firsts(rates: tuple[float, float], num_units: int) -> np.ndarray:
        chunks = []
        for _ in range(num_runs // CHUNK):
            treated = rng.random((CHUNK, num_units)) < 0.5
            failed = rng.random(treated.shape) < np.where(treated, rates[1], rates[0])
            a, b = (failed & ~treated).cumsum(axis=1), (failed & treated).cumsum(axis=1)
            log_e = np.where(b > a, table.log_e(a, b), 0.0)
            own = counts.log_e((int(a[0, -1]), int(b[0, -1])), (0.5, 0.5), counts.ERROR_CONCENTRATION)
            assert own == pytest.approx(table.log_e(a, b)[0, -1], abs=1e-6)
            chunks.append(first_beyond(log_e, 0.01))
        return np.concatenate(chunks)

    harmed, healthy = firsts((0.01, 0.1), 2_000), firsts((0.01, 0.01), 20_000 if full else 2_000)
    in_time, false = (harmed < 600).mean(), (healthy < (20_000 if full else 2_000)).mean()
    print_figures("errors 1 -> 10 %", paused_within_600=in_time, median=np.median(harmed) + 1, false=false)
    assert in_time >= (0.9 if full else 0.86)
    assert false <= 0.01


def test_intervals_over_requests_are_wrong_and_those_over_units_are_right(full: bool) -> None:
    """1,000 users with 20 requests each, alike within a user: intervals over users are right, over requests they are
    not."""
    num_runs = 1_000 if full else 100
    rng = np.random.default_rng(9)
    by_user, by_request = 0, 0
    for _ in range(num_runs):
        liking, treated = rng.beta(0.5, 0.5, 1_000), rng.random(1_000) < 0.5
        requests = rng.poisson(20, 1_000)
        votes = rng.binomial(requests, liking)
        a, b = (
            Sums(
                int(m.sum()),
                int(votes[m].sum()),
                int((votes[m] ** 2).sum()),
                d=int(requests[m].sum()),
                dd=int((requests[m] ** 2).sum()),
                yd=int((votes[m] * requests[m]).sum()),
            )
            for m in (~treated, treated)
        )
        first, second = effects.ratio_of(a), effects.ratio_of(b)
        difference = second.mean - first.mean
        by_user += abs(difference) > 1.96 * math.sqrt(first.variance + second.variance)
        naive = sum(each.y / each.d * (1 - each.y / each.d) / each.d for each in (a, b))
        by_request += abs(difference) > 1.96 * math.sqrt(naive)
    print_figures("requests as units, one look", users=by_user / num_runs, requests=by_request / num_runs)
    assert by_user <= (0.065 if full else 0.1) * num_runs
    assert by_request >= 0.35 * num_runs


def test_ramps_make_no_false_alarms(full: bool) -> None:
    """All units do worse after the weights change: strata show no effect, pooled sums show one in nearly every run."""
    num_runs = 1_000 if full else 200
    rng = np.random.default_rng(10)
    stratified, pooled = 0, 0
    for _ in range(num_runs):
        epochs = []
        for sizes_of, rate in (((9_000, 1_000), 0.3), ((5_000, 5_000), 0.2)):
            hits = rng.binomial(sizes_of, rate)
            epochs.append(tuple(Sums(n, int(y), int(y)) for n, y in zip(sizes_of, hits, strict=True)))
        for data in (epochs, [(epochs[0][0] + epochs[1][0], epochs[0][1] + epochs[1][1])]):
            means = effects.compare_arms(data)
            assert means is not None
            significant = effects.effect_of(*means, alpha=0.05, tightest_at=5_000).p < 0.05
            stratified += significant and data is epochs
            pooled += significant and data is not epochs
    print_figures("ramps, one look", stratified=stratified / num_runs, pooled=pooled / num_runs)
    assert stratified <= 0.05 * num_runs
    assert pooled >= 0.95 * num_runs


def test_twenty_metrics_make_no_more_false_discoveries(full: bool) -> None:
    num_runs = 1_000 if full else 200
    rng = np.random.default_rng(12)
    false, naive = 0, 0
    for _ in range(num_runs):
        z = rng.standard_normal(20) * math.sqrt(0.5) + rng.standard_normal() * math.sqrt(0.5)
        false += bool(many.e_bh([float(each) for each in normal_log_e(z, np.full(20, 5_000.0), 5_000)], 0.05))
        naive += bool((np.abs(z) > 1.96).any())
    print_figures("20 metrics, one look", e_bh=false / num_runs, naive=naive / num_runs)
    assert false <= 0.05 * num_runs
    assert naive >= 0.3 * num_runs


def test_a_biased_judge_biases_nothing(full: bool) -> None:
    """5 % of answers have a human label; the judge is 20 points too kind. 95 % of intervals hold the truth."""
    num_runs = 2_000 if full else 300
    rng = np.random.default_rng(13)
    held = 0
    for _ in range(num_runs):
        truth = rng.random(2_000) < 0.6
        judge = np.clip(truth * 0.5 + 0.45 + rng.normal(0, 0.15, 2_000), 0, 1)
        human = rng.random(2_000) < 0.05
        labelled = sums_of(map(Unit, truth[human].astype(float).tolist(), judge[human].tolist()))
        own = prediction_powered(labelled, sums_of(map(Unit, judge[~human].tolist())))
        held += abs(own.mean - 0.6) <= 1.96 * math.sqrt(own.variance)
    print_figures("a judge 20 points off", coverage=held / num_runs)
    assert abs(held / num_runs - 0.95) <= (0.015 if full else 0.04)


def test_outcomes_count_once_their_window_has_closed(full: bool) -> None:
    """All units come on day one: if their outcomes are counted while they still grow, false alarms have no bound.

    The same units make no false alarms if each is counted when its window closes.
    """
    num_runs, num_looks = (2_000, 10_000) if full else (1_000, 10_000)
    rng = np.random.default_rng(14)
    growing, closed = 0, 0
    at = np.arange(1.0, num_looks + 1)
    for _ in range(num_runs // CHUNK):
        z = rng.standard_normal((CHUNK, num_looks)).cumsum(axis=1) / np.sqrt(at)
        growing += int((first_beyond(normal_log_e(z, np.full(num_looks, 5_000.0), 5_000), 0.05) < num_looks).sum())
        log_e = normal_log_e(z[:, 59:], 2 * at[59:], 5_000)
        closed += int((first_beyond(log_e, 0.05) < log_e.shape[1]).sum())
    print_figures("outcomes without, with windows", without=growing / num_runs, closed=closed / num_runs)
    assert closed <= 0.05 * num_runs
    assert growing >= 0.06 * num_runs
