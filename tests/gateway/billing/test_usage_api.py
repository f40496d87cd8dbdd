"""Usage and costs in OpenAI's shapes: every bucket and group, page by page; tenants see their own usage alone."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.db.billing.adjustments import write_adjustment
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.billing.books import Books, open_books

DAY = 86_400
START = int(datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC).timestamp())


def at(day: int, hour: int = 0, minute: int = 0) -> datetime.datetime:
    return datetime.datetime(2026, 3, day, hour, minute, 30, tzinfo=datetime.UTC)


# One server and one ledger for all: what these tests write is in no bucket that another one looks at.
pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@shared
async def database(module_dsn: str) -> AsyncIterator[Database]:
    async with await Database.connect(module_dsn) as database:
        yield database


@shared
async def server(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminServer]:
    async with serve_admin(database, tmp_path_factory.mktemp("usage_api")) as server:
        yield server


@shared
async def acme(database: Database) -> Books:
    """Write usage of two tenants in March 2026, rolled up; return acme's books."""
    acme = await open_books(database)
    globex = await open_books(database, "globex")
    await acme.set_prices()
    await acme.backdate_prices(at(1) - datetime.timedelta(days=1))
    await acme.write(
        acme.event("req_1", created_at=at(1)),
        acme.event("req_2", created_at=at(1, 5), model="tiny:pirate", adapter_id="adpt", service_tier="batch"),
        acme.event("req_3", created_at=at(3, 5, 7), api_key_id="key_b", service_tier="flex"),
        acme.event("req_4", created_at=at(3, 5, 8), endpoint="/v1/embeddings", completion_tokens=0, cached_tokens=0),
        acme.event("req_4.1", created_at=at(3, 5, 8), endpoint="/v1/embeddings", completion_tokens=0, cached_tokens=0),
        globex.event("req_5", created_at=at(1), completion_tokens=100),
    )
    await acme.roll_up()
    return acme


@shared
async def operator(server: AdminServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client(server.operator_key) as client:
        yield client


async def get_page(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    reply = await client.get(path, params={"start_time": START, "end_time": START + 4 * DAY} | params)
    assert reply.status_code == 200, reply.text
    page: dict[str, Any] = reply.json()
    assert set(page) == {"object", "data", "has_more", "next_page"} and page["object"] == "page"
    assert all(set(each) == {"object", "start_time", "end_time", "results"} for each in page["data"])
    return page


async def test_every_bucket_is_listed_with_the_usage_within_it(acme: Books, operator: httpx.AsyncClient) -> None:
    page = await get_page(operator, "/usage/completions", **{"project_ids[]": acme.project_id})
    assert [(each["start_time"] - START) // DAY for each in page["data"]] == [0, 1, 2, 3]
    assert [each["end_time"] - each["start_time"] for each in page["data"]] == [DAY] * 4
    assert page["data"][1]["results"] == []
    ((cost,),) = await acme.fetch("SELECT sum(cost_nanos)::bigint FROM ledger WHERE request_id IN ('req_1', 'req_2')")
    assert cost
    assert page["data"][0]["results"] == [
        {
            "object": "organization.usage.completions.result",
            "input_tokens": 20,
            "input_cached_tokens": 8,
            "input_uncached_tokens": 12,
            "output_tokens": 10,
            "num_model_requests": 2,
            "cost_nanos": cost,
            "project_id": None,
            "user_id": None,
            "api_key_id": None,
            "model": None,
            "batch": None,
            "service_tier": None,
        }
    ]
    (embedded,) = (await get_page(operator, "/usage/embeddings"))["data"][2]["results"]
    assert (embedded["input_tokens"], embedded["num_model_requests"], "output_tokens" in embedded) == (20, 1, False)


async def test_each_service_tier_has_its_cost(acme: Books, operator: httpx.AsyncClient) -> None:
    """The costs of each tier in the ledger are listed apart."""
    page = await get_page(operator, "/usage/completions", **{"group_by[]": ["service_tier"]})
    found = [
        (each["start_time"], result["service_tier"], result["cost_nanos"])
        for each in page["data"]
        for result in each["results"]
    ]
    ledger = await acme.fetch(
        "SELECT extract(epoch FROM date_trunc('day', created_at, 'UTC'))::bigint, service_tier, "
        "sum(cost_nanos)::bigint FROM ledger WHERE kind = 'usage' AND endpoint <> '/v1/embeddings' "
        "AND created_at >= '2026-03-01Z' AND created_at < '2026-03-05Z' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert found == ledger and len(found) == 3


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"group_by": "model"}, [("tiny", 2), ("tiny:pirate", 1)]),
        ({"group_by[]": ["service_tier"]}, [("batch", 1), ("default", 2)]),
        ({"group_by": "batch"}, [(False, 2), (True, 1)]),
        ({"group_by": "batch", "batch": "true"}, [(True, 1)]),
        ({"group_by": "model", "models": ["tiny"]}, [("tiny", 2)]),
        ({"group_by": "model", "api_key_ids[]": ["key_of_nobody"]}, []),
        ({"group_by": "model", "user_ids": ["user_nobody"]}, []),
        ({"group_by": "user_id"}, [(None, 3)]),
    ],
)
async def test_usage_is_grouped_and_filtered(
    acme: Books, operator: httpx.AsyncClient, params: dict[str, Any], expected: list[tuple[object, int]]
) -> None:
    group = str(params.get("group_by") or params["group_by[]"][0])
    first = (await get_page(operator, "/usage/completions", **params))["data"][0]["results"]
    assert [(each[group], each["num_model_requests"]) for each in first] == expected


async def test_pages_follow_each_other_and_every_width_agrees(acme: Books, operator: httpx.AsyncClient) -> None:
    for width, limit in (("1d", 1), ("1d", 31), ("1h", 7), ("1h", 168), ("1m", 1440)):
        params: dict[str, Any] = {"bucket_width": width, "limit": limit, "project_ids": [acme.project_id]}
        buckets: list[dict[str, Any]] = []
        while True:
            page = await get_page(operator, "/usage/completions", **params)
            assert len(page["data"]) <= limit
            buckets += page["data"]
            assert page["has_more"] == (page["next_page"] is not None)
            if not page["has_more"]:
                break
            params["page"] = page["next_page"]
        starts = [each["start_time"] for each in buckets]
        assert starts == list(range(START, START + 4 * DAY, buckets[0]["end_time"] - START))
        assert sum(result["output_tokens"] for each in buckets for result in each["results"]) == 15


async def test_costs_have_line_items_that_add_up(acme: Books, operator: httpx.AsyncClient) -> None:
    async with acme.database.transaction() as conn:
        await write_adjustment(
            conn,
            acme.organization_id,
            acme.project_id,
            -20,
            reason="test",
            corrects_period=None,
            corrects_request_id=None,
        )
    await acme.roll_up()
    mine: dict[str, Any] = {"project_ids": acme.project_id, "end_time": START + 400 * DAY, "limit": 180}
    whole = [result for page in await _pages(operator, mine) for each in page["data"] for result in each["results"]]
    items = [
        result
        for page in await _pages(operator, mine | {"group_by": "line_item"})
        for each in page["data"]
        for result in each["results"]
    ]
    assert sum(each["amount"]["value_nanos"] for each in whole) == sum(each["amount"]["value_nanos"] for each in items)
    assert {(each["line_item"], each["amount"]["value_nanos"], each["quantity"]) for each in items} >= {
        ("tiny, input", 18, 6),
        ("tiny, cached input", 4, 4),
        ("tiny:pirate, output", 18, 5),
        ("adjustments", -20, None),
    }
    first = whole[0]["amount"]
    assert first == {"value": 86 / 10**9, "currency": "usd", "value_nanos": 86}, (
        "57, and half of it for the batch, rounded up"
    )


async def _pages(client: httpx.AsyncClient, params: dict[str, Any]) -> list[dict[str, Any]]:
    pages = [await get_page(client, "/costs", **params)]
    while pages[-1]["has_more"]:
        pages.append(await get_page(client, "/costs", **params, page=pages[-1]["next_page"]))
    return pages


@pytest.mark.parametrize(
    ("path", "params", "param"),
    [
        ("/usage/completions", {"start_time": None}, "start_time"),
        ("/usage/completions", {"start_time": "yesterday"}, "start_time"),
        ("/usage/completions", {"end_time": START}, "end_time"),
        ("/usage/completions", {"bucket_width": "1w"}, "bucket_width"),
        ("/usage/completions", {"limit": 32}, "limit"),
        ("/usage/completions", {"bucket_width": "1h", "limit": 169}, "limit"),
        ("/usage/completions", {"bucket_width": "1m", "limit": 1441}, "limit"),
        ("/usage/completions", {"limit": 0}, "limit"),
        ("/usage/completions", {"page": "page_x"}, "page"),
        ("/usage/completions", {"page": "page_MQ"}, "page"),
        ("/usage/completions", {"group_by": "color"}, "group_by"),
        ("/usage/completions", {"batch": "yes"}, "batch"),
        ("/usage/embeddings", {"group_by": "batch"}, "group_by"),
        ("/usage/embeddings", {"batch": "true"}, "batch"),
        ("/costs", {"bucket_width": "1h"}, "bucket_width"),
        ("/costs", {"limit": 181}, "limit"),
        ("/costs", {"models": "tiny"}, "models"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(
    operator: httpx.AsyncClient, path: str, params: dict[str, Any], param: str
) -> None:
    wanted = {"start_time": START, "end_time": START + DAY} | params
    reply = await operator.get(path, params={name: value for name, value in wanted.items() if value is not None})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_tenants_see_only_their_own_usage(acme: Books, server: AdminServer, operator: httpx.AsyncClient) -> None:
    made = await operator.post(f"/projects/{acme.project_id}/api_keys", json={"scopes": ["usage"]})
    globex = next(each for each in (await operator.get("/projects")).json()["data"] if each["name"] == "globex")["id"]
    async with server.client(made.json()["value"]) as tenant:
        for path in ("/usage/completions", "/costs"):
            for params in ({}, {"project_ids[]": [globex, acme.project_id]}):
                page = await get_page(tenant, path, group_by="project_id", **params)
                seen = {result["project_id"] for each in page["data"] for result in each["results"]}
                assert seen == {acme.project_id}
            page = await get_page(tenant, path, **{"project_ids[]": globex})
            assert not any(each["results"] for each in page["data"])
        assert (await tenant.get(f"/projects/{acme.project_id}/billing")).status_code == 200
        assert (await tenant.get(f"/projects/{globex}/billing")).status_code == 404
        for path in ("/prices", "/periods", "/periods/2026-03/invoices"):
            assert (await tenant.get(path)).status_code == 403
        refused = await tenant.post(
            f"/projects/{acme.project_id}/credits", json={"amount_nanos": 10**12, "reason": "mine"}
        )
        assert refused.status_code == 403
