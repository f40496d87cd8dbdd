"""A limiter that nobody has started: for tests of what works beside it. It knows of no limits."""

from __future__ import annotations

import time

from gateway.db.leases import PostgresLeases
from gateway.db.limits import LimitLoader
from gateway.db.pool import Database
from gateway.limits.clock import DatabaseClock
from gateway.limits.limiter import Limiter
from gateway.limits.rules import Rules
from gateway.limits.work import Free


def unlimited(database: Database) -> Limiter:
    return Limiter(PostgresLeases(database), Rules(LimitLoader(database)), DatabaseClock(time.monotonic), Free())
