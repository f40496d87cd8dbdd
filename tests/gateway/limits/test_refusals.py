"""A refused client can look up the reason; stored refusals are bounded, and hold nothing of the requests' content."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.db.ledger.refusals import MAX_PER_PROJECT, MAX_REQUEST_IDS, RETENTION, drop_old_refusals, list_refusals
from gateway.db.organization.keys import create_key, revoke_key
from gateway.db.pool import Database
from gateway.domain.errors import GatewayError, InvalidApiKey, InvalidRequest, Overloaded
from gateway.domain.tenancy.keys import new_key
from gateway.observability.refusals import MAX_KINDS, MAX_KINDS_OF_STRANGERS, Refusals, RefusedRequest
from tests.gateway.admin_server import serve_admin
from tests.gateway.billing.books import Books, open_books
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

SECRET = "my aunt's recipe"


@pytest.fixture
async def books(database: Database) -> Books:
    return await open_books(database)


@pytest.fixture
def lost() -> Counter:
    return Counter("lost", "Lost.", registry=CollectorRegistry())


@pytest.fixture
def refusals(database: Database, lost: Counter) -> Refusals:
    """Return refusals that are written only when a test calls `flush`."""
    return Refusals(database, lost, PATIENCE_S)


def refused_request(books: Books, request_id: str, error: GatewayError, **changes: Any) -> RefusedRequest:
    values: dict[str, Any] = {
        "request_id": request_id,
        "organization_id": books.organization_id,
        "project_id": books.project_id,
        "api_key_id": "key_a",
        "key_sha256": None,
        "endpoint": "/v1/completions",
        "model": "tiny",
        "error": error,
    }
    return RefusedRequest(**(values | changes))


async def stored_refusals(books: Books, limit: int = 5000) -> list[Any]:
    async with books.database.acquire() as conn:
        return await list_refusals(conn, books.organization_id, project_ids=None, before=2**62, limit=limit)


async def test_equal_refusals_within_a_minute_are_one_row_over_all_gateways(
    books: Books, refusals: Refusals, lost: Counter
) -> None:
    other = Refusals(books.database, lost, PATIENCE_S)
    error = Overloaded("No engine can take the request now.")
    for number in range(200):
        (refusals if number % 2 else other).add(refused_request(books, f"req_{number}", error))
    refusals.add(refused_request(books, "req_else", error, model="tiny:pirate"))
    await refusals.flush()
    await other.flush()
    rows = {row.model: row for row in await stored_refusals(books)}
    # A minute may have ended in between; then there are two rows of them.
    assert sum(row.num for row in await stored_refusals(books)) == 201
    assert rows["tiny"].message == error.message and len(rows["tiny"].request_ids) <= MAX_REQUEST_IDS
    assert rows["tiny:pirate"].request_ids == ["req_else"]


async def test_memory_is_bounded_and_refusals_without_room_are_counted(
    books: Books, refusals: Refusals, lost: Counter
) -> None:
    for number in range(MAX_KINDS_OF_STRANGERS + 50):
        strange = {"organization_id": "", "project_id": "", "key_sha256": number.to_bytes(32)}
        refusals.add(refused_request(books, f"req_s{number}", InvalidApiKey("Incorrect."), **strange))
    assert lost._value.get() == 50
    for number in range(MAX_KINDS):
        refusals.add(refused_request(books, f"req_{number}", InvalidRequest("Wrong."), model=f"m{number}"))
    assert lost._value.get() == 50 + MAX_KINDS_OF_STRANGERS
    await refusals.flush()
    assert len(await stored_refusals(books)) == MAX_KINDS - MAX_KINDS_OF_STRANGERS, "and none of keys that nobody has"


async def test_each_projects_newest_refusals_are_kept_for_a_week(books: Books, refusals: Refusals) -> None:
    globex = await open_books(books.database, "globex")
    refusals.add(refused_request(globex, "req_globex", InvalidRequest("Wrong.")))
    await refusals.flush()
    for number in range(MAX_PER_PROJECT + 100):
        refusals.add(refused_request(books, f"req_{number}", InvalidRequest("Wrong."), model=f"m{number}"))
        if number % 500 == 499:
            await refusals.flush()
    await refusals.flush()
    rows = await stored_refusals(books)
    assert sum(row.project_id == books.project_id for row in rows) == MAX_PER_PROJECT
    assert int(rows[0].model[1:]) >= MAX_PER_PROJECT, "of those that were written last"
    assert rows[-1].project_id == globex.project_id
    async with books.database.acquire() as conn:
        await conn.execute("UPDATE refusals SET created_at = created_at - $1::interval", RETENTION)
        await drop_old_refusals(conn)
        assert await conn.fetchval("SELECT count(*) FROM refusals") == 0


async def test_a_key_that_was_good_once_leads_to_its_project(books: Books, refusals: Refusals) -> None:
    made = new_key()
    async with books.database.acquire() as conn:
        key = await create_key(
            conn,
            organization_id=books.organization_id,
            project_id=books.project_id,
            name="old",
            public=made.public,
            sha256=made.sha256,
            scopes=["inference"],
        )
        assert key is not None
        await revoke_key(conn, books.project_id, key.id)
    stranger = {"organization_id": "", "project_id": "", "api_key_id": ""}
    refusals.add(refused_request(books, "req_1", InvalidApiKey("Incorrect."), **stranger, key_sha256=made.sha256))
    await refusals.flush()
    (row,) = await stored_refusals(books)
    assert (row.project_id, row.api_key_id, row.code) == (books.project_id, key.id, "invalid_api_key")


async def test_lists_are_paged_by_ids_that_tell_nothing_of_others(
    books: Books, refusals: Refusals, tmp_path: Path
) -> None:
    globex, theirs = await open_books(books.database, "globex"), await open_books(books.database, "theirs", "other")
    for number in range(5):
        for each in (books, globex, theirs):
            each_id = f"req_{each.project_id}_{number}"
            refusals.add(refused_request(each, each_id, InvalidRequest("Wrong."), model=f"m{number}"))
            await refusals.flush()

    async def listed(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
        found, after = [], {}
        while True:
            page = (await client.get(path, params={"limit": 2} | after)).json()
            found += page["data"]
            if not page["has_more"]:
                return found
            after = {"after": page["last_id"]}

    async with serve_admin(books.database, tmp_path) as server, server.client(server.operator_key) as operator:
        path = f"/projects/{books.project_id}/refusals"
        mine, others = await listed(operator, path), await listed(operator, f"/projects/{globex.project_id}/refusals")
        assert [each["model"] for each in mine] == [f"m{number}" for number in (4, 3, 2, 1, 0)]
        both = await listed(operator, "/refusals")
        assert [each["model"] for each in both] == [f"m{number}" for number in (4, 4, 3, 3, 2, 2, 1, 1, 0, 0)]
        ids = [each["id"] for each in both]
        assert len({*ids}) == 10 and all(re.fullmatch("ref_[0-9a-f]{32}", each) for each in ids)
        key = await server.admin_key("admin_read", organization="other")
        async with server.client(key) as other:
            (foreign, *_) = await listed(other, "/refusals")
        for after, where in ((others[0]["id"], path), (foreign["id"], "/refusals"), ("ref_7", path)):
            reply = await operator.get(where, params={"after": after})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after"), after


async def test_refusals_without_a_database_are_counted_as_lost_and_delay_nobody(
    books: Books, refusals: Refusals, lost: Counter
) -> None:
    await books.database.close()
    refusals.add(refused_request(books, "req_1", InvalidRequest("Wrong.")))
    await refusals.flush()
    assert lost._value.get() == 1


@pytest.fixture
async def operator(house: House) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {house.operator_key}"}
    async with httpx.AsyncClient(
        base_url=f"{house.url}/v1/organization", headers=headers, timeout=PATIENCE_S
    ) as client:
        yield client


async def explained(operator: httpx.AsyncClient, request_id: str) -> dict[str, Any]:
    """Wait until the explanation of a refusal is written, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await operator.get(f"/refusals/{request_id}")
            if reply.status_code == 200:
                found: dict[str, Any] = reply.json()
                return found
            await asyncio.sleep(0.1)


async def ask(house: House, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 4} | fields
    headers = {"authorization": f"Bearer {house.acme.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=PATIENCE_S) as client:
        return await client.post(f"{house.url}/v1/completions", json=body)


async def test_a_limit_that_refused_is_explained_with_what_helps(house: House, operator: httpx.AsyncClient) -> None:
    limits = f"/projects/{house.acme.project_id}/limits"
    limit = {"unit": "tokens", "window": "day", "max": 1, "model": "tiny"}
    limit_id = (await operator.post(limits, json=limit)).json()["id"]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (reply := await ask(house)).status_code == 200:  # noqa: ASYNC110 - the gateway hears of it by itself
                await asyncio.sleep(0.1)
    finally:
        await operator.delete(f"{limits}/{limit_id}")
    assert reply.status_code == 429
    found = await explained(operator, reply.headers["x-request-id"])
    assert (found["status"], found["code"]) == (429, reply.json()["error"]["code"])
    assert found["limit"]["id"] == limit_id and found["limit"]["asked"] > found["limit"]["max"] == 1
    assert "ask for less" in found["advice"] and found["project_id"] == house.acme.project_id
    listed = (await operator.get(f"/projects/{house.acme.project_id}/refusals")).json()["data"]
    assert found["id"] in [each["id"] for each in listed]
    asked = reply.headers["x-request-id"]
    (there,) = (await operator.get("/search", params={"q": asked})).json()["data"]
    assert (there["kind"], there["href"]) == ("refusal", f"/admin/refusals?q={asked}")


async def test_the_content_of_a_refused_request_is_not_stored(house: House, operator: httpx.AsyncClient) -> None:
    wrong = await ask(house, temperature=SECRET)
    assert wrong.status_code == 400
    found = await explained(operator, wrong.headers["x-request-id"])
    assert (found["param"], SECRET in str(found)) == ("temperature", False)
    assert "temperature" in found["advice"] and found["limit"] is None
    nowhere = await ask(house, model="tiny:nothing")
    found = await explained(operator, nowhere.headers["x-request-id"])
    assert (found["code"], found["model"]) == ("model_not_found", "tiny:nothing")
    assert SECRET not in (await operator.get("/refusals", params={"limit": 100})).text
    assert (await operator.get("/refusals/req_nothing")).status_code == 404
    assert (await operator.get("/refusals", params={"after": "ref_x"})).status_code == 400
