"""Exact tests of counts that hold at every look: sample ratios, errors, binary outcomes, ranks.

Each counted unit or event falls to arm i with probability shares[i] under the null hypothesis. The E-value is the ratio
of a Dirichlet mixture around the shares to the null (Lindon and Malek, arXiv 2011.03567). No base rate is assumed:
whether there are more errors at noon does not matter, only which arm has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

SRM_CONCENTRATIONS = (100.0, 1_000.0, 10_000.0)
SRM_ALPHA = 0.01
ERROR_CONCENTRATION = 10.0


class EpochCounts(msgspec.Struct, frozen=True):
    """The counts of each arm in one epoch."""

    counts: tuple[int, ...]
    """The number of units of each arm."""
    shares: tuple[float, ...]
    """The expected share of each arm; they sum to 1. 0 for arms that had ended, which are left out."""


def log_e(counts: Sequence[int], shares: Sequence[float], concentration: float) -> float:
    """Return ln E of counts by arm, for a concentration k.

    ln E = lnB(k shares + S) - lnB(k shares) - sum of S_i ln shares_i, where lnB is the logarithm of the multivariate
    beta function.

    concentration: about n / u(alpha) for the best power at n things (`sequences.tightest_u`).
    Infinite where something fell to an arm without a share.
    """
    total, log = 0, 0.0
    for count, share in zip(counts, shares, strict=True):
        if share <= 0:
            if count:
                return math.inf
            continue
        log += math.lgamma(concentration * share + count) - math.lgamma(concentration * share)
        log -= count * math.log(share)
        total += count
    return log - math.lgamma(concentration + total) + math.lgamma(concentration)


def log_e_of_epochs(epochs: Sequence[EpochCounts], concentration: float) -> float:
    """Return ln E over epochs with shares of their own: the sum over epochs. Pooled counts would be wrong.

    concentration: as for `log_e`.
    """
    return math.fsum(log_e(epoch.counts, epoch.shares, concentration) for epoch in epochs)


def srm_log_e(epochs: Sequence[EpochCounts]) -> float:
    """Return ln E that units are not split as declared.

    E is the mean over three concentrations, which is an E-value as well and finds small faults late and large ones
    early.
    """
    logs = [log_e_of_epochs(epochs, concentration) for concentration in SRM_CONCENTRATIONS]
    highest = max(logs)
    if math.isinf(highest):
        return highest
    return highest + math.log(math.fsum(math.exp(each - highest) for each in logs) / len(logs))


def is_beyond(log_e_value: float, alpha: float) -> bool:
    """Tell whether E has reached 1 / alpha.

    log_e_value: ln E. alpha: the level.
    """
    return log_e_value >= -math.log(alpha)
