"""Quotas of something bounded, such as memory: the amounts that the tenants of a gateway process hold."""

from __future__ import annotations


class Quota:
    """The amounts that tenants hold of a bounded resource.

    most: the most that all tenants may hold together. most_of_one: the most that one tenant may hold.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._held: dict[str, int] = {}
        self.num_held = 0

    def take(self, tenant: str, num: int) -> bool:
        """Reserve num more for a tenant. Return False, and reserve nothing, if a bound does not allow it."""
        held = self._held.get(tenant, 0)
        if num > min(self._most - self.num_held, self._most_of_one - held):
            return False
        self._held[tenant] = held + num
        self.num_held += num
        return True

    def give_back(self, tenant: str, num: int) -> None:
        """Release an amount that a tenant holds."""
        left = self._held.get(tenant, 0) - num
        assert left >= 0, "given back more than was taken"
        self.num_held -= num
        if left:
            self._held[tenant] = left
        else:
            self._held.pop(tenant, None)
