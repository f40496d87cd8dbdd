"""Counts the service that batch work is owed: a share of all, whatever interactive requests ask for. Numbers only.

While there is batch work, each step adds its share of the service done and takes off what batch work got. The debt is
never below zero: service that batch work got while nobody else wanted it is not held against it later.
"""

from __future__ import annotations

LEAST_PAYMENT = 16.0
"""The least service that a step may pay of a debt, in units of `engine.scheduling.fairness`."""

PAYMENT_SHARES = 2.0
"""The most that a step pays of a debt, as a multiple of the share of the last step's service."""

MAX_PAYMENTS = 8.0
"""The most that a debt grows to, in payments.

More is forgotten: the work could not be computed, for want of an adapter or memory.
"""


class GuaranteedShare:
    """The debt to batch work. share: the share of all service that batch work is guaranteed; 0 for none."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.owed = 0.0
        self._payment = LEAST_PAYMENT

    @property
    def payable(self) -> float:
        """The service units that the next step should give to batch work, whatever else it has to do."""
        return min(self.owed, self._payment)

    def count(self, interactive: float, batch: float, *, has_work: bool) -> None:
        """Add a step's service to the debt.

        interactive, batch: the service that the step did for each kind of requests.
        has_work: False: no batch work is left, and the debt is forgotten.
        """
        if not has_work:
            self.owed = 0.0
            return
        self._payment = max(LEAST_PAYMENT, PAYMENT_SHARES * self.share * (interactive + batch))
        owed = self.owed + self.share * (interactive + batch) - batch
        self.owed = min(max(owed, 0.0), MAX_PAYMENTS * self._payment)
