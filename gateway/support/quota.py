"""What all tenants of a gateway process hold of something bounded, such as its memory, and the most that one may."""

from __future__ import annotations


class Shares:
    """most: of all tenants together. most_of_one: of each of them."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._held: dict[str, int] = {}
        self.num_held = 0

    def take(self, tenant: str, num: int) -> bool:
        """Whether there is so much more for it, which it holds from now on."""
        held = self._held.get(tenant, 0)
        if num > min(self._most - self.num_held, self._most_of_one - held):
            return False
        self._held[tenant] = held + num
        self.num_held += num
        return True

    def give_back(self, tenant: str, num: int) -> None:
        left = self._held.get(tenant, 0) - num
        assert left >= 0, "given back more than was taken"
        self.num_held -= num
        if left:
            self._held[tenant] = left
        else:
            self._held.pop(tenant, None)
