"""Budgets of routes: further rounds and second tries that each route may make, so that neither multiplies an outage."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from gateway.domain.routing.hedge_budget import HedgeBudget
from gateway.domain.routing.retry_budget import RetryBudget

MAX_ROUTES = 10_000
"""Routes that are remembered; the one that was used longest ago is forgotten, and begins anew."""


class RouteBudgets(msgspec.Struct, eq=False):
    """The budgets of one route in one gateway process."""

    retries: RetryBudget = msgspec.field(default_factory=RetryBudget)
    """For further rounds of a fallback."""
    hedges: HedgeBudget = msgspec.field(default_factory=HedgeBudget)
    """For second tries of late requests."""


class Budgets:
    """The budgets of all routes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, RouteBudgets] = OrderedDict()

    def sent(self, route_id: str, now_s: float) -> RouteBudgets:
        """Count a request of a route; return the route's budgets."""
        budgets = self._known.setdefault(route_id, RouteBudgets())
        self._known.move_to_end(route_id)
        if len(self._known) > MAX_ROUTES:
            self._known.popitem(last=False)
        budgets.retries.sent(now_s)
        budgets.hedges.sent()
        return budgets
