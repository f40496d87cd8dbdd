"""A limiter without limits and prices, which is not started, for tests that are not about limits."""

from __future__ import annotations

import time

from gateway.db.limits.leases import PostgresLeases
from gateway.db.limits.limits import LimitLoader
from gateway.db.pool import Database
from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.limits.work import Price
from gateway.limits.limiter import Limiter
from gateway.limits.rules import Rules


class Free:
    """A source of prices by which every token is free."""

    def highest_price(
        self, organization_id: str, project_id: str, model: str, service_tier: str, instant_ns: int
    ) -> Price:
        return Price()

    def currency(self, organization_id: str) -> str:
        return "usd"


def unlimited(database: Database) -> Limiter:
    return Limiter(PostgresLeases(database), Rules(LimitLoader(database)), DatabaseClock(time.monotonic), Free())
