"""Quotas of something bounded, such as memory: the amounts that the tenants of a gateway process hold."""

from __future__ import annotations


class Quota:
    """A bound on the amount that all tenants hold together (most), and on that of each tenant (most_of_one)."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._held: dict[str, int] = {}
        self.num_held = 0

    def take(self, tenant: str, num: int) -> bool:
        """Take num more for the tenant, and tell whether the bounds allowed it."""
        held = self._held.get(tenant, 0)
        if num > min(self._most - self.num_held, self._most_of_one - held):
            return False
        self._held[tenant] = held + num
        self.num_held += num
        return True

    def give_back(self, tenant: str, num: int) -> None:
        """Give back an amount that a tenant has taken."""
        left = self._held.get(tenant, 0) - num
        assert left >= 0, "given back more than was taken"
        self.num_held -= num
        if left:
            self._held[tenant] = left
        else:
            self._held.pop(tenant, None)
