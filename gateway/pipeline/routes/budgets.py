"""Budgets of routes: further rounds and second tries that each route may make, so that neither multiplies an outage."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from gateway.domain.routing.hedge_budget import HedgeBudget
from gateway.domain.routing.retry_budget import RetryBudget

MAX_ROUTES = 10_000
"""The most routes whose budgets are kept; the least recently used one is dropped, and starts anew."""


class RouteBudgets(msgspec.Struct, eq=False):
    """The budgets of one route in one gateway process."""

    retries: RetryBudget = msgspec.field(default_factory=RetryBudget)
    """The budget for further rounds of a fallback."""
    hedges: HedgeBudget = msgspec.field(default_factory=HedgeBudget)
    """The budget for second tries of requests whose first token is late."""


class Budgets:
    """The budgets of all routes in one gateway process."""

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
