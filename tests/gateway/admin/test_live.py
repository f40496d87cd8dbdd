"""A watcher sees the requests and changes of its own tenants alone; streams end with their login, and are few."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.protocol import EngineStats, TenantStats
from gateway.admin.traffic.live import TOPICS
from gateway.admin.traffic.watchers import MAX_STREAMS
from gateway.backends.snapshot import EngineSnapshot
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.billing.books import Books, open_books
from tests.patience import PATIENCE_S, TRIES, least


@pytest.fixture
async def two(database: Database) -> tuple[Books, Books]:
    return await open_books(database), await open_books(database, "globex")


@pytest.fixture
async def server(database: Database, two: tuple[Books, Books], tmp_path: Path) -> AsyncIterator[AdminServer]:
    stats = EngineStats(num_running=4, tenants={books.project_id: TenantStats(2, 0, 0.0) for books in two})
    snapshot = EngineSnapshot(id="engine", model="tiny", state="ready", detail="ready", since=1, stats=stats)
    async with serve_admin(database, tmp_path / "server", snapshots=[snapshot]) as server:
        yield server


async def events(reply: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in reply.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, msgspec.json.decode(value)


async def read_until(reply: AsyncIterator[tuple[str, dict[str, Any]]], wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        async for name, data in reply:
            if name == wanted:
                return data
    raise AssertionError(f"the stream ended before '{wanted}'")


async def read_to_end(reply: AsyncIterator[tuple[str, dict[str, Any]]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in reply:
            pass


async def test_an_operator_sees_engines_traffic_and_what_changes(server: AdminServer, two: tuple[Books, Books]) -> None:
    acme, _ = two
    await acme.write(acme.event("req_1"), acme.event("req_2", finish_reason="error"))
    await acme.roll_up()
    async with server.client(server.operator_key) as operator, operator.stream("GET", "/live") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        stream = events(reply)
        (engine,) = (await read_until(stream, "engines"))["data"]
        assert (engine["num_running"], len(engine["tenants"])) == (4, 2)
        await read_until(stream, "traffic")
        await server.user("ann@example.com", "viewer")
        await operator.post(f"/projects/{acme.project_id}/api_keys", json={"name": "new"})
        topics: set[str] = set()
        while "keys" not in topics:
            topics |= set((await read_until(stream, "changed"))["topics"])


async def test_members_see_their_own_and_their_streams_end_with_the_login(
    server: AdminServer, two: tuple[Books, Books]
) -> None:
    acme, globex = two
    user = await server.user("ann@acme.example.com", None)
    async with server.client(server.operator_key) as operator:
        await operator.post(f"/projects/{acme.project_id}/users", json={"user_id": user["id"], "role": "viewer"})
        async with server.person("ann@acme.example.com") as ann, ann.stream("GET", "/live") as reply:
            stream = events(reply)
            (engine,) = (await read_until(stream, "engines"))["data"]
            assert [each["project_id"] for each in engine["tenants"]] == [acme.project_id]
            assert "num_running" not in engine
            assert (await read_until(stream, "traffic"))["num_requests"] == 0
            for number in range(TRIES):
                await operator.post(f"/projects/{globex.project_id}/api_keys", json={})
                limit = {"unit": "tokens", "window": "day", "max": 5 + number}
                await operator.post(f"/projects/{acme.project_id}/limits", json=limit)
                topics = (await read_until(stream, "changed"))["topics"]
                if topics != sorted(set(TOPICS.values())):  # as is told where a notification came late
                    break
            assert "limits" in topics
            assert set(topics) <= {"limits", "users"}, "its own alone: of a short while ago, that Ann has joined"
            await operator.delete(f"/users/{user['id']}/logins")
            await read_to_end(stream)


@pytest.mark.parametrize("taken", ["the login", "the membership"])
async def test_a_stream_ends_at_once_when_its_right_is_taken_away(
    server: AdminServer, two: tuple[Books, Books], taken: str
) -> None:
    user = await server.user("ann@acme.example.com", None)
    members = f"/projects/{two[0].project_id}/users"
    path = f"/users/{user['id']}/logins" if taken == "the login" else f"{members}/{user['id']}"

    async def once() -> float:
        async with server.client(server.operator_key) as operator:
            await operator.post(members, json={"user_id": user["id"], "role": "viewer"})
            async with server.person("ann@acme.example.com") as ann, ann.stream("GET", "/live") as reply:
                stream = events(reply)
                await read_until(stream, "engines")
                assert (await operator.delete(path)).status_code == 200
                begun_s = time.monotonic()
                await read_to_end(stream)
                return time.monotonic() - begun_s

    assert await least(once, 1.0) < 1.0


async def test_a_keys_stream_ends_when_the_key_may_do_less(server: AdminServer) -> None:
    ann = await server.user("ann@example.com", "admin")
    async with server.person("ann@example.com") as person:
        key = (await person.post("/admin_api_keys", json={"name": "ci"})).json()["value"]
    async with (
        server.client(key) as ci,
        server.client(server.operator_key) as operator,
        ci.stream("GET", "/live") as reply,
    ):
        stream = events(reply)
        await read_until(stream, "traffic")
        assert (await operator.post(f"/users/{ann['id']}", json={"role": "viewer"})).status_code == 200
        await read_to_end(stream)
        assert (await ci.get("/projects")).status_code == 200, "it still works"


async def test_streams_of_one_caller_are_few_and_room_is_made_when_one_ends(server: AdminServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        operator = await stack.enter_async_context(server.client(server.operator_key))
        first = await operator.send(operator.build_request("GET", "/live"), stream=True)
        for _ in range(MAX_STREAMS - 1):
            reply = await stack.enter_async_context(operator.stream("GET", "/live"))
            assert reply.status_code == 200
        assert (await operator.get("/live")).status_code == 429
        async with server.client(await server.admin_key("admin_read")) as other, other.stream("GET", "/live") as reply:
            assert reply.status_code == 200
        await first.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with operator.stream("GET", "/live") as reply:
                    if reply.status_code == 200:
                        break
