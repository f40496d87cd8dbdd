"""The queue of logins whose passwords are being hashed or wait to be: short, and never filled by one client alone.

Hashing is expensive on purpose, so a login that finds the queue full is refused instead of making everybody wait. Knows
nothing about passwords.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.domain.errors import TooManyAttempts
from gateway.domain.tenancy.addresses import client_of

MAX_WAITING = 8
RETRY_AFTER_S = 1.0


class LoginQueue:
    """The places of one gateway process: num_at_once logins are hashed, and MAX_WAITING wait behind them.

    One client takes at most half of the places.
    """

    def __init__(self, num_at_once: int) -> None:
        self._num_places = num_at_once + MAX_WAITING
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, address: str) -> Iterator[None]:
        """Hold a place in the queue for the client at this address until the context is left.

        Raises TooManyAttempts: when the queue is full, or the client has half of its places.
        """
        client = client_of(address)
        if self._taken.total() >= self._num_places or self._taken[client] >= self._num_places // 2:
            raise TooManyAttempts(
                "Too many people are logging in at once. Try again in a moment.", retry_after_s=RETRY_AFTER_S
            )
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]
