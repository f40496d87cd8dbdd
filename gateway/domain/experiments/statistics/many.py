"""Tests of many hypotheses at once: a declared family shares alpha, all others are filtered by E-values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def alpha_of_each(alpha: float, num_primary: int, num_arms: int) -> float:
    """Return the level of each primary metric and treatment: alpha over their number (Bonferroni).

    num_arms: the number of arms, the control included. Guardrails are each at alpha, undivided.
    """
    return alpha / max(1, num_primary * (num_arms - 1))


def e_bh(log_es: Sequence[float], alpha: float) -> list[int]:
    """Return the indexes, ascending, of the hypotheses that e-BH rejects.

    The false discovery rate is alpha at most, however the hypotheses depend on each other (Wang and Ramdas, arXiv
    2009.02824). Rejected are the k highest, for the largest k whose k-th highest E times k over their number is 1 /
    alpha at least.

    log_es: ln of the current E-values. Running maxima are no E-values at any time (arXiv 2501.19360).
    """
    order = sorted(range(len(log_es)), key=lambda index: -log_es[index])
    rejected = 0
    for k, index in enumerate(order, 1):
        if log_es[index] + math.log(k / len(order)) >= -math.log(alpha) - 1e-12:
            rejected = k
    return sorted(order[:rejected])


def split_alpha(alpha: float) -> tuple[float, float]:
    """Return the levels of a test with a planned end: a fifth of alpha for looks before it, the rest for the end."""
    return alpha / 5, alpha * 4 / 5
