"""Intervals and E-values that hold at every look: Robbins' normal mixture and its t form.

u is the information so far over that of the mixture's prior: u = n * rho**2, with n units of both arms, and rho**2 set
so that intervals are tightest at a chosen n. z = effect / SE. An effect is significant at a level alpha once its
E-value reaches 1 / alpha, when 0 leaves its interval; without an effect that ever happens with probability alpha.

Sources: Waudby-Smith et al., Annals of Statistics 52(6), 2024, arXiv 2103.06476 (normal mixture, one-sided); Johari et
al., Operations Research 70(3), 2022 (p values); Lindon et al., arXiv 2210.08589 (t form).
"""

from __future__ import annotations

import math
from functools import lru_cache

DEFAULT_TIGHTEST_AT = 5_000
_STEPS = 200


@lru_cache(maxsize=256)
def tightest_u(alpha: float) -> float:
    """Return the u at which an interval is tightest: u = -2 ln(alpha) + ln(1 + u).

    Raises ValueError: when alpha is not within (0, 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha has to be within 0 and 1, and is {alpha}")
    u = 1.0
    for _ in range(_STEPS):
        u = -2 * math.log(alpha) + math.log1p(u)
    return u


def information(num_units: int, tightest_at: int, alpha: float) -> float:
    """Return the information u of a number of units of both arms, for intervals tightest at `tightest_at`.

    alpha: the level of the intervals.
    """
    return num_units * tightest_u(alpha) / tightest_at


def normal_radius(u: float, alpha: float) -> float:
    """Return half the width of an interval in standard errors, asymptotic: sqrt((u+1)/u * ln((u+1)/alpha**2)).

    Too short below 30 units an arm: prefer `t_radius`. Infinite at u = 0.
    """
    return math.sqrt((u + 1) / u * math.log((u + 1) / alpha**2)) if u > 0 else math.inf


def normal_log_e(z: float, u: float) -> float:
    """Return ln E of an effect of z standard errors, asymptotic: z**2 u / (2 (u+1)) - ln(1+u) / 2."""
    return z * z * u / (2 * (u + 1)) - math.log1p(u) / 2


def t_radius(degrees: int, u: float, alpha: float) -> float:
    """Return half the width of an interval in standard errors, for few units as well.

    degrees: n - 2. The formula: r = 1/(1+u), q = (r alpha**2)**(1/(degrees+1)), sqrt(degrees (1-q) / (q-r)); infinite
    where q <= r, or without degrees of freedom.
    """
    if degrees < 1 or u <= 0:
        return math.inf
    r = 1 / (1 + u)
    log_q = (math.log(r) + 2 * math.log(alpha)) / (degrees + 1)
    q = math.exp(log_q)
    return math.sqrt(degrees * -math.expm1(log_q) / (q - r)) if q > r else math.inf


def t_log_e(t: float, degrees: int, u: float) -> float:
    """Return ln E of an effect of t estimated standard errors; 0 without degrees of freedom.

    ln E = ln(r)/2 + (degrees+1)/2 (ln(1+t**2/degrees) - ln(1+r t**2/degrees)), r = 1/(1+u).
    """
    if degrees < 1:
        return 0.0
    r, ratio = 1 / (1 + u), t * t / degrees
    return (math.log(r) + (degrees + 1) * (math.log1p(ratio) - math.log1p(r * ratio))) / 2


def one_sided_u(alpha: float) -> float:
    """Return the u at which a one-sided bound is tightest."""
    return tightest_u(2 * alpha)


def one_sided_radius(u: float, alpha: float) -> float:
    """Return the distance of a one-sided bound in standard errors, asymptotic.

    See arXiv 2103.06476, equation 134: sqrt(2 (u+1)/u * ln(1 + sqrt(u+1) / (2 alpha))).
    """
    return math.sqrt(2 * (u + 1) / u * math.log1p(math.sqrt(u + 1) / (2 * alpha))) if u > 0 else math.inf


def p_value(log_e: float) -> float:
    """Return the p-value of an E-value, min(1, 1/E), by ln E."""
    return min(1.0, math.exp(-log_e))
