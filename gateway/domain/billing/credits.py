"""Draws credits: oldest first, by the cost of a closed period, until they are used up or expire. Pure.

balance = sum of (amount - drawn - lapsed) over the grants - cost of the periods that are open
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec


class Grant(msgspec.Struct, frozen=True):
    """A credit of a project. Amounts are in nanos."""

    id: str
    project_id: str
    amount: int
    """The granted amount."""
    reason: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    drawn: int
    """The amount that closed periods have used."""
    lapsed: int | None
    """The amount that was left when the grant expired; None before that."""

    @property
    def remaining(self) -> int:
        """The amount that was neither drawn nor has lapsed."""
        return self.amount - self.drawn - (self.lapsed or 0)


def draw_credits(grants: Sequence[Grant], cost: int) -> dict[str, int]:
    """Return how much of each grant, oldest first, a cost takes. A cost beyond all grants stays to be paid.

    The schema does the same where a period is closed, for all projects at once.
    """
    taken = {}
    for grant in grants:
        amount = min(grant.remaining, cost)
        if amount > 0:
            taken[grant.id] = amount
            cost -= amount
    return taken


def expired_remainders(grants: Sequence[Grant], pending: int, now: datetime.datetime) -> dict[str, int]:
    """Return the rest of each expired grant, oldest first.

    pending: the cost of open periods and the reservations of running requests, which are taken from the grants first.
    """
    taken = draw_credits(grants, pending)
    return {
        grant.id: grant.remaining - taken.get(grant.id, 0)
        for grant in grants
        if grant.lapsed is None and grant.expires_at is not None and grant.expires_at <= now
    }
