"""Requests are listed newest first, each once, with their usage by the ledger; nobody sees another tenant's."""

from __future__ import annotations

import datetime
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import httpx
import msgspec
import pytest
import pytest_asyncio

from gateway.db.ledger.request_list import RequestQuery, list_requests
from gateway.db.ledger.usage import UsageEvent
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.billing.books import NOW, Books, open_books

if TYPE_CHECKING:
    from gateway.db.pool import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")

NUM_REQUESTS = 30


def minutes_ago(minutes: float) -> datetime.datetime:
    return NOW - datetime.timedelta(minutes=minutes)


@shared
async def database(module_dsn: str) -> AsyncIterator[Database]:
    async with await Database.connect(module_dsn) as database:
        yield database


@shared
async def server(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminServer]:
    async with serve_admin(database, tmp_path_factory.mktemp("requests")) as server:
        yield server


@shared
async def books(database: Database) -> tuple[Books, Books]:
    """Return the books of acme and globex.

    Acme has requests with two prompts, several requests at one instant, and one that was corrected later.
    """
    acme, globex = await open_books(database), await open_books(database, "globex")
    await acme.set_prices()
    await acme.backdate_prices(NOW - datetime.timedelta(days=60))
    events = []
    for number in range(NUM_REQUESTS):
        at = minutes_ago(number // 3 * 700)
        changes: dict[str, Any] = {"created_at": at, "model": "tiny:rare" if number == 25 else "tiny"}
        if number % 5 == 0:
            changes["finish_reason"] = "abort"
        events.append(acme.event(f"req_{number:02}", **changes))
        if number % 4 == 0:
            events.append(acme.event(f"req_{number:02}.1", **changes, prompt_tokens=100))
    await acme.write(*events)
    await acme.write(acme.event("req_lost", created_at=minutes_ago(1), finish_reason="error", completion_tokens=1))
    late = acme.event("req_lost", created_at=minutes_ago(1), completion_tokens=9, ttft_ms=10.0, latency_ms=90.0)
    await acme.write(late)
    await globex.write(globex.event("req_theirs", created_at=minutes_ago(2)))
    return acme, globex


@shared
async def operator(server: AdminServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client(server.operator_key) as client:
        yield client


async def all_pages(client: httpx.AsyncClient, path: str, **params: Any) -> list[dict[str, Any]]:
    found, after = [], {}
    while True:
        reply = await client.get(path, params=params | after)
        assert reply.status_code == 200, reply.text
        page = reply.json()
        found += page["data"]
        if not page["has_more"]:
            return found
        after = {"after": page["last_id"]}


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_every_request_is_listed_once_newest_first(
    books: tuple[Books, Books], operator: httpx.AsyncClient, limit: int
) -> None:
    acme, _ = books
    of_one = await all_pages(operator, f"/projects/{acme.project_id}/requests", limit=limit)
    of_all = await all_pages(operator, "/requests", limit=limit)
    assert {each["id"] for each in of_one} == {f"req_{number:02}" for number in range(NUM_REQUESTS)} | {"req_lost"}
    assert [each["id"] for each in of_all if each["project_id"] == acme.project_id] == [each["id"] for each in of_one]
    assert len(of_all) == NUM_REQUESTS + 2
    instants = [(each["created_at"], each["id"]) for each in of_all]
    assert instants == sorted(instants, reverse=True)


async def test_a_request_sums_its_prompts_and_late_corrections(
    books: tuple[Books, Books], operator: httpx.AsyncClient
) -> None:
    listed = {each["id"]: each for each in await all_pages(operator, "/requests", limit=100)}
    two_prompts = listed["req_04"]
    assert (two_prompts["input_tokens"], two_prompts["output_tokens"], two_prompts["cached_tokens"]) == (110, 10, 8)
    assert (two_prompts["status"], listed["req_05"]["status"]) == ("completed", "cancelled")
    ledger = await books[0].value("SELECT sum(cost_nanos) FROM ledger WHERE split_part(request_id, '.', 1) = 'req_04'")
    assert (two_prompts["cost_nanos"], two_prompts["currency"]) == (ledger, "usd")
    lost = listed["req_lost"]
    assert (lost["status"], lost["finish_reason"], lost["output_tokens"]) == ("completed", "stop", 9)
    assert lost["tpot_ms"] == pytest.approx((5.0 - 4.0) / 8)

    details = (await operator.get("/requests/req_04")).json()
    attempts = details.pop("attempts")
    assert details == two_prompts
    assert [each["request_id"] for each in attempts] == ["req_04", "req_04.1"]
    lines = attempts[1]["price_lines"]
    assert [(line["item"], line["tokens"]) for line in lines] == [("input", 96), ("cached input", 4), ("output", 5)]
    assert sum(line["cost_nanos"] for each in attempts for line in each["price_lines"]) == ledger
    assert two_prompts["tpot_ms"] == pytest.approx((5.0 - 4.0) / 4)
    revisions = (await operator.get("/requests/req_lost")).json()["attempts"]
    assert [(each["revision"], each["finish_reason"]) for each in revisions] == [(0, "error"), (1, "stop")]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"models[]": "tiny:rare"}, ["req_25"]),
        ({"request_id": "req_07"}, ["req_07"]),
        ({"request_id": "req_none"}, []),
        ({"api_key_ids": "key_of_nobody"}, []),
        ({"finish_reasons[]": ["abort"], "models": "tiny"}, [f"req_{number:02}" for number in (20, 15, 10, 5, 0)]),
        ({"adapter_ids": "adpt"}, []),
        ({"project_ids": "proj_of_nobody"}, []),
        ({"project_ids[]": [f"proj_{number}" for number in range(20)]}, []),
    ],
)
async def test_requests_are_filtered(
    books: tuple[Books, Books], operator: httpx.AsyncClient, params: dict[str, Any], expected: list[str]
) -> None:
    found = [each["id"] for each in await all_pages(operator, "/requests", **params)]
    assert sorted(found) == sorted(expected)


async def test_filters_find_the_same_requests_whether_rolled_up_or_not(database: Database) -> None:
    """Half of the rows are rolled up; sizes of pages, spans of time and filters are random."""
    rng = random.Random(11)
    initech = await open_books(database, "initech")
    made: list[UsageEvent] = []
    for batch in range(2):
        events = [
            initech.event(
                f"req_i{batch}{number:03}",
                created_at=minutes_ago(rng.choice((0.5, 200, 3000, 40_000)) * rng.random()),
                model=rng.choices(("mini", "mini:often", "mini:rare"), (50, 20, 1))[0],
                finish_reason=rng.choices(("stop", "length", "abort", "error"), (50, 20, 5, 5))[0],
                api_key_id=rng.choice(("key_a", "key_b")),
            )
            for number in range(300)
        ]
        await initech.write(*events)
        lost = [each for each in events if each.finish_reason == "error"][::2]
        found_late = [msgspec.structs.replace(each, finish_reason="stop", completion_tokens=99) for each in lost]
        await initech.write(*found_late)
        made += [each for each in events if each not in lost] + found_late
        if batch == 0:
            await initech.roll_up()
    for _ in range(60):
        ends = sorted(minutes_ago(rng.choice((1, 300, 4000, 43_000)) * rng.random()) for _ in range(2))
        query = RequestQuery(
            organization_id=initech.organization_id,
            start=ends[0],
            end=ends[1],
            after=None,
            limit=rng.choice((1, 7, 100)),
            project_ids=rng.choice((None, [initech.project_id])),
            models=rng.choice(([], ["mini:rare"], ["mini:often", "mini:rare"], ["mini:none"])),
            finish_reasons=rng.choice(([], ["error"], ["stop", "abort"])),
            api_key_ids=rng.choice(([], ["key_b"])),
        )
        expected = [
            each
            for each in made
            if query.start <= each.created_at < query.end
            and (not query.models or each.model in query.models)
            and (not query.finish_reasons or each.finish_reason in query.finish_reasons)
            and (not query.api_key_ids or each.api_key_id in query.api_key_ids)
        ]
        expected.sort(key=lambda each: (each.created_at, each.request_id), reverse=True)
        found, _ = await ids_and_ends(initech, query)
        assert [each for each in found if each.startswith("req_i")] == [each.request_id for each in expected]


class InterruptedConnection:
    """A connection that rolls up all waiting rows before one of its queries.

    question: how many queries come before the one that is interrupted.
    """

    def __init__(self, conn: Connection, books: Books, question: int) -> None:
        self._conn = conn
        self._books = books
        self._num_before = question

    async def fetch(self, *asked: Any) -> Any:
        if self._num_before == 0:
            await self._books.roll_up()
        self._num_before -= 1
        return await self._conn.fetch(*asked)


@pytest.mark.parametrize("question", range(8))
async def test_a_request_that_is_rolled_up_between_two_queries_is_found(database: Database, question: int) -> None:
    hooli = await open_books(database, f"hooli {question}")
    await hooli.write(hooli.event(f"req_h{question}", created_at=minutes_ago(90), model="late"))
    query = RequestQuery(
        organization_id=hooli.organization_id,
        start=minutes_ago(200),
        end=minutes_ago(0),
        after=None,
        limit=5,
        project_ids=[hooli.project_id],
        models=["late"],
    )
    async with database.acquire() as conn:
        found = await list_requests(cast("Connection", InterruptedConnection(conn, hooli, question)), query)
    assert [row.request_id for row in found.rows] == [f"req_h{question}"]


async def test_a_rare_request_is_on_the_first_page(books: tuple[Books, Books]) -> None:
    acme, _ = books
    await acme.roll_up()
    query = RequestQuery(
        organization_id=acme.organization_id,
        start=minutes_ago(60 * 24 * 30),
        end=minutes_ago(-1),
        after=None,
        limit=5,
        models=["tiny:rare"],
    )
    async with acme.database.acquire() as conn:
        found = await list_requests(conn, query)
    assert ([row.request_id for row in found.rows], found.next_key) == (["req_25"], None)


async def test_a_prompts_id_finds_its_request(books: tuple[Books, Books], operator: httpx.AsyncClient) -> None:
    whole = (await operator.get("/requests/req_04")).json()
    assert (await operator.get("/requests/req_04.1")).json() == whole
    (listed,) = await all_pages(operator, "/requests", request_id="req_04.1")
    assert listed == {name: value for name, value in whole.items() if name != "attempts"}
    (found,) = (await operator.get("/search", params={"q": "req_04.1"})).json()["data"]
    assert (found["id"], found["href"]) == ("req_04", "/admin/requests/req_04")


async def test_pages_of_several_projects_end_at_a_request_of_these_projects(books: tuple[Books, Books]) -> None:
    acme, globex = books
    query = RequestQuery(
        organization_id=acme.organization_id,
        start=minutes_ago(60 * 24 * 30),
        end=minutes_ago(-1),
        after=None,
        limit=5,
        project_ids=[acme.project_id, *(f"proj_{number}" for number in range(9))],
    )
    both = msgspec.structs.replace(query, project_ids=[acme.project_id, globex.project_id])
    listed, ends = await ids_and_ends(acme, query, scan_limit=1)
    assert len(listed) == len(set(listed)) == NUM_REQUESTS + 1
    assert {end.partition(".")[0] for end in ends} == set(listed)
    after_lost = listed.index("req_lost") + 1
    assert (await ids_and_ends(acme, both, scan_limit=4))[0] == [
        *listed[:after_lost],
        "req_theirs",
        *listed[after_lost:],
    ]


async def ids_and_ends(books: Books, query: RequestQuery, scan_limit: int | None = None) -> tuple[list[str], list[str]]:
    """Return the ids of all requests, and the ids at which pages ended.

    scan_limit: the most rows that a page may look at; None: as many as usual.
    """
    ids, ends = [], []
    async with books.database.acquire() as conn:
        while True:
            found = await list_requests(conn, query, scan_limit=scan_limit)
            ids += [row.request_id for row in found.rows]
            if found.next_key is None:
                return ids, ends
            ends.append(found.next_key.request_id)
            query = msgspec.structs.replace(query, after=found.next_key)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"after": "x"}, "after"),
        ({"start_time": "0", "end_time": "99999999"}, "start_time"),
        ({"start_time": "9999999999"}, "start_time"),
        ({"start_time": "-1"}, "start_time"),
        ({"limit": "0"}, "limit"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(
    operator: httpx.AsyncClient, params: dict[str, str], param: str
) -> None:
    reply = await operator.get("/requests", params=params)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_members_see_their_own_projects_requests_alone(books: tuple[Books, Books], server: AdminServer) -> None:
    acme, globex = books
    user = await server.user("ann@acme.example.com", None)
    async with server.client(server.operator_key) as client:
        await client.post(f"/projects/{acme.project_id}/users", json={"user_id": user["id"], "role": "viewer"})
    async with server.person("ann@acme.example.com") as ann:
        listed = await all_pages(ann, "/requests", limit=100)
        assert {each["project_id"] for each in listed} == {acme.project_id} and len(listed) == NUM_REQUESTS + 1
        assert await all_pages(ann, "/requests", **{"project_ids[]": globex.project_id}) == []
        theirs, nobodys = await ann.get("/requests/req_theirs"), await ann.get("/requests/req_nobodys")
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace("theirs", "") == nobodys.text.replace("nobodys", "")
        assert (await ann.get("/requests/req_lost")).status_code == 200
        assert (await ann.get(f"/projects/{globex.project_id}/requests")).status_code == 404
