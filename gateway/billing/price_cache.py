"""The price books as a gateway remembers them, so that limits can ask for prices without I/O. Knows no SQL.

A new version takes effect some time after it was set, and the change feed brings it within a second: every gateway
knows the new version before it takes effect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

from gateway.db.changes import Change
from gateway.domain.billing.book import Book, Version, highest_price_of, in_force
from gateway.domain.billing.money import DEFAULT_CURRENCY
from gateway.domain.billing.pricing import Rates
from gateway.domain.limits.work import Price
from gateway.support.worker import Worker

BEHIND_NS = 1_000_000_000
AHEAD_NS = 10_000_000_000
"""Nanoseconds by which a request's admission may differ from the look-up of its price.

A request waits for limits between the two, and clocks are estimates. Around a change of prices, limits therefore
reserve by the higher ones.
"""

MAX_KNOWN = 10_000
RETRY_S = (0.1, 2.0)
"""The first and the longest pause, in seconds, before another try to load prices."""


class PriceCache:
    """The `Prices` of limits, between `start` and `stop`. Subscribe `changed` to the change feed."""

    def __init__(self, load: Callable[[], Awaitable[Mapping[str, Book]]]) -> None:
        """Start without prices. load: returns the book of every organization."""
        self._load = load
        self._books: Mapping[str, Book] = {}
        self._known: dict[tuple[str, str, str, str, tuple[int, ...]], Price] = {}
        self._changed = asyncio.Event()
        self._worker = Worker(
            self._load_again, math.inf, name="prices", wake=self._changed, rests_first=True, retry_s=RETRY_S
        )

    async def start(self) -> None:
        """Load the prices of all organizations. Without prices no cost can be bounded.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        self._books = await self._load()
        self._worker.start()

    async def stop(self) -> None:
        """Stop following the price books."""
        await self._worker.stop()

    def changed(self, change: Change | None) -> None:
        """Load the price books again in the background if the change may be about prices; None: it may be."""
        if change is None or change.table == "price_versions":
            self._changed.set()

    def currency(self, organization_id: str) -> str:
        """Return the currency of an organization's prices."""
        book = self._books.get(organization_id, ())
        return book[-1].currency if book else DEFAULT_CURRENCY

    def highest_price(
        self, organization_id: str, project_id: str, model: str, service_tier: str, instant_ns: int
    ) -> Price:
        """Return the highest price that may apply to a request that is admitted at this instant."""
        versions = self._versions_in_force(organization_id, instant_ns)
        key = (organization_id, project_id, model, service_tier, tuple(each.version for each in versions))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = highest_price_of(versions, project_id, model, service_tier)
        return known

    def exact_rates(
        self, organization_id: str, project_id: str, model: str, service_tier: str, instant_ns: int
    ) -> Rates | None:
        """Return the rates by which a request that was admitted at an instant will be billed.

        Return None where the rates depend on the price class of the request's adapter, or where the organization has no
        prices.
        """
        versions = in_force(self._books.get(organization_id, ()), instant_ns, instant_ns)
        found = [version for version in versions if version.effective_ns <= instant_ns]
        if not found:
            return None
        of_classes = {
            found[-1].rates(project_id, model, each, service_tier) for each in found[-1].adapter_classes(model)
        }
        return of_classes.pop() if len(of_classes) == 1 else None

    def _versions_in_force(self, organization_id: str, instant_ns: int) -> list[Version]:
        book = self._books.get(organization_id, ())
        return list(in_force(book, instant_ns - BEHIND_NS, instant_ns + AHEAD_NS))

    async def _load_again(self) -> None:
        self._books = await self._load()
        self._known.clear()  # the number of a version that was withdrawn is the next one's
