"""Warns of tenants that Stripe does not know."""

from __future__ import annotations

import sys
from collections.abc import Sequence

MAX_NAMES = 20


def warn_of_unbilled(names: Sequence[str], period: str) -> None:
    """Warn of usage of tenants without a customer: Stripe refuses it, and a closed month keeps its customers."""
    shown = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    print(
        f"lorikeet: usage of {period} that Stripe will bill to nobody, since these tenants have no customer "
        f"(`lorikeet stripe-customer`, before a month is closed): {shown}",
        file=sys.stderr,
    )
