"""The requests of one pool that wait at this gateway for a first replica.

Their number and their time are bounded, and they leave in the order in which they came.

A request that waits has its reservation and nothing else: one whose client leaves is as if it had never been sent.
Knows neither rows nor who starts replicas.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from gateway.domain.errors import NoReplicaYet

MAX_WAITING = 2048
"""The most requests of one pool that wait at one gateway."""
MAX_OF_TENANT = 1024
"""The most requests of one tenant among the waiting ones."""

FULL_RETRY_S = 5.0
"""The least `Retry-After` of a refused request, in seconds."""
LINE_EVERY_S = 5.0
"""Seconds between two lines of batches that are taken while no replica is there."""

WANTED_FOR_S = 5.0
"""Seconds for which a request that was answered elsewhere still causes a first replica to start."""

RECHECK_S = 0.5
"""Seconds after which a waiting request looks for a replica again without a notice."""


class WaitTerms(msgspec.Struct, frozen=True):
    """The terms on which requests wait for a pool whose replicas start by themselves."""

    max_wait_s: float
    """The longest time that a request waits."""
    start_s: float
    """The seconds that the last start of a first replica took."""


def _do_nothing() -> None:
    """Do nothing: nobody has to be told that a request waits."""


class WaitingRoom:
    """The requests that wait for one pool. Without terms the room is closed, so that nobody waits."""

    def __init__(self, name: str, wanted: Callable[[], None] = _do_nothing) -> None:
        """Make a closed room. name: the pool's name. wanted: called when a request begins to wait."""
        self.num_waiting = 0
        self.used_s = float("-inf")
        """When a request came last, on the monotonic clock, whether or not it had to wait."""
        self._name = name
        self._wanted = wanted
        self._terms: WaitTerms | None = None
        self._line_s = self._wanted_s = float("-inf")
        self._of_tenant: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True if a request may wait, since a replica of the pool starts by itself."""
        return self._terms is not None

    def open(self, terms: WaitTerms | None) -> None:
        """Let requests wait on these terms from now on; None: let none wait, and refuse those that do."""
        if terms != self._terms:
            self._terms = terms
            self._changed.set()

    def notify(self) -> None:
        """Have the first waiting request look for a replica: something has changed."""
        self._changed.set()

    def use(self) -> None:
        """Record the time of a request, whether or not it has to wait."""
        self.used_s = time.monotonic()

    def want(self) -> None:
        """Have a first replica started though no request waits: the request at hand is answered elsewhere."""
        self.use()
        is_new = self.num_wanted == 0
        self._wanted_s = time.monotonic()
        if is_new:
            self._wanted()

    @property
    def num_wanted(self) -> int:
        """The requests for which a first replica is to start: those that wait, or one that went elsewhere just now."""
        return self.num_waiting or int(time.monotonic() - self._wanted_s < WANTED_FOR_S)

    def take_line(self) -> bool:
        """Tell whether a line of a batch may be taken while no replica is there: one in `LINE_EVERY_S`."""
        now_s = time.monotonic()
        if now_s - self._line_s < LINE_EVERY_S:
            return False
        self._line_s = now_s
        return True

    def refusal(self, why: str, retry_after_s: float) -> NoReplicaYet:
        """Return the error of a request that is not served.

        why: the reason in words. retry_after_s: the seconds after which the client should send the request again.
        """
        message = f"The model '{self._name}' has no running engine, and one is starting: {why}. Send the request again."
        return NoReplicaYet(message, retry_after_s=retry_after_s)

    async def wait(self, tenant: str, is_there: Callable[[], bool]) -> None:
        """Return once a replica can take the tenant's request, and the requests that waited before have left.

        is_there: tells whether a replica takes requests.

        Raises NoReplicaYet: when too many requests wait, or no replica takes the request in time.
        """
        terms = self._terms
        if terms is None:
            return
        if self.num_waiting >= MAX_WAITING or self._of_tenant[tenant] >= MAX_OF_TENANT:
            raise self.refusal("too many requests wait for it", max(terms.start_s, FULL_RETRY_S))
        began_s = time.monotonic()
        self.num_waiting += 1
        self._of_tenant[tenant] += 1
        self.use()
        if self.num_waiting == 1:
            self._wanted()
        try:
            async with asyncio.timeout(terms.max_wait_s), self._turn:
                await self._first_in_line(is_there)
        except TimeoutError:
            left_s = terms.start_s - (time.monotonic() - began_s)
            raise self.refusal(f"it was not ready within {terms.max_wait_s:g} s", max(left_s, FULL_RETRY_S)) from None
        finally:
            self.num_waiting -= 1
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    async def _first_in_line(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            if self._terms is None:
                return  # which has the request refused as any that finds no replica
            self._changed.clear()
            try:
                async with asyncio.timeout(RECHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
