"""Every formula gives its published values, to six digits."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from gateway.domain.experiments import effects, quantiles, sizes
from gateway.domain.experiments.effects import Mean
from gateway.domain.experiments.statistics import counts, many, sequences
from gateway.domain.experiments.statistics.counts import EpochCounts
from gateway.domain.experiments.statistics.judges import prediction_powered
from gateway.domain.experiments.sums import NO_UNITS, Sums, Unit, change, sums_of


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=5e-7)


def proportion(n: int, p: float) -> Mean:
    return Mean(n, p, p * (1 - p) / n)


@pytest.mark.parametrize(
    ("alpha", "u", "radius"),
    [(0.05, 8.211968, 3.035122), (0.01, 11.756371, 3.571606), (0.001, 16.688421, 4.205760)],
)
def test_the_tightest_point_of_intervals_has_its_published_value(alpha: float, u: float, radius: float) -> None:
    assert sequences.tightest_u(alpha) == near(u)
    assert sequences.normal_radius(sequences.tightest_u(alpha), alpha) == near(radius)


@pytest.mark.parametrize(
    ("n", "p_a", "p_b", "half"),
    [(2_500, 0.1, 0.12, 0.0268466829), (500, 0.1, 0.12, 0.0662006756), (10_000, 0.1, 0.11, 0.0135719415)],
)
def test_the_asymptotic_interval_has_its_published_width(n: int, p_a: float, p_b: float, half: float) -> None:
    se = math.sqrt(proportion(n, p_a).variance + proportion(n, p_b).variance)
    assert se * sequences.normal_radius(sequences.information(2 * n, 5_000, 0.05), 0.05) == near(half)


def test_the_asymptotic_e_value_has_its_published_value() -> None:
    log_e = sequences.normal_log_e(0.02 / 0.0088453378, sequences.tightest_u(0.05))
    assert math.exp(log_e) == near(3.217146)
    assert sequences.p_value(log_e) == near(0.310835)
    assert sequences.p_value(-1.0) == 1


@pytest.mark.parametrize(
    ("t", "degrees", "e", "normal"),
    [(2.5, 98, 4.995519, 5.341546), (4, 98, 246.181487, 412.119778), (4, 10, 26.160128, 412.119778)],
)
def test_the_e_value_in_its_t_form_has_its_published_values(t: float, degrees: int, e: float, normal: float) -> None:
    assert math.exp(sequences.t_log_e(t, degrees, 8.212)) == near(e)
    assert math.exp(sequences.normal_log_e(t, 8.212)) == near(normal)


@pytest.mark.parametrize(("degrees", "radius"), [(10, 3.793839), (30, 3.255547), (98, 3.099839), (998, 3.041377)])
def test_the_radius_of_the_t_form_has_its_published_values(degrees: int, radius: float) -> None:
    assert sequences.t_radius(degrees, sequences.tightest_u(0.05), 0.05) == near(radius)


def test_too_few_units_have_no_interval() -> None:
    assert sequences.t_radius(0, 8.0, 0.05) == sequences.t_radius(1, 0.01, 0.05) == math.inf
    assert sequences.normal_radius(0, 0.05) == sequences.one_sided_radius(0, 0.05) == math.inf
    assert sequences.t_log_e(9.0, 0, 8.0) == 0


def test_the_one_sided_bound_has_its_published_value() -> None:
    assert sequences.one_sided_u(0.05) == near(6.638352)
    assert sequences.one_sided_radius(sequences.one_sided_u(0.05), 0.05) == near(2.778515)


@pytest.mark.parametrize("alpha", [0, 1, -1, 2])
def test_levels_are_within_0_and_1(alpha: float) -> None:
    with pytest.raises(ValueError):
        sequences.tightest_u(alpha)


def test_an_effect_outside_its_interval_is_significant_in_any_unit_of_the_metric() -> None:
    rng = random.Random(2)
    for _ in range(500):
        n = rng.randrange(2, 3_000)
        a, b = Mean(n, 1, rng.random() / n), Mean(n, 1 + 6 * (rng.random() - 0.5) / n**0.5, rng.random() / n)
        effect = effects.effect_of(a, b, 0.05, 100)
        assert (effect.p < 0.05) == (not effect.interval.low <= 0 <= effect.interval.high)
        for scale in (100, 1e9, 1e-6):  # dollars as cents, as nanos, as millions
            first, second = (Mean(each.n, each.mean * scale, each.variance * scale**2) for each in (a, b))
            scaled = effects.effect_of(first, second, 0.05, 100)
            assert scaled.log_e == pytest.approx(effect.log_e, abs=1e-9)
            assert scaled.interval.low == pytest.approx(effect.interval.low * scale, rel=1e-9)


@pytest.mark.parametrize(
    ("found", "shares", "expected"),
    [
        ((52_000, 50_000), (0.5, 0.5), (16.123317, 17.101273, 16.650272, 16.702321)),
        ((5_000, 4_800), (0.5, 0.5), (-0.279491, 0.662129, 0.668608, 0.437524)),
        ((820, 110, 70), (0.8, 0.1, 0.1), (2.882110, 2.098914, 0.393731, 2.215272)),
    ],
)
def test_tests_of_sample_ratios_have_their_published_values(
    found: tuple[int, ...], shares: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    logs = [counts.log_e(found, shares, k) for k in counts.SRM_CONCENTRATIONS]
    assert [*logs, counts.srm_log_e([EpochCounts(found, shares)])] == [near(each) for each in expected]


def test_sample_ratios_are_tested_over_epochs_together() -> None:
    first, second = EpochCounts((520, 480), (0.5, 0.5)), EpochCounts((640, 340), (0.6, 0.4))
    assert counts.log_e_of_epochs([first], 1_000) == near(0.053528)
    assert counts.log_e_of_epochs([second], 1_000) == near(2.538366)
    assert counts.log_e_of_epochs([first, second], 1_000) == near(2.591894)


@pytest.mark.parametrize(("k", "log_e"), [(2, 3.454324), (10, 3.377912), (100, 1.274879)])
def test_tests_of_errors_by_arm_have_their_published_values(k: float, log_e: float) -> None:
    assert counts.log_e((10, 30), (0.5, 0.5), k) == near(log_e)
    assert counts.is_beyond(log_e, 0.05) == (log_e > 3)


def test_an_arm_of_share_0_is_ignored_unless_it_has_units() -> None:
    assert counts.log_e((10, 0, 30), (0.5, 0, 0.5), 10) == near(3.377912)
    assert counts.srm_log_e([EpochCounts((10, 1), (1, 0))]) == math.inf
    assert sequences.p_value(math.inf) == 0


@pytest.mark.parametrize("num_units", [1, 1_000, 100_000, 1_000_000])
def test_uneven_weights_are_no_alarm(num_units: int) -> None:
    assert counts.srm_log_e([EpochCounts((num_units * 95, num_units * 5), (0.95, 0.05))]) < 0


@pytest.mark.parametrize(
    ("t", "p", "k", "bounds"),
    [(1_000, 0.5, 100, (453, 547)), (1_000, 0.95, 100, (928, 969)), (10_000, 0.99, 1_000, (9_868, 9_928))],
)
def test_ranks_of_quantiles_have_their_published_bounds(t: int, p: float, k: float, bounds: tuple[int, int]) -> None:
    assert quantiles.rank_bounds(t, p, k, 0.05) == bounds


def test_quantiles_in_buckets_are_those_of_values_rounded_outwards() -> None:
    rng = random.Random(3)
    values = sorted(rng.lognormvariate(5, 1) for _ in range(1_000))
    tallied = [0] * (len(quantiles.EDGES_MS) + 1)
    for value in values:
        tallied[quantiles.bucket_of(value)] += 1
    found = quantiles.quantile_interval(tallied, 0.95, 100, 0.05)
    assert found.low < values[928 - 1] <= found.low * 1.02 * (1 + 1e-9)
    assert values[970 - 1] <= found.high < values[970 - 1] * 1.02
    assert found.low < found.estimate <= found.high
    assert quantiles.difference(found, found) == (found.low - found.high, found.high - found.low)


def test_few_units_have_no_bound_of_a_high_quantile() -> None:
    tallied = [0] * (len(quantiles.EDGES_MS) + 1)
    assert quantiles.quantile_interval(tallied, 0.95, 100, 0.05).high == math.inf
    tallied[100] = 5
    found = quantiles.quantile_interval(tallied, 0.95, 100, 0.05)
    assert (found.low, found.high) == (0.0, math.inf)
    tallied[-1] = 5_000  # longer than the last edge
    assert quantiles.quantile_interval(tallied, 0.95, 100, 0.05).low == quantiles.EDGES_MS[-1]


def cuped_arms() -> tuple[Sums, Sums]:
    a = zip((2, 4, 6, 8, 10, 12), (3, 4, 8, 7, 12, 11), strict=True)
    b = zip((1, 3, 5, 9, 11, 15), (3, 5, 6, 11, 12, 15), strict=True)
    return sums_of(Unit(y, x) for x, y in a), sums_of(Unit(y, x) for x, y in b)


def test_a_covariate_takes_its_part_of_the_variance() -> None:
    arms = cuped_arms()
    assert effects.cuped_theta(arms) == near(0.8910969793)
    for adjusted, effect, variance in ((False, 1.166667, 5.827778), (True, 0.8696343402, 0.3387085346)):
        means = effects.compare_arms([arms], adjusted=adjusted)
        assert means is not None
        assert means[1].mean - means[0].mean == near(effect)
        assert means[0].variance + means[1].variance == near(variance)


def test_a_covariate_that_never_varies_changes_nothing() -> None:
    arms = sums_of(map(Unit, (1, 2, 4))), sums_of(map(Unit, (2, 3, 3)))
    assert effects.compare_arms([arms], adjusted=True) == effects.compare_arms([arms])
    assert effects.cuped_theta([NO_UNITS]) == 0


def test_ratios_are_of_sums_and_no_mean_of_ratios() -> None:
    a = sums_of(Unit(n, d=d) for n, d in zip((3, 0, 4, 1, 7, 2), (2, 1, 5, 1, 6, 3), strict=True))
    b = sums_of(Unit(n, d=d) for n, d in zip((5, 2, 6, 1, 9, 4), (3, 1, 5, 2, 7, 3), strict=True))
    means = effects.compare_arms([(a, b)], "ratio")
    assert means is not None
    first, second = means
    assert (first.mean, first.variance) == (near(0.9444444444), near(0.0189757659))
    assert (second.mean, second.variance) == (near(1.2857142857), near(0.0122171318))
    difference = second.mean - first.mean
    assert difference == near(0.3412698413)
    assert difference / math.sqrt(first.variance + second.variance) == near(1.9322799630)


@pytest.mark.parametrize(("radius", "low", "high"), [(1.959964, 0.024655, 0.409001), (3.035122, -0.061053, 0.543374)])
def test_intervals_of_relative_effects_have_their_published_ends(radius: float, low: float, high: float) -> None:
    found = effects.relative_interval(proportion(2_500, 0.1), proportion(2_500, 0.12), radius)
    assert found is not None
    assert (found.low, found.high) == (near(low), near(high))


def test_there_is_no_relative_effect_on_a_control_near_0() -> None:
    assert effects.relative_interval(proportion(200, 0.02), proportion(200, 0.03), 3.035122) is None
    assert effects.relative_interval(proportion(200, 0.2), proportion(200, 0.3), math.inf) is None
    assert effects.relative_interval(Mean(200, -5, 0.01), Mean(200, -4, 0.01), 3.0) is None


def successes(n: int, y: int) -> Sums:
    return Sums(n, y, y)


def test_a_ramp_is_no_effect() -> None:
    epochs = [(successes(9_000, 2_700), successes(1_000, 300)), (successes(5_000, 1_000), successes(5_000, 1_000))]
    means = effects.compare_arms(epochs)
    pooled = effects.compare_arms([(epochs[0][0] + epochs[1][0], epochs[0][1] + epochs[1][1])])
    assert means is not None and pooled is not None
    assert means[1].mean - means[0].mean == pytest.approx(0, abs=1e-15)
    assert pooled[1].mean - pooled[0].mean == near(-0.0476190)


def test_epochs_without_units_of_an_arm_are_left_out() -> None:
    full, lonely = (successes(100, 30), successes(100, 40)), (successes(900, 500), successes(1, 1))
    assert effects.compare_arms([full, lonely]) == effects.compare_arms([full])
    assert effects.compare_arms([lonely]) is None
    constant = effects.compare_arms([(successes(10, 0), successes(10, 0))])
    assert constant is not None
    unknown = effects.effect_of(*constant, alpha=0.05, tightest_at=5_000)
    assert (unknown.interval.low, unknown.interval.high, unknown.p) == (-math.inf, math.inf, 1)


@pytest.mark.parametrize(
    ("e", "rejected"),
    [
        ((130, 70, 42, 2, 1, 0.2), [0, 1, 2]),
        ((120, 45, 3, 30, 1, 0.2), [0]),
        ((21, 21, 21), [0, 1, 2]),
        ((19, 19, 19), []),
        ((), []),
    ],
)
def test_false_discoveries_are_bounded(e: tuple[float, ...], rejected: list[int]) -> None:
    assert many.e_bh([math.log(each) for each in e], 0.05) == rejected


def test_primary_metrics_share_their_level() -> None:
    assert many.alpha_of_each(0.05, 2, 3) == near(0.0125)
    assert many.alpha_of_each(0.05, 1, 2) == 0.05
    assert many.split_alpha(0.05) == (near(0.01), near(0.04))


def test_a_judge_shortens_what_humans_say_without_bias() -> None:
    y, f = [1, 0, 1, 1, 0, 1, 0, 1], [0.9, 0.2, 0.7, 0.8, 0.4, 0.6, 0.3, 0.9]
    g = [0.8, 0.1, 0.6, 0.9, 0.5, 0.7, 0.2, 0.4, 0.9, 0.3, 0.6, 0.8, 0.7, 0.5, 0.2, 0.9]
    others = sums_of(map(Unit, g))
    found = prediction_powered(sums_of(map(Unit, y, f)), others)
    assert (found.judge_weight, found.mean) == (near(1.232464), near(0.586486))
    assert math.sqrt(found.variance) == near(0.121539)
    silent = sums_of([Unit(0.5)] * 16)  # a judge whose score never changes
    human = prediction_powered(sums_of(Unit(each, 0.5) for each in y), silent)
    assert (human.mean, math.sqrt(human.variance)) == (0.625, near(0.182981))
    for labelled, rest in ((sums_of([Unit(1, 0.9)]), others), (sums_of(map(Unit, y, f)), sums_of([Unit(0.5)]))):
        with pytest.raises(ValueError):
            prediction_powered(labelled, rest)


@pytest.mark.parametrize(
    ("a", "b", "effect", "units"),
    [
        (0.1 * 0.9, 0.12 * 0.88, 0.02, 3_838.1),
        (0.05 * 0.95, 0.055 * 0.945, 0.005, 31_230.7),
        (250_000, 250_000, 20, 9_811.1),
    ],
)
def test_planned_sizes_have_their_published_values(a: float, b: float, effect: float, units: float) -> None:
    assert sizes.units_per_arm(a, b, effect) == pytest.approx(units, abs=0.05)
    assert sizes.units_per_arm_anytime(a, b, effect) == math.ceil(sizes.units_per_arm(a, b, effect) * 1.62)
    assert sizes.power_of(a, b, effect, units) == pytest.approx(0.8, abs=1e-4)
    assert sizes.smallest_effect(a, b, units) == pytest.approx(effect, rel=1e-4)
    assert sizes.units_per_arm(a, b, -effect) == sizes.units_per_arm(a, b, effect)


def test_days_until_an_effect_is_found_are_said_beforehand() -> None:
    assert sizes.units_per_arm(1, 1, math.sqrt(2)) == near(7.848880)
    assert sizes.days_needed(2 * 3_838.1, 40) == 192
    assert sizes.days_needed(10, 40, min_days=7) == 7
    assert sizes.days_needed(80, 40, min_days=7, window_days=7) == 9, "the last unit's outcomes count for a week more"
    assert sizes.days_needed(80, 40, window_days=300 / 86_400) == 3
    for refused in (lambda: sizes.units_per_arm(1, 1, 0), lambda: sizes.days_needed(1, 0)):
        with pytest.raises(ValueError):
            refused()


def test_sums_are_the_same_in_any_order_of_events() -> None:
    """A vote, a changed, a late and a withdrawn vote, and a forgotten unit, in any order, give the sums of a
    recount."""
    events = [
        change(None, Unit(1, x=3)),
        change(Unit(1, x=3), Unit(0, x=3)),
        change(None, Unit(5, x=2, d=7)),
        change(Unit(5, x=2, d=7), Unit(6, x=2, d=8)),
        change(None, Unit(9)),
        change(Unit(9), None),
    ]
    expected = sums_of([Unit(0, x=3), Unit(6, x=2, d=8)])
    for order in itertools.permutations(events):
        assert sum(order, NO_UNITS) == expected
    assert expected - sums_of([Unit(6, x=2, d=8)]) == sums_of([Unit(0, x=3)])


def test_sums_of_integers_are_exact_however_far_from_0() -> None:
    far = 10**15
    assert sums_of(Unit(far + value) for value in (1, 2, 3, 4)).variance == 5 / 3
    with pytest.raises(ZeroDivisionError):
        _ = sums_of([Unit(1)]).variance


def test_failures_count_as_failures() -> None:
    """A tenth of the treatment's units fail, which lowers .80 by .08; without failures no effect would show."""
    means = effects.compare_arms([(successes(1_000, 800), successes(1_000, 720))])
    finished = effects.compare_arms([(successes(1_000, 800), successes(900, 720))])
    assert means is not None and finished is not None
    assert means[1].mean - means[0].mean == near(-0.08)
    assert finished[1].mean - finished[0].mean == 0
