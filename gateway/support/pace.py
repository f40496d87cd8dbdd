"""A rate of requests per tenant, for work of a gateway that costs nobody tokens. Each gateway process has its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.domain.errors import LimitReached

MAX_TENANTS = 10_000


class Pace:
    """A rate of requests by the generic cell rate algorithm (ITU-T I.371).

    per_second requests pass in a second, up to `burst` of them at once. what, whose: the object and the subject of the
    refusal's sentence.
    """

    def __init__(
        self,
        per_second: float,
        burst: float,
        *,
        what: str,
        whose: str = "This project",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._whose = whose
        self._interval_s = 1 / per_second
        self._ahead_s = burst / per_second
        self._clock = clock
        self._busy_until_s: dict[str, float] = {}

    def take(self, tenant: str, num_requests: float = 1.0) -> None:
        """Count requests of a tenant. A single call is never refused for its size alone.

        Raises LimitReached: when requests come faster than the pace allows.
        """
        self._take_requests(tenant, num_requests, self._ahead_s)

    def in_parts(self, tenant: str, most: float) -> Callable[[float], None]:
        """Return a function that counts one request of a tenant part by part, and raises as `take`.

        most: the most that the request's parts may add up to.

        The first part is counted as by `take`. Further parts may exceed the burst up to `most`, so that a request whose
        first part was accepted is not refused for its size.
        """
        ahead_s = self._ahead_s

        def count(num_requests: float) -> None:
            nonlocal ahead_s
            self._take_requests(tenant, num_requests, ahead_s)
            ahead_s = max(self._ahead_s, most * self._interval_s)

        return count

    def _take_requests(self, tenant: str, num_requests: float, ahead_s: float) -> None:
        now_s = self._clock()
        busy_until_s = max(now_s, self._busy_until_s.get(tenant, now_s))
        after_s = busy_until_s + num_requests * self._interval_s
        if after_s - now_s > ahead_s and busy_until_s > now_s:
            raise LimitReached(
                f"{self._whose} has sent too many requests for {self._what}. Send them more slowly.",
                retry_after_s=after_s - now_s - self._ahead_s,
            )
        self._set_busy_until(tenant, after_s, now_s)

    def charge(self, tenant: str, num_requests: float) -> None:
        """Count further requests of a tenant without refusing them; later requests wait the longer."""
        now_s = self._clock()
        busy_until_s = max(now_s, self._busy_until_s.get(tenant, now_s))
        self._set_busy_until(tenant, busy_until_s + num_requests * self._interval_s, now_s)

    def _set_busy_until(self, tenant: str, busy_until_s: float, now_s: float) -> None:
        if len(self._busy_until_s) >= MAX_TENANTS:
            self._busy_until_s = {each: until for each, until in self._busy_until_s.items() if until > now_s}
        self._busy_until_s[tenant] = busy_until_s
