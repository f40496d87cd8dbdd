"""Prices, credits, adjustments, periods and invoices over HTTP: a wrong field is named, a change is recorded."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.pool import Database
from tests.gateway.bases import put_adapter
from tests.gateway.billing.books import THIS_MONTH, Books, instant_in, month_before

ENTRY = {"input_nanos_per_million": 3_000_000, "output_nanos_per_million": 7_000_000}
LAST = month_before(THIS_MONTH)
MONTH = f"{LAST:%Y-%m}"


@pytest.fixture
async def books(operator: httpx.AsyncClient, acme: str, database: Database) -> Books:
    """Return the `Books` of a tenant that had charged usage last month."""
    async with database.acquire() as conn:
        organization_id = await conn.fetchval("SELECT organization_id FROM projects")
    books = Books(database, organization_id, acme.removeprefix("/projects/"))
    assert (await operator.post("/prices", json={"currency": "eur", "entries": [ENTRY]})).status_code == 200
    await books.backdate_prices(instant_in(LAST, 1))
    await books.write(books.event("req_1", created_at=instant_in(LAST)))
    await books.roll_up()
    return books


def entry(**changes: Any) -> dict[str, Any]:
    return ENTRY | changes


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"currency": "EUR", "entries": []}, "currency"),
        ({"currency": "usd", "entries": []}, "currency"),
        ({"entries": [entry(cached_input_nanos_per_million=3_000_001)]}, "entries[0].cached_input_nanos_per_million"),
        ({"entries": [entry(), entry(model="x"), entry()]}, "entries[2]"),
        ({"entries": [entry(service_tier="a tier")]}, "entries[0].service_tier"),
        ({"entries": [entry(service_tier="gold")]}, "entries[0].service_tier"),
        ({"entries": [entry(color="red")]}, "entries[0].color"),
        ({"entries": [], "discounts": [{"project_id": "proj_x", "basis_points": 1}]}, "discounts[0].project_id"),
        ({"entries": [], "effective_at": 1}, "effective_at"),
    ],
)
async def test_wrong_prices_are_named(
    operator: httpx.AsyncClient, books: Books, body: dict[str, Any], param: str
) -> None:
    reply = await operator.post("/prices", json={"currency": "eur"} | body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert len((await operator.get("/prices")).json()["data"]) == 1


async def test_prices_of_the_future_can_be_withdrawn_and_nothing_else(
    operator: httpx.AsyncClient, books: Books, database: Database
) -> None:
    future = {"currency": "eur", "entries": [ENTRY], "effective_at": 2**32}
    set_now = (await operator.get("/prices")).json()["data"]
    made = (await operator.post("/prices", json=future)).json()
    gone = await operator.delete(f"/prices/{made['id']}")
    assert (gone.status_code, gone.json()["deleted"]) == (200, True)
    assert (await operator.get("/prices")).json()["data"] == set_now
    assert (await operator.delete(f"/prices/{made['id']}")).status_code == 404
    kept = await operator.delete(f"/prices/{set_now[0]['id']}")
    assert (kept.status_code, kept.json()["error"]["code"]) == (409, "prices_in_force")
    (row, *_) = (await operator.get("/audit_logs")).json()["data"]
    assert row["type"] == "prices.withdrawn"
    for table in ("prices", "price_versions"):
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await books.fetch(f"DELETE FROM {table}")


async def test_a_parameter_that_is_given_twice_is_refused(operator: httpx.AsyncClient, books: Books) -> None:
    twice = await operator.get("/costs?start_time=1&start_time=5")
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "start_time")
    lists = "group_by=project_id&group_by=api_key_id&group_by[]=line_item&group_by[]=line_item"
    assert (await operator.get(f"/costs?start_time=1&{lists}")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"corrects_period": f"{THIS_MONTH:%Y-%m}"}, "corrects_period"),
        ({"corrects_period": "2026-13"}, "corrects_period"),
        ({"corrects_request_id": "req_of_nobody"}, "corrects_request_id"),
        ({"reason": " "}, "reason"),
        ({"reason": "a\u202eb"}, "reason"),
    ],
)
async def test_wrong_adjustments_are_named(
    operator: httpx.AsyncClient, acme: str, books: Books, body: dict[str, Any], param: str
) -> None:
    wanted = {"direction": "refund", "amount_nanos": 5, "reason": "an outage"} | body
    reply = await operator.post(f"{acme}/adjustments", json=wanted)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_month_goes_from_open_to_invoiced_and_each_step_is_on_record(
    operator: httpx.AsyncClient, acme: str, books: Books
) -> None:
    early = await operator.post(f"/periods/{MONTH}/invoices")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "period_open")
    for period, status in (("2026-1", 404), ("x", 404), (f"{THIS_MONTH:%Y-%m}", 409)):
        assert (await operator.post(f"/periods/{period}/close")).status_code == status
    draft = (await operator.get(f"{acme}/invoices/{MONTH}")).json()
    assert (draft["number"], draft["currency"], draft["due_nanos"]) == (None, "eur", 65)
    await operator.post(f"{acme}/credits", json={"amount_nanos": 60, "reason": "welcome"})
    closed = (await operator.post(f"/periods/{MONTH}/close")).json()
    assert (closed["state"], closed["cost_nanos"], closed["num_requests"]) == ("closed", 65, 1)
    assert (await operator.post(f"/periods/{MONTH}/close")).json() == closed
    issued = (await operator.post(f"/periods/{MONTH}/invoices")).json()
    assert (await operator.post(f"/periods/{MONTH}/invoices")).json() == issued
    assert (await operator.get(f"/periods/{MONTH}/invoices")).json() == issued
    assert (issued["data"][0]["credit_nanos"], issued["data"][0]["due_nanos"]) == (60, 5)
    refund = {"direction": "refund", "amount_nanos": 5, "reason": "an outage", "corrects_request_id": "req_1"}
    made = (await operator.post(f"{acme}/adjustments", json=refund)).json()
    assert (made["cost_nanos"], made["corrects_period"]) == (-5, MONTH)
    assert (await operator.get(f"{acme}/adjustments")).json()["data"] == [made]
    billing = (await operator.post(f"{acme}/billing", json={"mode": "prepaid"})).json()
    assert billing["balance_nanos"] == 5  # a refund that no credit was drawn for
    assert (await operator.get(f"{acme}/billing")).json() == billing
    (limit,) = (await operator.get(f"{acme}/limits")).json()["data"]
    assert (limit["id"], limit["free"]) == (billing["limit_id"], 5)
    kept = await operator.delete(f"{acme}/limits/{limit['id']}")
    assert (kept.status_code, kept.json()["error"]["code"]) == (409, "limit_is_balance")
    rows = (await operator.get("/audit_logs")).json()["data"]
    assert [row["type"] for row in reversed(rows)] == [
        "project.created",
        "prices.set",
        "credit.granted",
        "period.closed",
        "period.invoiced",
        "adjustment.created",
        "billing.updated",
    ]


async def test_an_invoice_is_a_page_that_may_run_nothing(operator: httpx.AsyncClient, acme: str, books: Books) -> None:
    page = await operator.get(f"{acme}/invoices/{MONTH}", params={"format": "html"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "0.000000065" in page.text
    wrong = await operator.get(f"{acme}/invoices/{MONTH}", params={"format": "pdf"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "format")


async def test_an_adapter_has_a_price_class_that_its_usage_is_recorded_with(
    operator: httpx.AsyncClient, acme: str, books: Books
) -> None:
    path = f"{acme}/adapters/pirate/price_class"
    assert (await operator.post(path, json={"price_class": "big"})).status_code == 404
    async with books.database.acquire() as conn:
        adapter, _ = await put_adapter(conn, books.project_id, "pirate", digest="a" * 64, rank=8, size_bytes=1)
    assert (await operator.get(path)).json()["price_class"] == "default"
    for wrong in ("none", "*", "a class"):
        reply = await operator.post(path, json={"price_class": wrong})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "price_class")
    assert (await operator.post(path, json={"price_class": "big"})).json()["price_class"] == "big"
    await books.write(books.event("req_2", model="tiny:pirate", adapter_id=adapter.id))
    assert await books.value("SELECT adapter_class FROM ledger WHERE request_id = 'req_2'") == "big"
