"""Routes made in a database, and requests to them, for tests over pools of fake engines."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from engine.config import model_digest
from gateway.db.ledger.request_list import RequestQuery, list_requests
from gateway.db.ledger.requests import AttemptRow, RequestRow, list_attempts
from gateway.db.limits.limits import set_limit
from gateway.db.pools.replicas import add_running_replica
from gateway.db.routing import routes
from gateway.domain.limits.limit import Limit
from gateway.pools.first_pool import make_pool
from tests.gateway.live import LiveGateway, Tenant, make_tenant
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

SMALL, LARGE, DOWN, SLOW, BROKEN, PAIR = "small", "large", "down", "slow", "broken", "pair"
PAIR_SLOW, PAIR_FAST = "pair-slow", "pair-fast"


async def add_pool(dsn: str, name: str, folder: Path, address: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            digest = model_digest(folder)
            assert await make_pool(conn, name, model=str(folder), folder=folder, base_digest=digest, address=address)
    finally:
        await conn.close()


def complete(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "abc", "max_tokens": 4} | fields
    return client.post("/v1/completions", json=body)


def target(name: str) -> dict[str, Any]:
    return {"target": name}


async def add_replica(dsn: str, name: str, address: str) -> None:
    """Add another engine to a pool."""
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            row = await conn.fetchrow("SELECT id, revision FROM pools WHERE name = $1", name)
            assert row is not None
            await add_running_replica(conn, row["id"], row["revision"], address)
    finally:
        await conn.close()


class Routes:
    """A tenant's routes, written to the database as the admin API does it."""

    def __init__(self, dsn: str, tenant: Tenant, client: httpx.Client) -> None:
        self._dsn, self._tenant, self._client = dsn, tenant, client

    @property
    def tenant(self) -> Tenant:
        return self._tenant

    def make(self, name: str, root: dict[str, Any]) -> str:
        asyncio.run(self._make(name, json.dumps({"root": root})))
        wait_until(lambda: name in self.listed(), "the route is listed")
        return name

    def make_shared(self, name: str, root: dict[str, Any]) -> str:
        """Create a route of the tenant's organization, for all its projects."""
        asyncio.run(self._make_shared(name, json.dumps({"root": root})))
        wait_until(lambda: name in self.listed(), "the route is listed")
        return name

    async def _make_shared(self, name: str, document: str) -> None:
        conn = await asyncpg.connect(self._dsn)
        try:
            async with conn.transaction():
                owner = await conn.fetchval(
                    "SELECT organization_id FROM projects WHERE id = $1", self._tenant.project_id
                )
                assert await routes.create_shared_route(conn, owner, name, document)
        finally:
            await conn.close()

    def listed(self) -> list[str]:
        return [model["id"] for model in self._client.get("/v1/models").json()["data"]]

    async def _make(self, name: str, document: str) -> None:
        conn = await asyncpg.connect(self._dsn)
        try:
            async with conn.transaction():
                assert await routes.create_route(conn, self._tenant.project_id, name, document)
        finally:
            await conn.close()

    def billed(self, request_id: str) -> list[tuple[str, str]]:
        """Return the model and the finish reason of each row of a request that has tokens."""
        return [(model, end) for model, end, num_tokens in self.rows(request_id) if num_tokens]

    def rows(self, request_id: str) -> list[tuple[str, str, int]]:
        """Return the model, the finish reason and the tokens of each row of a request."""
        found = self._fetch(
            "SELECT model, finish_reason, prompt_tokens + completion_tokens FROM ledger WHERE request_id = $1",
            request_id,
        )
        return [(row[0], row[1], row[2]) for row in found]

    def all_rows(self, request_id: str) -> list[asyncpg.Record]:
        """Return all rows of a request: those of its attempts, and those of answers that were not accepted."""
        return self._fetch(
            "SELECT * FROM ledger WHERE split_part(request_id, '.', 1) = $1 ORDER BY request_id, attempt", request_id
        )

    def num_requests(self, request_id: str) -> int:
        """Return the number of requests that the sums of usage count for one request's id."""
        query = "SELECT sum(num_requests(kind, revision, request_id, finish_reason)) FROM ledger"
        return int(self._fetch(f"{query} WHERE split_part(request_id, '.', 1) = $1", request_id)[0][0])

    def num_requests_of_tenant(self) -> int:
        """Return the number of requests that the sums of usage count for the tenant."""
        query = "SELECT sum(num_requests(kind, revision, request_id, finish_reason)) FROM ledger WHERE project_id = $1"
        return int(self._fetch(query, self._tenant.project_id)[0][0] or 0)

    def num_rows_of_tenant(self) -> int:
        """Return the number of the tenant's rows in the ledger."""
        return int(self._fetch("SELECT count(*) FROM ledger WHERE project_id = $1", self._tenant.project_id)[0][0])

    def ends_of_tenant(self) -> list[tuple[str, str]]:
        """Return the model and the finish reason of each row of the tenant, the oldest request first."""
        query = "SELECT model, finish_reason FROM ledger WHERE project_id = $1 ORDER BY created_at, attempt"
        return [(row[0], row[1]) for row in self._fetch(query, self._tenant.project_id)]

    def listed_request(self, request_id: str) -> tuple[RequestRow, list[AttemptRow]]:
        """Return a request with its attempts, as the list of the project's requests shows it."""

        async def find() -> tuple[RequestRow, list[AttemptRow]]:
            conn, now = await asyncpg.connect(self._dsn), datetime.datetime.now(datetime.UTC)
            try:
                organization_id = await conn.fetchval(
                    "SELECT organization_id FROM projects WHERE id = $1", self._tenant.project_id
                )
                hour = datetime.timedelta(hours=1)
                query = RequestQuery(
                    organization_id=organization_id,
                    start=now - hour,
                    end=now + hour,
                    after=None,
                    limit=100,
                    project_ids=[self._tenant.project_id],
                )
                rows = (await list_requests(conn, query, scan_limit=1_000)).rows
                (row,) = [each for each in rows if each.request_id == request_id]
                return row, await list_attempts(conn, organization_id, row)
            finally:
                await conn.close()

        return asyncio.run(find())

    def route_id(self, name: str) -> str:
        """Return the id of a route."""
        return str(self._fetch("SELECT route_id FROM model_aliases WHERE name = $1", name)[0][0])

    def _fetch(self, query: str, *values: str) -> list[Any]:
        async def fetch() -> list[Any]:
            conn = await asyncpg.connect(self._dsn)
            try:
                return list(await conn.fetch(query, *values))
            finally:
                await conn.close()

        return asyncio.run(fetch())


@contextmanager
def another_tenant(dsn: str, gateway: LiveGateway, name: str) -> Iterator[tuple[Routes, httpx.Client]]:
    """Create a tenant without measured response times; give its routes and a client."""
    tenant = asyncio.run(make_tenant(dsn, name, "pirate", "1"))
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S) as client:
        yield Routes(dsn, tenant, client), client


def body_of(reply: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line and "[DONE]" not in line]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return ["".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]]


async def limit_to(dsn: str, tenant: Tenant, *wanted: tuple[Any, Any, int]) -> None:
    """Set limits of a tenant, each as (unit, window, most)."""
    conn = await asyncpg.connect(dsn)
    try:
        organization_id = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", tenant.project_id)
        for unit, window, most in wanted:
            await set_limit(conn, Limit("", organization_id, tenant.project_id, None, None, unit, window, most, True))
    finally:
        await conn.close()


async def limit_one_at_a_time(dsn: str, tenant: Tenant) -> None:
    """Let a tenant send one request at a time, and use 1,000 tokens a day."""
    await limit_to(dsn, tenant, ("concurrency", "none", 1), ("tokens", "day", 1000))
