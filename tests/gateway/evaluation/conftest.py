"""A project with metrics and an experiment of its own for each test, in the house that tests over HTTP share."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from gateway.db.experiments.events import LOCK_KEY
from tests.gateway.conftest import House
from tests.gateway.evaluation.furniture import connected, put_experiment, put_metrics, put_request
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

NUMBERS = itertools.count(1)


class Site(msgspec.Struct, frozen=True):
    """A project with metrics and an experiment, on one gateway."""

    house: House
    key: Key
    client: httpx.AsyncClient
    """The client that sends requests with the project's key."""
    conn: asyncpg.Connection
    experiment_id: str

    async def request(self) -> str:
        """Write a request of the experiment; return its id."""
        return await put_request(self.conn, self.key.project_id, self.experiment_id)

    async def vote(self, **vote: Any) -> dict[str, Any]:
        """Send a vote that must be accepted; return the reply."""
        reply = await self.client.post("/v1/feedback", json={"metric": "thumbs_up", "value": True} | vote)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def counted(self) -> list[tuple[str, int]]:
        """Return the metric and the value of each vote of the project that counts."""
        sql = "SELECT metric, value FROM feedback WHERE project_id = $1 AND withdrawn_at IS NULL ORDER BY metric, value"
        return [(row["metric"], row["value"]) for row in await self.conn.fetch(sql, self.key.project_id)]

    async def events(self) -> list[tuple[str, str]]:
        """Return the experiment and the vote of each event that waits to be counted."""
        sql = """
            SELECT v.experiment_id, v.feedback_id FROM experiment_events v JOIN experiments e ON e.id = v.experiment_id
            WHERE e.project_id = $1 AND v.kind = 'feedback' ORDER BY v.id
        """
        return [(row["experiment_id"], row["feedback_id"]) for row in await self.conn.fetch(sql, self.key.project_id)]


async def new_site(house: House) -> AsyncIterator[Site]:
    """Give a site of a new project."""
    key = await make_key(house.dsn, f"votes-{next(NUMBERS)}")
    async with (
        connected(house.dsn) as conn,
        httpx.AsyncClient(base_url=house.url, headers=key.headers, timeout=PATIENCE_S) as client,
    ):
        await put_metrics(conn, key.project_id)
        yield Site(house, key, client, conn, await put_experiment(conn, key.project_id))


@pytest.fixture
async def site(house: House) -> AsyncIterator[Site]:
    async for made in new_site(house):
        yield made


@pytest.fixture
async def other(house: House) -> AsyncIterator[Site]:
    async for made in new_site(house):
        yield made


@pytest.fixture
async def no_bookkeeper(house: House) -> AsyncIterator[None]:
    """Hold the lock of the gateway's bookkeeper, so that events wait until the test has seen them."""
    async with connected(house.dsn) as conn:
        await conn.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        yield
