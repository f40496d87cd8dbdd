"""One of the attempts at a request is billed, in whatever order the ledger learns of them."""

from __future__ import annotations

import datetime
import itertools

import pytest

from gateway.db.ledger.rollups import roll_up
from gateway.db.ledger.usage import SUPERSEDED, UsageEvent
from gateway.db.limits.limits import list_limits, set_limit
from gateway.domain.limits.limit import Limit
from tests.gateway.billing.books import FLAT, NOW, Books

WOKEN, SEEN, GIVEN_UP, ANSWERED = range(4)
"""The reports: by the first attempt's engine once it wakes; by the gateway that lost this engine, before and after
it tried again; by the second attempt's engine."""

ORDERS = [order for order in itertools.permutations(range(4)) if order.index(SEEN) < order.index(GIVEN_UP)]


def usage_report(books: Books, what: int) -> UsageEvent:
    match what:
        case 0:
            return books.event("req_1", finish_reason="abort", completion_tokens=9)
        case 1:
            return books.event("req_1", finish_reason="error", completion_tokens=2)
        case 2:
            unbilled = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0, "discarded_tokens": 2}
            return books.event("req_1", finish_reason=SUPERSEDED, **unbilled)
        case _:
            return books.event("req_1", attempt=1)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(map(str, order)))
async def test_only_the_attempt_that_answered_is_billed_in_any_order_of_reports(
    books: Books, order: tuple[int, ...]
) -> None:
    await books.set_prices()
    await books.backdate_prices(NOW - datetime.timedelta(days=1))
    limit = Limit("", books.organization_id, books.project_id, None, None, "requests", "day", 100, True)
    async with books.database.acquire() as conn:
        await set_limit(conn, limit)
    for what in order:
        await books.write(usage_report(books, what))
        await books.write(usage_report(books, what))  # once more, as a gateway does that did not hear the answer
    async with books.database.acquire() as conn:
        while await roll_up(conn):
            pass
        billed = await conn.fetchrow(
            "SELECT sum(prompt_tokens) AS prompt, sum(cached_tokens) AS cached, sum(completion_tokens) AS completion,"
            " sum(cost_nanos) AS cost FROM ledger"
        )
        summed = await conn.fetchrow(
            "SELECT sum(num_requests) AS requests, sum(prompt_tokens) AS prompt, sum(completion_tokens) AS completion,"
            " sum(cost_nanos) AS cost FROM period_sums"
        )
        (found,) = await list_limits(conn, books.organization_id, books.project_id)
        attempts = await conn.fetch("SELECT attempt, finish_reason FROM usage_attempts ORDER BY attempt")
    cost = (6 * FLAT.input_nanos + 4 * FLAT.cached_input_nanos + 5 * FLAT.output_nanos) // 1_000_000
    assert tuple(billed) == (10, 4, 5, cost)
    assert tuple(summed) == (1, 10, 5, cost)
    assert found.used == 1
    assert [tuple(each) for each in attempts] == [(0, SUPERSEDED), (1, "stop")]
