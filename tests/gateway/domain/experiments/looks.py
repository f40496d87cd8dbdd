"""The statistics of `gateway.domain.experiments` over arrays, for many experiments that are looked at again and again.

Tests check that these results equal those of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.domain.experiments.statistics.sequences import tightest_u

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

SHAPES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "p .5": lambda rng, size: (rng.random(size) < 0.5).astype(float),
    "p .05": lambda rng, size: (rng.random(size) < 0.05).astype(float),
    "p .01": lambda rng, size: (rng.random(size) < 0.01).astype(float),
    "log-normal": lambda rng, size: rng.lognormal(0.0, 1.5, size),
}


class Arm(msgspec.Struct, frozen=True):
    """The sums of one arm, as arrays by experiment and look.

    n: the number of units. y, x: the sums of the outcome and of the covariate. yy, xx, xy: the sums of their products.
    """

    n: Floats
    y: Floats
    yy: Floats
    x: Floats
    xx: Floats
    xy: Floats


def arm_sums_at_looks(y: Floats, treated: NDArray[np.bool_], every: int, x: Floats | None = None) -> tuple[Arm, Arm]:
    """Return the sums of control and treatment at each look.

    y, treated, x: arrays by experiment and unit. every: the units between two looks. x: the covariate; None: without
    one.
    """

    def sums_at_looks(values: Floats) -> Floats:
        return values.reshape(len(values), -1, every).sum(axis=2).cumsum(axis=1)

    def arm(member: Floats) -> Arm:
        with_x = (member * x, member * x * x, member * x * y) if x is not None else (member * 0,) * 3
        return Arm(*(sums_at_looks(each) for each in (member, member * y, member * y * y, *with_x)))

    return arm((~treated).astype(float)), arm(treated.astype(float))


def t_values(control: Arm, treatment: Arm, *, adjusted: bool = False) -> Floats:
    """Return effect / SE at each look; 0 where nothing varies or an arm has fewer than two units.

    adjusted: True: means are adjusted by the covariate (CUPED).
    """
    theta: Floats | float = 0.0
    with np.errstate(all="ignore"):
        if adjusted:
            n, y, x = (getattr(control, name) + getattr(treatment, name) for name in ("n", "y", "x"))
            xx, xy = control.xx + treatment.xx, control.xy + treatment.xy
            theta = np.nan_to_num((n * xy - x * y) / (n * xx - x * x))
        means, variances = [], []
        for arm in (control, treatment):
            y, yy = arm.y - theta * arm.x, arm.yy - 2 * theta * arm.xy + theta**2 * arm.xx
            means.append(y / arm.n)
            variances.append((yy - y * y / arm.n) / (arm.n - 1) / arm.n)
        t = (means[1] - means[0]) / np.sqrt(variances[0] + variances[1])
    enough = (np.minimum(control.n, treatment.n) >= 2) & (variances[0] + variances[1] > 1e-15)
    return np.where(enough & np.isfinite(t), t, 0.0)


def t_log_e(t: Floats, n: Floats, tightest_at: int, alpha: float = 0.05) -> Floats:
    u = n * tightest_u(alpha) / tightest_at
    r, degrees = 1 / (1 + u), np.maximum(n - 2, 1)
    return 0.5 * np.log(r) + (degrees + 1) / 2 * (np.log1p(t * t / degrees) - np.log1p(r * t * t / degrees))


def normal_log_e(t: Floats, n: Floats, tightest_at: int, alpha: float = 0.05) -> Floats:
    u = n * tightest_u(alpha) / tightest_at
    return t * t * u / (2 * (u + 1)) - 0.5 * np.log1p(u)


class Counts:
    """The computation of ln E for two counts with equal shares, as `statistics.counts.log_e` defines it.

    concentration: the concentration of the prior. most: the largest sum of two counts.
    """

    def __init__(self, concentration: float, most: int) -> None:
        self._half = np.array([math.lgamma(concentration / 2 + count) for count in range(most + 1)])
        self._whole = np.array([math.lgamma(concentration + count) for count in range(most + 1)])

    def log_e(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> Floats:
        total = a + b
        mixed = self._half[a] + self._half[b] - 2 * self._half[0] - self._whole[total] + self._whole[0]
        return np.asarray(mixed + total * math.log(2))


def first_beyond(log_e: Floats, alpha: float) -> NDArray[np.int64]:
    """Return, for each experiment, the index of the first look with E >= 1 / alpha; the number of looks if none."""
    beyond = log_e >= -math.log(alpha)
    return np.where(beyond.any(axis=1), beyond.argmax(axis=1), log_e.shape[1])
