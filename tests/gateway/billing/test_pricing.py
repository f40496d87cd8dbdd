"""A row costs what the price book says, rounded once; the schema and the reference agree; reservations suffice."""

from __future__ import annotations

import datetime
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.db.billing.prices import InvalidPriceVersion, list_versions
from gateway.domain.billing.book import Entry, Version, highest_price_of, in_force
from gateway.domain.billing.money import decimal_text
from gateway.domain.billing.pricing import Cost, Rates, cost
from tests.gateway.billing.books import FLAT, NOW, Books

TOKENS = st.integers(0, 10**7)
NANOS = st.integers(0, 10**12)
RATES = st.builds(
    lambda dear, share, output, discount: Rates(dear, dear * share // 100, output, discount),
    NANOS,
    st.integers(0, 100),
    NANOS,
    st.integers(0, 10_000),
)


@pytest.mark.parametrize(
    ("rates", "tokens", "expected"),
    [
        (Rates(3_000_000, 1_000_000, 7_000_000), (6, 4, 5), Cost(18, 4, 35, 57, 57)),
        (Rates(500_000, 0, 0), (1, 0, 0), Cost(1, 0, 0, 1, 1)),  # half a nano is one
        (Rates(499_999, 0, 0), (1, 0, 0), Cost(0, 0, 0, 0, 0)),
        (Rates(500_000, 500_000, 500_000), (1, 1, 1), Cost(1, 0, 1, 2, 2)),  # 1.5: not three times a half
        (Rates(1_000_000, 0, 0, 5_000), (3, 0, 0), Cost(2, 0, 0, 2, 3)),  # 1.5 after the discount
        (Rates(1_000_000, 0, 0, 10_000), (3, 0, 0), Cost(0, 0, 0, 0, 3)),
    ],
)
def test_a_row_is_rounded_once_and_half_up(rates: Rates, tokens: tuple[int, int, int], expected: Cost) -> None:
    assert cost(rates, *tokens) == expected


@given(RATES, TOKENS, TOKENS, TOKENS)
def test_the_costs_of_token_kinds_add_up_and_none_is_off_by_more_than_a_nano(
    rates: Rates, uncached: int, cached: int, output: int
) -> None:
    found = cost(rates, uncached, cached, output)
    assert found.input + found.cached + found.output == found.total <= found.listed + 1
    part = 10_000 - rates.basis_points
    for amount, tokens, nanos in (
        (found.input, uncached, rates.input_nanos),
        (found.cached, cached, rates.cached_input_nanos),
        (found.output, output, rates.output_nanos),
    ):
        assert abs(amount * 10**10 - tokens * nanos * part) <= 10**10


async def test_the_schema_computes_what_the_reference_does(books: Books) -> None:
    rng = random.Random(1)
    cases = [
        (
            *(rng.choice((rng.randrange(10), rng.randrange(10**7))) for _ in range(3)),
            dear := rng.choice((rng.randrange(10), rng.randrange(10**7), rng.randrange(10**12))),
            rng.randint(0, dear),
            rng.randrange(10**12),
            rng.choice((0, rng.randint(0, 10_000))),
        )
        for _ in range(2000)
    ]
    rows = await books.fetch(
        "SELECT c.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], "
        "$7::integer[]) WITH ORDINALITY AS x (u, c, o, ui, ci, oi, d, n) CROSS JOIN LATERAL "
        "cost_of(x.u, x.c, x.o, x.ui, x.ci, x.oi, x.d) c ORDER BY x.n",
        *map(list, zip(*cases, strict=True)),
    )
    for case, row in zip(cases, rows, strict=True):
        assert Cost(*row) == cost(Rates(*case[3:]), *case[:3]), case  # type: ignore[arg-type]


MODELS = ("tiny", "tiny:pirate", "tiny:poet", "large", "large:pirate")
CLASSES = ("none", "default", "big")
TIERS = ("default", "flex", "batch")


def random_book(rng: random.Random) -> list[Entry]:
    entries = {}
    for _ in range(rng.randint(0, 12)):
        dear = rng.randrange(10**9)
        entry = Entry(
            rng.choice(("*", *MODELS)),
            rng.choice(("*", *CLASSES)),
            rng.choice(("*", *TIERS)),
            dear,
            rng.randint(0, dear),
            rng.randrange(10**9),
        )
        entries[entry.identity] = entry
    return list(entries.values())


async def test_the_schema_finds_the_entry_that_the_reference_does(books: Books) -> None:
    rng = random.Random(2)
    for _ in range(12):
        stored = await books.set_prices(random_book(rng), {books.project_id: rng.randint(1, 9999)})
        cases = [(model, each, tier) for model in MODELS for each in CLASSES for tier in TIERS]
        rows = await books.fetch(
            "SELECT p.version, p.input_nanos, p.cached_input_nanos, p.output_nanos, p.basis_points "
            "FROM unnest($3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS x (model, class, tier, n) "
            "CROSS JOIN LATERAL price_of($1, $2, x.model, x.class, x.tier, clock_timestamp()) p ORDER BY x.n",
            books.organization_id,
            books.project_id,
            *map(list, zip(*cases, strict=True)),
        )
        for case, (version, *rates) in zip(cases, rows, strict=True):
            assert version == stored.version.version
            assert Rates(*rates) == stored.version.rates(books.project_id, *case), case  # type: ignore[arg-type]


@given(st.randoms(use_true_random=False), TOKENS, TOKENS, TOKENS, st.sampled_from(MODELS), st.sampled_from(TIERS))
def test_a_reservation_covers_the_bill_whatever_changes_meanwhile(
    rng: random.Random, uncached: int, cached: int, output: int, model: str, tier: str
) -> None:
    """The price version, the adapter's class, the cached tokens and the completion tokens change meanwhile."""
    book = [
        Version(number, "usd", number * 10**9, tuple(random_book(rng)), {"proj": rng.randint(0, 10_000)})
        for number in range(1, 6)
    ]
    around = in_force(book, 2_500_000_000, 4_500_000_000)
    assert [version.version for version in around] == [2, 3, 4]
    most = highest_price_of(around, "proj", model, tier).highest_cost(uncached + cached, output)
    for version in around:
        for adapter_class in ("none",) if ":" not in model else ("default", "big"):
            if adapter_class in version.adapter_classes(model):
                rates = version.rates("proj", model, adapter_class, tier)
                assert cost(rates, uncached, cached, output).total <= most


async def test_a_row_has_the_price_that_was_in_force_when_it_was_created(books: Books) -> None:
    await books.set_prices()
    await books.backdate_prices(NOW - datetime.timedelta(hours=1))
    rows = [
        books.event("req_before", created_at=NOW - datetime.timedelta(hours=1, microseconds=1)),
        books.event("req_after", created_at=NOW - datetime.timedelta(hours=1)),
        books.event("req_flex", service_tier="flex", model="tiny:pirate", adapter_id="adpt_gone"),
    ]
    await books.write(*rows)
    found = await books.fetch(
        "SELECT request_id, price_version, input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, "
        "list_cost_nanos, adapter_class, service_tier FROM ledger ORDER BY request_id"
    )
    assert found == [
        ("req_after", 1, 18, 4, 35, 57, 57, "none", "default"),
        ("req_before", None, 0, 0, 0, 0, 0, "none", "default"),
        ("req_flex", 1, 18, 4, 35, 57, 57, "default", "flex"),
    ]


async def test_a_price_version_takes_effect_after_its_predecessor_and_never_in_the_past(books: Books) -> None:
    first = await books.set_prices()
    await books.write(books.event("req_1", created_at=datetime.datetime.now(datetime.UTC)))
    second = await books.set_prices([])
    async with books.database.acquire() as conn:
        assert [each.version.version for each in await list_versions(conn, books.organization_id)] == [2, 1]
    assert second.version.effective_ns - first.version.effective_ns >= 20 * 10**9
    for seconds in (0, 15):
        with pytest.raises(InvalidPriceVersion) as refused:
            wanted = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
            await books.set_prices([FLAT], effective_at=wanted)
        assert refused.value.field == "effective_at"
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    assert (await books.set_prices([FLAT], effective_at=later)).version.version == 3
    with pytest.raises(InvalidPriceVersion, match="it must follow version 3"):
        await books.set_prices([FLAT])


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (-1, "-0.000000001"),
        (12_500_000_000, "12.50"),
        (-12_345_678_901, "-12.345678901"),
        (10**18, "1000000000.00"),
    ],
)
def test_money_is_written_exactly(nanos: int, text: str) -> None:
    assert decimal_text(nanos) == text


def test_a_batch_costs_half_unless_the_book_prices_batches() -> None:
    for tier in ("*", "default"):
        entries = (Entry("tiny", "*", tier, 11, 6, 20), Entry("tiny", "*", "flex", 1, 1, 1))
        version = Version(1, "usd", 0, entries, {"p": 100})
        assert version.rates("p", "tiny:pirate", "default", "batch") == Rates(5, 3, 10, 100)
        priced = Version(2, "usd", 0, (*entries, Entry("*", "*", "batch", 8, 8, 8)), {})
        assert priced.rates("p", "tiny:pirate", "default", "batch") == Rates(8, 8, 8, 0)
        assert priced.rates("p", "tiny:pirate", "default", "default") == Rates(11, 6, 20, 0)
    assert Version(1, "usd", 0, (), {}).rates("p", "tiny", "none", "batch") == Rates()
