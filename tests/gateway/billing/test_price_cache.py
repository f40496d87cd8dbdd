"""The prices that a gateway caches equal what the ledger will bill, where only one price is possible."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.billing.price_cache import PriceCache
from gateway.domain.billing.book import Book, Entry, Version
from gateway.domain.billing.pricing import Rates


def version(number: int, effective_ns: int, *entries: tuple[str, str, int]) -> Version:
    made = tuple(Entry(model, of_class, "*", nanos, nanos, nanos) for model, of_class, nanos in entries)
    return Version(number, "usd", effective_ns, made, {"proj_less": 5_000})


async def test_rates_are_those_of_the_instant_and_unknown_where_they_depend_on_the_adapter() -> None:
    book = (version(1, 0, ("*", "*", 5)), version(2, 100, ("*", "*", 7), ("*", "big", 9), ("base", "none", 3)))

    async def load() -> Mapping[str, Book]:
        return {"org": book}

    prices = PriceCache(load)
    assert prices.exact_rates("org", "proj", "base", "default", 50) is None, "no book was read"
    await prices.start()
    try:
        assert prices.exact_rates("org", "proj", "base:support", "default", 50) == Rates(5, 5, 5)
        assert prices.exact_rates("org", "proj", "base", "default", 100) == Rates(3, 3, 3)
        assert prices.exact_rates("org", "proj_less", "base", "default", 100) == Rates(3, 3, 3, 5_000)
        assert prices.exact_rates("org", "proj", "base:support", "default", 100) is None, "its class decides"
        assert prices.exact_rates("other", "proj", "base", "default", 100) is None
    finally:
        await prices.stop()
