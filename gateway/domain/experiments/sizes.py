"""The number of units that an experiment needs, before it starts."""

from __future__ import annotations

import math
from statistics import NormalDist

ANYTIME_FACTOR = 1.62
"""The ratio of the units that an always-valid interval needs to those of a fixed test.

It holds at 80 % power, for an interval tuned at the fixed size.
"""


def units_per_arm(
    variance_control: float, variance_treatment: float, effect: float, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the units of each arm by which a fixed two-sided test finds an effect.

    The number is (z(1 - alpha/2) + z(power))**2 (variance_control + variance_treatment) / effect**2.

    Variances and effect in the metric's unit.
    Raises ValueError: when the effect is 0.
    """
    if not effect:
        raise ValueError("an effect of 0 is never found")
    z = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    return z * z * (variance_control + variance_treatment) / effect**2


def units_per_arm_anytime(
    variance_control: float, variance_treatment: float, effect: float, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return the units of each arm by which an interval that is looked at all the time finds an effect.

    variance_control, variance_treatment: the variances of the metric in both arms, in the square of its unit. alpha:
    the level of the test. power: the probability that the effect is found.
    """
    fixed = units_per_arm(variance_control, variance_treatment, effect, alpha, power)
    return math.ceil(ANYTIME_FACTOR * fixed)


def power_of(
    variance_control: float, variance_treatment: float, effect: float, per_arm: float, alpha: float = 0.05
) -> float:
    """Return the probability that a fixed two-sided test of so many units an arm finds an effect, in its direction.

    per_arm: the units of each arm. Other arguments are as for `units_per_arm_anytime`. alpha: the level of the test:
    the probability of a false finding.
    """
    se = math.sqrt((variance_control + variance_treatment) / per_arm)
    return NormalDist().cdf(abs(effect) / se - NormalDist().inv_cdf(1 - alpha / 2))


def smallest_effect(
    variance_control: float, variance_treatment: float, per_arm: float, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the smallest effect that a fixed test of so many units an arm finds with this power.

    per_arm: the units of each arm. Other arguments are as for `units_per_arm_anytime`. alpha: the level of the test:
    the probability of a false finding.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    return z * math.sqrt((variance_control + variance_treatment) / per_arm)


def days_needed(num_units: float, units_per_day: float, min_days: int = 1, window_days: float = 0.0) -> int:
    """Return the whole days until so many new units have come and their outcome windows are over.

    The days count from the start, and are at least the declared `min_days`.

    Raises ValueError: when no units come.
    """
    if units_per_day <= 0:
        raise ValueError("no units come")
    return max(min_days, math.ceil(num_units / units_per_day + window_days))
